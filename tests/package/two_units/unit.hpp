#pragma once

#include <vector>

// No type of Eigen or mhla here: the units may be built for different instruction sets.

inline constexpr int kTokens = 75;
inline constexpr int kFeatures = 24;

/// Attention of q, k, v [kTokens, kFeatures], row-major, in blocks of 16 tokens.
std::vector<float> first(const std::vector<float>& q, const std::vector<float>& k,
                         const std::vector<float>& v);
std::vector<float> second(const std::vector<float>& q, const std::vector<float>& k,
                          const std::vector<float>& v);
