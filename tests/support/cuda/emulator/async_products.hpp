#pragma once

/// \file
/// Asynchronous matrix products of a warpgroup (ptx/wgmma.cuh).
///
/// Each warp is independent: it computes its 16 rows of the products in the order of issue, and
/// reads B itself. From the issue on its registers of C hold a signalling NaN, which must still be
/// there at the wait. B must not be written until then. B is read at a time that the schedule
/// chooses, and C is computed at the wait:
///
///     C[i,j] = ((C[i,j] + A[i,0] B[0,j]) + A[i,1] B[1,j]) + ...        in float
///
/// If the product does not add, the sum starts from 0 instead of C[i,j]. Hardware adds in another
/// order. A warp's reads of B belong to an actor, which its threads see after their wait. The four
/// warps must issue the same products.
///
/// A and C must be as fence_registers saw them before wgmma_fence, except for C that the previous
/// product changed. The compiler may move other writes after wgmma_fence.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "emulator/async_descriptor.hpp"
#include "emulator/block.hpp"
#include "emulator/group.hpp"
#include "mhla/cuda/ptx/convert.cuh"

namespace emulator {

inline const Counter kGroupProducts{"wgmma"};

/// Arguments of a thread for a product.
struct ProductCall {
  float* c;                // [columns / 2]
  const std::uint32_t* a;  // [4]
  std::uint64_t b;         // descriptor
  int columns;
  bool transposed;
  bool adds;                    // to C
  float (*low)(std::uint32_t);  // number of the low half of a word, of the type of A and B
  float (*high)(std::uint32_t);

  /// Returns true if both calls can be the same instruction.
  bool same(const ProductCall& o) const {
    return b == o.b && columns == o.columns && transposed == o.transposed && adds == o.adds &&
           low == o.low;
  }
};

/// Products of the warps of a block.
class Products {
 public:
  explicit Products(Block& block);

  void fence_registers(Actor thread, const void* begin, std::size_t count);
  void begin();
  void issue(ProductCall* const (&calls)[32]);
  void commit();
  void wait(std::size_t pending);

 private:
  struct Product;
  /// 16 rows of C that products in flight change.
  struct Accumulator {
    int columns;
    std::array<float*, 32> registers;  // per thread
    std::vector<float> rows;           // [16][columns], before the products
    std::vector<std::shared_ptr<Product>> products;
  };
  /// Registers of a thread, as fence_registers saw them.
  struct Registers {
    const unsigned char* begin;
    std::vector<std::uint32_t> words;
    bool begun;  // wgmma_fence came after it

    bool has(const void* at, std::size_t count) const {
      const auto offset = static_cast<const unsigned char*>(at) - begin;
      return offset >= 0 && static_cast<std::size_t>(offset) + 4 * count <= 4 * words.size();
    }
  };
  struct Warp {
    bool begun = false;
    std::uint64_t issued = 0, committed = 0, done = 0;
    std::deque<std::uint64_t> groups;               // number of products issued before each commit
    std::deque<std::shared_ptr<Product>> products;  // from product number `done` on
    std::vector<Accumulator> accumulators;
    Actor actor = 0;
  };

  static constexpr std::uint32_t kPoison = 0x7fadc0de;

  static void check_end(Block& block);
  Warp& warp() { return warps_[static_cast<std::size_t>(block_.self().warp)]; }
  void check_group(std::uint64_t number, const ProductCall& call);
  void check_order(int lane, const void* registers, int count, const char* name);
  Accumulator& accumulator(ProductCall* const (&calls)[32]);
  void check_poison(const Accumulator& sums) const;
  void finish(Accumulator& sums);

  Block& block_;
  std::vector<Warp> warps_;
  std::vector<std::vector<ProductCall>> issued_;  // by warpgroup
  std::vector<std::vector<Registers>> in_order_;  // by thread
};

// -------------------------------------------------------------------------------------------------

struct Products::Product final : Operation {
  explicit Product(const ProductCall& c) : call(c), b(static_cast<std::size_t>(16 * c.columns)) {}

  /// Reads B.
  void end() override {
    const Descriptor d(call.b);
    const auto columns = static_cast<std::uint32_t>(call.columns);
    d.for_each_piece(call.transposed, columns, [&](std::uint32_t at, std::uint32_t k, auto n) {
      std::uint32_t pairs[4];
      current().shared.peek(at, 16, pairs);
      const std::uint32_t step = call.transposed ? 1 : columns;
      float* to = &b[k * columns + n];
      for (const std::uint32_t pair : pairs) {
        to[0] = call.low(pair);
        to[step] = call.high(pair);
        to += 2 * step;
      }
    });
  }

  ProductCall call;
  bool done = false;     // a thread has waited for it
  float a[16][16];       // [row][k]
  std::vector<float> b;  // [16][columns]
};

inline Products::Products(Block& block)
    : block_(block),
      warps_(block.warps.size()),
      issued_(block.quads.size()),
      in_order_(static_cast<std::size_t>(block.threads())) {
  for (Warp& w : warps_) w.actor = block.clocks.add_actor();
  block.at_thread_end.push_back(&check_end);
}

inline void Products::fence_registers(Actor thread, const void* begin, std::size_t count) {
  auto& all = in_order_[thread];
  const auto* const first = static_cast<const unsigned char*>(begin);
  std::erase_if(all, [&](const Registers& r) {
    return r.begin < first + 4 * count && first < r.begin + 4 * r.words.size();
  });
  Registers& registers = all.emplace_back(first, std::vector<std::uint32_t>(count), false);
  std::memcpy(registers.words.data(), begin, 4 * count);
}

inline void Products::begin() {
  warp().begun = true;
  const int first = block_.self().warp * 32;
  for (int t = first; t < first + 32; ++t) {
    for (Registers& r : in_order_[static_cast<std::size_t>(t)]) r.begun = true;
  }
}

/// Fails unless the `count` registers are unchanged since fence_registers before wgmma_fence.
inline void Products::check_order(int lane, const void* registers, int count, const char* name) {
  const auto words = static_cast<std::size_t>(count);
  for (const Registers& r : in_order_[static_cast<std::size_t>(block_.self().warp * 32 + lane)]) {
    if (!r.begun || !r.has(registers, words)) continue;
    const auto first =
        static_cast<std::size_t>((static_cast<const unsigned char*>(registers) - r.begin) / 4);
    if (std::memcmp(&r.words[first], registers, 4 * words) == 0) return;
  }
  block_.fail(Kind::kRegisters, std::string("wgmma: registers of ") + name +
                                    " were not in order before wgmma_fence, or written since");
}

inline void Products::issue(ProductCall* const (&calls)[32]) {
  Warp& w = warp();
  const ProductCall& call = *calls[0];
  for (const ProductCall* other : calls) {
    if (!call.same(*other))
      block_.fail(Kind::kDivergent, "wgmma of other factors in the same warp");
  }
  if (!w.begun) block_.fail(Kind::kRegisters, "wgmma without wgmma_fence since wgmma_wait_group");
  const Descriptor d(call.b);
  if (const auto text = complaint(d, call.transposed, call.columns); !text.empty()) {
    block_.fail(Kind::kOutside, "wgmma: descriptor: " + text);
  }
  check_group(w.issued, call);

  const auto product = std::make_shared<Product>(call);
  for (int lane = 0; lane < 32; ++lane) {
    check_order(lane, calls[lane]->a, 4, "A");
    for (int i = 0; i < 4; ++i) {
      float* const pair = &product->a[factor_row(lane, i)][factor_column(lane, i)];
      pair[0] = call.low(calls[lane]->a[i]);
      pair[1] = call.high(calls[lane]->a[i]);
    }
  }
  accumulator(calls).products.push_back(product);
  d.for_each_piece(call.transposed, static_cast<std::uint32_t>(call.columns),
                   [&](std::uint32_t at, auto, auto) {
                     block_.shared.begin_read(block_.who(), at, 16, "wgmma");
                   });
  w.products.push_back(product);
  ++w.issued;
  if (block_.self().warp % 4 == 0) block_.add(kGroupProducts);
  block_.start(product);
}

inline void Products::check_group(std::uint64_t number, const ProductCall& call) {
  const int group = block_.self().warp / 4;
  if ((group + 1) * 128 > block_.threads()) {
    block_.fail(Kind::kDivergent, "wgmma in a group of less than four warps");
  }
  auto& issued = issued_[static_cast<std::size_t>(group)];
  if (number == issued.size()) {
    if (block_.quads[static_cast<std::size_t>(group)].ended != 0) {
      block_.fail(Kind::kDivergent, "wgmma when another warp of the group has ended");
    }
    issued.push_back(call);
  } else if (!issued[number].same(call)) {
    block_.fail(Kind::kDivergent, "wgmma of other factors than in another warp of the group");
  }
}

inline Products::Accumulator& Products::accumulator(ProductCall* const (&calls)[32]) {
  Warp& w = warp();
  const int columns = calls[0]->columns;
  for (Accumulator& sums : w.accumulators) {
    int same = 0;
    for (int lane = 0; lane < 32; ++lane) {
      same += sums.registers[static_cast<std::size_t>(lane)] == calls[lane]->c ? 1 : 0;
    }
    if (same == 0) continue;
    if (same != 32 || sums.columns != columns) {
      block_.fail(Kind::kRegisters, "wgmma adds to registers that another product changes");
    }
    check_poison(sums);
    return sums;
  }
  Accumulator& sums = w.accumulators.emplace_back();
  sums.columns = columns;
  sums.rows.resize(static_cast<std::size_t>(16 * columns));
  for (int lane = 0; lane < 32; ++lane) {
    float* const c = calls[lane]->c;
    check_order(lane, c, columns / 2, "C");
    std::erase_if(in_order_[static_cast<std::size_t>(block_.self().warp * 32 + lane)],
                  [&](const Registers& r) { return r.has(c, 1); });
    sums.registers[static_cast<std::size_t>(lane)] = c;
    for (int i = 0; i < columns / 2; ++i) {
      const int at = accumulator_row(lane, i) * columns + accumulator_column(lane, i);
      sums.rows[static_cast<std::size_t>(at)] = c[i];
      std::memcpy(&c[i], &kPoison, sizeof(float));
    }
  }
  return sums;
}

inline void Products::check_poison(const Accumulator& sums) const {
  for (const float* const c : sums.registers) {
    for (int i = 0; i < sums.columns / 2; ++i) {
      if (std::memcmp(&c[i], &kPoison, sizeof(float)) == 0) continue;
      block_.fail(Kind::kRegisters, "register " + std::to_string(i) +
                                        " of C was written between wgmma and wgmma_wait_group");
    }
  }
}

inline void Products::commit() {
  Warp& w = warp();
  w.groups.push_back(w.issued);
}

inline void Products::wait(std::size_t pending) {
  Warp& w = warp();
  w.begun = false;
  std::uint64_t done = w.done;
  for (; w.groups.size() > pending; w.groups.pop_front()) done = w.groups.front();
  for (; w.done < done; ++w.done) {
    Product& product = *w.products.front();
    block_.finish(product);
    product.done = true;
    const Epoch epoch{w.actor, static_cast<Clock>(w.done + 1)};
    Descriptor(product.call.b)
        .for_each_piece(
            product.call.transposed, static_cast<std::uint32_t>(product.call.columns),
            [&](std::uint32_t at, auto, auto) { block_.shared.end_read(epoch, at, 16); });
    w.products.pop_front();
  }
  for (std::size_t i = 0; i < w.accumulators.size();) {
    Accumulator& sums = w.accumulators[i];
    if (!sums.products.back()->done) {
      ++i;
      continue;
    }
    finish(sums);
    if (i + 1 < w.accumulators.size()) sums = std::move(w.accumulators.back());
    w.accumulators.pop_back();
  }
  Vector read = block_.clocks.nothing();
  read[w.actor] = static_cast<Clock>(w.done);
  const int first = block_.self().warp * 32;
  for (int t = first; t < first + 32; ++t) block_.clocks.acquire(static_cast<Actor>(t), read);
}

inline void Products::finish(Accumulator& sums) {
  check_poison(sums);
  const auto columns = static_cast<std::size_t>(sums.columns);
  for (const auto& product : sums.products) {
    if (!product->call.adds) std::fill(sums.rows.begin(), sums.rows.end(), 0.0F);
    for (std::size_t row = 0; row < 16; ++row) {
      for (std::size_t n = 0; n < columns; n += 8) {
        float c[8];
        std::copy_n(&sums.rows[row * columns + n], 8, c);
        for (std::size_t k = 0; k < 16; ++k) {
          const float a = product->a[row][k];
          const float* const b = &product->b[k * columns + n];
          for (int i = 0; i < 8; ++i) c[i] += a * b[i];
        }
        std::copy_n(c, 8, &sums.rows[row * columns + n]);
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* const c = sums.registers[static_cast<std::size_t>(lane)];
    for (int i = 0; i < sums.columns / 2; ++i) {
      const int at = accumulator_row(lane, i) * sums.columns + accumulator_column(lane, i);
      c[i] = sums.rows[static_cast<std::size_t>(at)];
    }
  }
}

inline void Products::check_end(Block& block) {
  Products& products = block.part<Products>();
  const Warp& w = products.warp();
  const int group = block.self().warp / 4;
  if (!w.products.empty()) {
    block.fail(Kind::kRegisters, "ended before wgmma_wait_group for its products");
  }
  if (w.issued != products.issued_[static_cast<std::size_t>(group)].size()) {
    block.fail(Kind::kDivergent, "ended after less products than another warp of the group");
  }
}

}  // namespace emulator
