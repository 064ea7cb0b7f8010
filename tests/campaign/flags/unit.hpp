#pragma once

// Functions of units that are compiled with different flags. Their arguments are pointers, so that
// no class of the standard library crosses units.

inline constexpr long kTokens = 64, kWidth = 24;

using Unit = void(const float* q, const float* k, const float* v, float* out, float* dv);
Unit v1_debug, v2_assert, v2_small, v3_fast, v3_lto, v4_fast, v4_library, native_fast;
