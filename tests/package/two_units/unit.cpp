// A unit that is compiled twice, with MHLA_UNIT as first and as second, and linked into one
// program.

#include "unit.hpp"

#include "mhla/mhla.hpp"

std::vector<float> MHLA_UNIT(const std::vector<float>& q, const std::vector<float>& k,
                             const std::vector<float>& v) {
  using Map = Eigen::Map<const mhla::Matrix<float>>;
  const mhla::Contiguous blocks(kTokens, 16);
  const mhla::Matrix<float> o = mhla::bidirectional(
      Map(q.data(), kTokens, kFeatures), Map(k.data(), kTokens, kFeatures),
      Map(v.data(), kTokens, kFeatures), blocks, mhla::locality<float>(blocks.blocks()));
  return {o.data(), o.data() + o.size()};
}
