// Sums and maxima over the threads that share a row.
#pragma once

#include "megalite/port.h"

namespace megalite {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kMostWarps = 32;

// Each of N values joined over `width` neighbouring threads, known to all of them. width: a power of two up to 32, or all
// threads of the block, in whole warps. Every thread of the block calls it; `scratch` is shared, kMostWarps x N.
template <int N, typename T, typename Join>
ML_DEVICE void row_join(T (&value)[N], int width, T* scratch, Join join) {
  ML_UNROLL
  for (int i = 0; i < N; ++i)
    for (int step = (width < kWarp ? width : kWarp) / 2; step > 0; step /= 2)
      value[i] = join(value[i], __shfl_xor_sync(kAllLanes, value[i], step));
  if (width <= kWarp) return;
  int warp = int(threadIdx.x) / kWarp, warps = width / kWarp;
  if (int(threadIdx.x) % kWarp == 0)
    ML_UNROLL
    for (int i = 0; i < N; ++i) scratch[warp * N + i] = value[i];
  __syncthreads();
  ML_UNROLL
  for (int i = 0; i < N; ++i) {
    value[i] = scratch[i];
    for (int w = 1; w < warps; ++w) value[i] = join(value[i], scratch[w * N + i]);
  }
  __syncthreads();  // before the next one writes to scratch
}

template <typename T>
struct Sum {
  ML_DEVICE T operator()(T a, T b) const { return a + b; }
};
template <typename T>
struct Largest {
  ML_DEVICE T operator()(T a, T b) const { return a > b ? a : b; }
};

template <int N, typename T>
ML_DEVICE void row_sum(T (&value)[N], int width, T* scratch) {
  row_join(value, width, scratch, Sum<T>{});
}
template <int N, typename T>
ML_DEVICE void row_max(T (&value)[N], int width, T* scratch) {
  row_join(value, width, scratch, Largest<T>{});
}

}  // namespace megalite
