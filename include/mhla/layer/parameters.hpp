#pragma once

/// \file
/// The parameters of a layer: tensors with names and shapes, side by side in one flat row of
/// numbers. Gradients are a row of the same layout, so one optimiser step serves all of them.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor_file.hpp"
#include "mhla/layer/initial.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Where a tensor lies in a row of parameters, as a matrix: its first axis by all others; a single
/// number as [1,1].
struct ParameterSlice {
  Index begin = 0;           ///< its first number in the row
  Index rows = 0, cols = 0;  ///< 0 if there is no such tensor

  /// Returns the tensor of `row`, absent if there is none or `row` is empty.
  template <class T>
  MatrixView<T> matrix(std::span<T> row) const {
    if (rows == 0 || row.empty()) return {};
    return {row.data() + begin, rows, cols, cols};
  }
  /// Returns all numbers of the tensor, or none if there is no such tensor or `row` is empty.
  template <class T>
  std::span<T> numbers(std::span<T> row) const {
    if (rows == 0 || row.empty()) return {};
    return row.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows * cols));
  }
};

/// One tensor of a row of parameters.
struct Parameter {
  std::string name;          ///< as in a checkpoint, without the prefix of its layer
  std::vector<Index> shape;  ///< as in a checkpoint
  Index begin;               ///< its first number in the row
  Index size;                ///< numbers
  Initial initial = {};      ///< values that training begins with
  std::string option = {};   ///< of the layer, without which there is no such tensor; or empty

  ParameterSlice place() const {
    const Index rows = shape.empty() ? 1 : shape.front();
    return {begin, rows, rows == 0 ? 0 : size / rows};
  }
};

/// Names, shapes, initial values and places of the tensors of a row of parameters.
class ParameterTable {
 public:
  /// Adds a tensor after all others.
  /// \throws option_error for a name that exists or initial values of another shape, shape_error
  ///     for a negative size.
  const Parameter& add(std::string name, std::vector<Index> shape, Initial initial = {},
                       std::string option = {});
  /// Adds the tensors of another table under the names prefix + name. Returns the first number of
  /// its row in this table's row.
  /// \throws option_error, shape_error as above.
  Index add(std::string_view prefix, const ParameterTable& table);
  /// Notes a tensor that an option would add.
  void leave_out(std::string name, std::string option) {
    left_out_.push_back({std::move(name), {}, 0, 0, {}, std::move(option)});
  }

  const std::vector<Parameter>& all() const { return all_; }
  /// Tensors that other options would add.
  const std::vector<Parameter>& left_out() const { return left_out_; }
  /// Returns a line for each tensor: its name, its shape, its initial values, and the option that
  /// it needs if it is not always there. Tensors that are left out follow, with their option alone.
  std::string describe() const;
  Index size() const { return all_.empty() ? 0 : all_.back().begin + all_.back().size; }
  /// Returns a tensor, or null.
  const Parameter* find(std::string_view name) const {
    const auto found = std::find_if(all_.begin(), all_.end(),
                                    [name](const Parameter& p) { return p.name == name; });
    return found == all_.end() ? nullptr : &*found;
  }

  /// Where a tensor lies, for many rows; that of none if there is no such tensor.
  ParameterSlice place(std::string_view name) const {
    const Parameter* const p = find(name);
    return p == nullptr ? ParameterSlice() : p->place();
  }
  /// A tensor of `row`, as ParameterSlice has it.
  template <class T>
  MatrixView<T> matrix(std::span<T> row, std::string_view name) const {
    return place(name).matrix(row);
  }
  template <class T>
  std::span<T> numbers(std::span<T> row, std::string_view name) const {
    return place(name).numbers(row);
  }

 private:
  std::vector<Parameter> all_, left_out_;
};

/// Last parts of the names of tensors that layers compute instead of loading, such as
/// blocks.0.attn.rotary.inv_freq.
inline constexpr std::string_view kRecomputed[] = {"inv_freq", "cos_cached", "sin_cached"};

/// Sets a row to the initial values of its tensors. Equal seeds give equal numbers on every
/// machine. \throws shape_error unless `row` has the size of `table`.
template <Accumulator A>
void initialize_parameters(const ParameterTable& table, std::span<A> row, std::uint64_t seed);

/// Copies the tensors `prefix` + name of a file to the places of `table` in `row`. Shapes must
/// agree, and the file may have no other tensor whose name begins with `prefix`.
/// \param function    name in errors
/// \param others      prefixes, below `prefix`, of tensors that are not the layer's, or ""
/// \param recomputed  last parts of names, such as "rotary.scale", to ignore like kRecomputed.
/// \throws shape_error unless `row` has the size of `table`; before any write, if tensors are
///         missing, superfluous or wrongly shaped; after writes, if the file refuses numbers. Both
///         errors name all such tensors. Refused tensors of `row` are unspecified.
template <Accumulator A, TensorFile<A> F>
void load_parameters(const char* function, const F& file, std::string_view prefix,
                     const ParameterTable& table, std::span<A> row,
                     std::span<const std::string_view> others = {},
                     std::span<const std::string_view> recomputed = {});

/// Adds the tensors of `row` to a writer under the names prefix + name, with the shapes of `table`,
/// so that load_parameters can read them. `row` must outlive the writer's use of the numbers: a
/// SafetensorsWriter uses them until it has written its file.
/// \throws shape_error unless `row` has the size of `table`; any exception of the writer, which
///         then may have some of the tensors.
template <class T, TensorWriter<std::remove_const_t<T>> W>
void save_parameters(W& writer, std::string_view prefix, const ParameterTable& table,
                     std::span<T> row);

// ------------------------------------------------------------------------------------------------

inline const Parameter& ParameterTable::add(std::string name, std::vector<Index> shape,
                                            Initial initial, std::string option) {
  if (find(name) != nullptr) {
    detail::fail_option("ParameterTable::add", "name",
                        "is \"" + name + "\", which is there already", "another name");
  }
  Index count = 1;
  for (const Index size : shape) {
    count = detail::checked_product("ParameterTable::add", "shape", {count, size});
  }
  const Index begin = size();
  if (count > std::numeric_limits<Index>::max() - begin) {
    detail::fail_shape(
        "ParameterTable::add", name.c_str(), "has " + std::to_string(count) + " numbers",
        "fewer: Index counts no more, with the " + std::to_string(begin) + " before it");
  }
  Parameter p{std::move(name), std::move(shape), begin, count, initial, std::move(option)};
  if (initial == Initial::uniform()) p.initial = Initial::uniform(p.place().cols);
  if (!p.initial.fits(p.shape)) {
    detail::fail_option("ParameterTable::add", "initial", "is " + p.initial.text(),
                        "initial values of " + p.name + " " + detail::shape_text(p.shape));
  }
  all_.push_back(std::move(p));
  return all_.back();
}

inline Index ParameterTable::add(std::string_view prefix, const ParameterTable& table) {
  const Index first = size();
  for (const Parameter& p : table.all()) {
    add(std::string(prefix) + p.name, p.shape, p.initial, p.option);
  }
  return first;
}

inline std::string ParameterTable::describe() const {
  std::string text;
  const auto option = [](const Parameter& p) {
    return (p.option.empty() ? "" : ", with " + p.option) + "\n";
  };
  for (const Parameter& p : all_) {
    text += p.name + " " + detail::shape_text(p.shape) + ", " + p.initial.text() + option(p);
  }
  for (const Parameter& p : left_out_) text += p.name + " left out" + option(p);
  return text;
}

namespace detail {

/// Throws an error that names the wrong tensors of a file, if there are any.
inline void expect_no_faults(const char* function, const std::string& faults,
                             std::string_view prefix, const ParameterTable& table) {
  if (faults.empty()) return;
  fail_shape(function, "file", faults,
             "the " + std::to_string(table.all().size()) + " tensors of the layer below \"" +
                 std::string(prefix) + "\"");
}

/// True if the last parts of a name, which are separated by dots, are one of `parts`.
inline bool ends_with_one_of(std::string_view name, std::span<const std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [name](std::string_view part) {
    return name == part || name.ends_with("." + std::string(part));
  });
}

/// Throws unless the file has the tensors that load_parameters reads, in shape, and no others.
template <class F>
void expect_parameters(const char* function, const F& file, std::string_view prefix,
                       const ParameterTable& table, std::span<const std::string_view> others,
                       std::span<const std::string_view> recomputed) {
  constexpr Index kNamed = 16;  // named superfluous tensors, of which a file may have any number
  std::string faults;
  const auto complain = [&faults](const std::string& what) {
    faults += (faults.empty() ? "" : "; ") + what;
  };
  const auto& tensors = file.tensors();
  for (const Parameter& p : table.all()) {
    const std::string name = std::string(prefix) + p.name;
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      complain("lacks " + name + " " + shape_text(p.shape));
    } else if (found->second.shape != p.shape) {
      complain("has " + name + " of shape " + shape_text(found->second.shape) + " instead of " +
               shape_text(p.shape));
    }
  }
  Index superfluous = 0;
  for (auto it = tensors.lower_bound(std::string(prefix)); it != tensors.end(); ++it) {
    const std::string& name = it->first;
    if (name.compare(0, prefix.size(), prefix) != 0) break;
    const std::string_view below = std::string_view(name).substr(prefix.size());
    const bool passed_over =
        std::any_of(others.begin(), others.end(),
                    [&](auto other) { return !other.empty() && below.starts_with(other); }) ||
        ends_with_one_of(below, kRecomputed) || ends_with_one_of(below, recomputed);
    if (passed_over || table.find(below) != nullptr || ++superfluous > kNamed) continue;
    complain("has " + printable(name) + ", which is no parameter of the layer");
  }
  if (superfluous > kNamed) {
    complain("has " + std::to_string(superfluous - kNamed) + " more that are none");
  }
  expect_no_faults(function, faults, prefix, table);
}

/// Throws unless a row has the size of a table.
inline void expect_row(const char* function, std::size_t numbers, const ParameterTable& table) {
  if (static_cast<Index>(numbers) == table.size()) return;
  fail_shape(function, "row", "has " + std::to_string(numbers) + " numbers",
             std::to_string(table.size()) + " of the table");
}

}  // namespace detail

template <Accumulator A>
void initialize_parameters(const ParameterTable& table, std::span<A> row, std::uint64_t seed) {
  detail::expect_row("initialize_parameters", row.size(), table);
  detail::SplitMix64 random(seed);
  for (const Parameter& p : table.all()) {
    detail::set_initial(p.initial, p.shape, random, p.place().numbers(row));
  }
}

template <Accumulator A, TensorFile<A> F>
void load_parameters(const char* function, const F& file, std::string_view prefix,
                     const ParameterTable& table, std::span<A> row,
                     std::span<const std::string_view> others,
                     std::span<const std::string_view> recomputed) {
  detail::expect_row(function, row.size(), table);
  detail::expect_parameters(function, file, prefix, table, others, recomputed);
  std::string refused, why;  // names of all tensors, and the reason for the first one
  for (const Parameter& p : table.all()) {
    const std::string name = std::string(prefix) + p.name;
    try {
      file.copy_to(name, table.numbers(row, p.name));
    } catch (const error& e) {
      if (refused.empty()) why = e.what();
      refused += (refused.empty() ? "" : ", ") + name;
    }
  }
  if (!refused.empty()) refused = "cannot copy " + refused + " (the first: " + why + ")";
  detail::expect_no_faults(function, refused, prefix, table);
}

template <class T, TensorWriter<std::remove_const_t<T>> W>
void save_parameters(W& writer, std::string_view prefix, const ParameterTable& table,
                     std::span<T> row) {
  detail::expect_row("save_parameters", row.size(), table);
  const std::span<const T> numbers = row;
  for (const Parameter& p : table.all()) {
    writer.add(std::string(prefix) + p.name, p.shape, table.numbers(numbers, p.name));
  }
}

}  // namespace MHLA_TARGET
}  // namespace mhla
