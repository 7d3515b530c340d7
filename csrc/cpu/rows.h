// Loops over a row, in a form that compilers turn into vector code without being allowed to reorder sums.
#pragma once

#include <cmath>

#include "megalite/dtype.h"

namespace megalite {

// The sum of term(i) for i < n, in one order whatever the width of vectors: 32 sums side by side, then their sum.
template <typename A, typename F>
ML_INLINE A sum_of(int64_t n, F term) {
  constexpr int kSide = 32;
  A part[kSide] = {};
  int64_t i = 0;
  for (; i + kSide <= n; i += kSide)
    for (int k = 0; k < kSide; ++k) part[k] += term(i + k);
  for (int k = 0; i + k < n; ++k) part[k] += term(i + k);
  for (int step = kSide / 2; step > 0; step /= 2)
    for (int k = 0; k < step; ++k) part[k] += part[k + step];
  return part[0];
}

// The largest term(i) for i < n, NaN left out.
template <typename A, typename F>
ML_INLINE A max_of(int64_t n, A least, F term) {
  constexpr int kSide = 32;
  A part[kSide];
  for (int k = 0; k < kSide; ++k) part[k] = least;
  int64_t i = 0;
  for (; i + kSide <= n; i += kSide)
    for (int k = 0; k < kSide; ++k) {
      A x = term(i + k);
      part[k] = x > part[k] ? x : part[k];
    }
  for (; i < n; ++i) part[0] = term(i) > part[0] ? term(i) : part[0];
  for (int k = 1; k < kSide; ++k) part[0] = part[k] > part[0] ? part[k] : part[0];
  return part[0];
}

// exp without branches and tables (Moshier's Cephes): within 2 units in the last place, NaN and infinities as exp has
// them, and 0 where exp is subnormal.
ML_INLINE float exp_of(float x) {
  constexpr float kRound = 12582912.0f;  // added, it leaves the nearest whole number in the lowest bits
  float bounded = x < -88.0f ? -88.0f : x > 88.8f ? 88.8f : x;
  float shifted = bounded * 1.44269504f + kRound;
  float n = shifted - kRound;
  float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // Two factors, as 2^128 is none.
  uint32_t power = bits_of(shifted) - bits_of(kRound), half = uint32_t(int32_t(power) >> 1);
  float value = p * float_of((half + 127u) << 23) * float_of((power - half + 127u) << 23);
  return x < -87.3365f ? 0.0f : value;
}
inline double exp_of(double x) { return std::exp(x); }

}  // namespace megalite
