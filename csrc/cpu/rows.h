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

}  // namespace megalite
