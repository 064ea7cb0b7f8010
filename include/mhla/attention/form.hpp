#pragma once

/// \file
/// A form, and the driver that runs it over heads, batches and threads. The executor splits over
/// (sequence, head) pairs, or if workers outnumber these, over the blocks of one pair after
/// another.
///
/// A form is an object that holds what all heads share, and one or several mixing matrices:
///
///     const char* name                                       the function that errors name
///     static constexpr unsigned kKeeps                       0 if it keeps nothing; forms with one
///                                                            number keep the same summaries
///     void check(in, out, argument) const                    throws if a head does not fit;
///                                                            `argument` is the name of `out`
///     std::size_t bytes(in, workers) const                   of workspace; reads no data
///     std::size_t kept_bytes(in) const                       if kKeeps
///     void run(arena, kept, in, out, executor) const         one head, in `bytes` of memory, with
///                                                            one mixing matrix (of_pair); `kept`
///                                                            is null to keep nothing
///     mixing                                                 a view, if the form mixes
///
/// and for gradients (gradient/driver.hpp) and tangents (tangent/driver.hpp) functions beside it:
///
///     std::size_t gradient_bytes(form, in, workers)
///     void add_gradient(form, arena, kept, in, dout, gradients, sums, executor)
///     std::size_t tangent_bytes(form, in, workers)
///     void write_tangent(form, arena, in, tangents, parameters, out, executor)

#include <algorithm>
#include <concepts>
#include <optional>

#include "mhla/attention/batch.hpp"
#include "mhla/attention/heads.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/overlap.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The numbers of a form's mixing matrices, none if it has none.
template <class T, class F>
TensorView<const T> mixing_places(const F& form) {
  if constexpr (requires { form.mixing.matrix(); }) {
    return places_of<T>(form.mixing.matrix());
  } else if constexpr (requires { form.mixing; }) {
    return places_of<T>(form.mixing);
  } else {
    return {};
  }
}

/// The form of head h of sequence s, with its mixing matrix. A form without one is itself.
template <class F>
decltype(auto) of_pair(const F& form, Index s, Index h) {
  if constexpr (requires { form.mixing; }) {
    F of = form;
    of.mixing = form.mixing.of_sequence(s).of_head(h);
    return of;
  } else {
    return (form);
  }
}

template <class F, class T>
concept Form = Scalar<T> && requires(const F& form, const Inputs<T>& in, MatrixView<T> out,
                                     Arena& arena, Arena* kept, const ExecutorRef& executor) {
  { form.name } -> std::convertible_to<const char*>;
  { F::kKeeps } -> std::convertible_to<unsigned>;
  form.check(in, MatrixView<const T>(out), "out");
  { form.bytes(in, Index{1}) } -> std::same_as<std::size_t>;
  form.run(arena, kept, in, out, executor);
};

/// True where an executor runs the pairs of a batch, rather than the blocks of a pair. The calling
/// thread needs none for the pairs.
inline bool over_pairs(Index pairs, const ExecutorRef& executor) {
  return !executor.sequential() && pairs >= executor.workers();
}

/// The largest bytes(head) over head 0 of every length; heads differ in data alone.
template <class In, class Bytes>
std::size_t most_bytes(const In& in, Bytes&& bytes) {
  std::size_t most = 0;
  for (Index s = 0; s < lengths(in); ++s) most = std::max(most, bytes(head_inputs(in, s, 0)));
  return most;
}

/// Bytes of workspace for all pairs.
/// \param bytes  bytes(head, workers) of one pair
template <class In, class Bytes>
std::size_t pairs_bytes(const char* function, const In& in, const ExecutorRef& executor,
                        const Bytes& bytes) {
  const Index workers = executor.workers();
  const bool spread = over_pairs(pairs(function, in), executor);
  const std::size_t most =
      most_bytes(in, [&](const auto& head) { return bytes(head, spread ? 1 : workers); });
  if (!spread) return most;
  return static_cast<std::size_t>(
      checked_product(function, "workspace", {workers, static_cast<Index>(most)}));
}
/// Calls run(sequence, head, memory, executor) for all pairs.
/// \param bytes  pairs_bytes of workspace, at `memory`
template <class In, class Run>
void for_each_pair(const In& in, const ExecutorRef& executor, std::byte* memory, std::size_t bytes,
                   const Run& run) {
  const Index count = sequences(in) * heads(in);
  const auto run_pair = [&](Index pair, std::byte* bytes_of_pair, const ExecutorRef& x) {
    run(pair / heads(in), pair % heads(in), bytes_of_pair, x);
  };
  if (over_pairs(count, executor)) {
    const Index share = static_cast<Index>(bytes) / executor.workers();
    executor.for_each(
        count, [&](Index pair, Index w) { run_pair(pair, memory + w * share, ExecutorRef()); });
  } else {
    for (Index pair = 0; pair < count; ++pair) run_pair(pair, memory, executor);
  }
}

template <class F, class In>
std::size_t form_bytes(const F& form, const In& in, const ExecutorRef& executor) {
  return pairs_bytes(form.name, in, executor,
                     [&](const auto& head, Index workers) { return form.bytes(head, workers); });
}

/// Bytes that are kept for the backward form, as many for every pair.
template <class F, class In>
std::size_t form_kept_bytes(const F& form, const In& in) {
  if constexpr (F::kKeeps != 0) {
    const std::size_t most =
        most_bytes(in, [&](const auto& head) { return form.kept_bytes(head); });
    return static_cast<std::size_t>(
        checked_product(form.name, "kept", {sequences(in), heads(in), static_cast<Index>(most)}));
  } else {
    return 0;
  }
}

/// Throws if memory for kept summaries is lent to a form that keeps nothing.
template <class F>
void expect_none_kept(const F& form, Workspace kept) {
  if (F::kKeeps != 0 || kept.empty()) return;
  fail_option(form.name, "kept", "is set", "none: this form keeps nothing");
}

/// Use of kept memory by a pass.
enum class Kept { kWritten, kRead };

/// Memory of the kept summaries, one share per pair.
class KeptMemory {
 public:
  /// \throws option_error unless `kept` is empty or has enough bytes, which a forward pass of the
  ///     form has written if they are read.
  template <class F, class In>
  KeptMemory(const F& form, const In& in, Workspace kept, Kept use)
      : memory_(kept), heads_(heads(in)) {
    expect_none_kept(form, kept);
    if (kept.empty()) return;
    bytes_ = form_kept_bytes(form, in);
    mark_of_form_ = kept_mark(bytes_, F::kKeeps);
    if (use == Kept::kRead) {
      find_kept(form.name, kept, bytes_, mark_of_form_);
    } else {
      begin_kept(form.name, kept, bytes_);
    }
    share_ = bytes_ / static_cast<std::size_t>(std::max<Index>(sequences(in) * heads_, 1));
  }
  /// Marks the memory after a forward pass.
  void mark() const { mark_kept(memory_, bytes_, mark_of_form_); }
  /// Memory of head h of sequence s, none where nothing is kept.
  std::optional<Arena> arena(Index s, Index h) const {
    if (memory_.empty()) return std::nullopt;
    return Arena(memory_.data() + static_cast<std::size_t>(s * heads_ + h) * share_);
  }

 private:
  Workspace memory_;
  Index heads_;
  std::size_t bytes_ = 0;
  std::uint64_t mark_of_form_ = 0;
  std::size_t share_ = 0;
};

/// Throws unless the tensors of a batch, or of one head, agree with each other and with the mixing
/// matrices. Heads are checked by the form.
/// \param argument  the name of `out`, which may be the gradient of an output
template <class F, class In, class Out>
void expect_batch_of(const F& form, const In& in, const Out& out, const char* argument) {
  expect_batch(form.name, in, out, argument);
  if constexpr (requires { form.mixing; }) {
    expect_mixing_of_heads(form.name, form.mixing, sequences(in), heads(in));
  }
}

/// Throws unless `in` and `out` fit the form and each other.
template <class F, class In>
void expect_form(const F& form, const In& in, const std::type_identity_t<output_of<In>>& out) {
  expect_batch_of(form, in, out, "out");
  for (Index s = 0; s < sequences(in) && heads(in) > 0; ++s) {
    form.check(head_inputs(in, s, 0), head_output(in, out, s, 0), "out");
  }
  expect_separate(form.name, in, dout_of<In>(out));
}

/// Computes all heads. Nothing is written before everything has been checked.
template <class F, class In>
void run_form(const F& form, const In& in, const std::type_identity_t<output_of<In>>& out,
              const Call& call) {
  static_assert(Form<F, scalar_of<In>>);
  expect_form(form, in, out);
  const std::size_t bytes = form_bytes(form, in, call.executor);
  const Scratch scratch(form.name, call.workspace, bytes);
  const KeptMemory kept(form, in, call.kept, Kept::kWritten);
  for_each_pair(in, call.executor, scratch.bytes().data(), bytes,
                [&](Index s, Index h, std::byte* memory, const ExecutorRef& executor) {
                  Arena arena(memory);
                  std::optional<Arena> keep = kept.arena(s, h);
                  of_pair(form, s, h)
                      .run(arena, keep ? &*keep : nullptr, head_inputs(in, s, h),
                           head_output(in, out, s, h), executor);
                });
  kept.mark();
}

/// The same; returns the output.
template <class F, class In>
auto run_form(const F& form, const In& in, const Call& call) {
  auto out = make_output(in);
  run_form(form, in, output_of<In>(out), call);
  return out;
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
