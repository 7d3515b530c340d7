// Cross entropy over a part of a vocabulary, its gradient in the place of the logits.
//
// A block takes a row: one read for the largest and the sum (Milakov and Gimelshein 2018), one read and write backward.

#include <type_traits>

#include "megalite/dispatch.h"
#include "megalite/pack.h"
#include "megalite/reduce.h"

namespace megalite {
namespace {

constexpr int kThreads = 512;

constexpr float kLowest = -3.402823466e38f;

// N columns at a time; cols and pitch are multiples of N, and rows start where N are read by one access.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) sum_rows(const T* logits, const int64_t* target, Wide<T>* stats,
                                                     int64_t rows, int64_t cols, int64_t pitch, int64_t first) {
  using A = Wide<T>;
  ML_SHARED(A, scratch, kMostWarps);
  int64_t row = blockIdx.x;
  const T* x = logits + row * pitch;
  A high = kLowest, sum = 0;
  for (int64_t c = int64_t(threadIdx.x) * N; c < cols; c += int64_t(blockDim.x) * N) {
    auto pack = Pack<T, N>::load(x + c);
    A most = high;
    ML_UNROLL
    for (int k = 0; k < N; ++k) most = widen(pack.at[k]) > most ? widen(pack.at[k]) : most;
    sum *= exp(high - most);
    ML_UNROLL
    for (int k = 0; k < N; ++k) sum += exp(widen(pack.at[k]) - most);
    high = most;
  }
  A most[1] = {high};
  row_max(most, int(blockDim.x), scratch);
  A total[1] = {sum * exp(high - most[0])};
  row_sum(total, int(blockDim.x), scratch);
  if (threadIdx.x > 0) return;
  int64_t column = target[row] - first;
  stats[row] = most[0];
  stats[rows + row] = total[0];
  stats[2 * rows + row] = column >= 0 && column < cols ? widen(x[column]) : A(0);
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) to_gradient(T* logits, const int64_t* target, const Wide<T>* log_sum,
                                                        const Wide<T>* dloss, int64_t cols, int64_t pitch,
                                                        int64_t first) {
  using A = Wide<T>;
  int64_t row = blockIdx.x, column = target[row] - first;
  T* x = logits + row * pitch;
  A sum = log_sum[row], scale = dloss[row];
  for (int64_t c = int64_t(threadIdx.x) * N; c < pitch; c += int64_t(blockDim.x) * N) {
    auto pack = Pack<T, N>::load(x + c);
    ML_UNROLL
    for (int k = 0; k < N; ++k) {
      A share = exp(widen(pack.at[k]) - sum) - (c + k == column ? A(1) : A(0));
      pack.at[k] = narrow<T>(c + k < cols ? share * scale : A(0));
    }
    pack.store(x + c);
  }
}

template <typename T, typename F>
int with_pack(const void* logits, int64_t cols, int64_t pitch, F run) {
  constexpr int N = sizeof(T) < 8 ? per_pack<T> : 1;
  if (is_aligned(logits) && cols % N == 0 && pitch % N == 0) return run(std::integral_constant<int, N>{});
  return run(std::integral_constant<int, 1>{});
}

}  // namespace
}  // namespace megalite

using namespace megalite;

int ml_cross_entropy(const void* logits, const void* target, void* stats, int64_t rows, int64_t cols, int64_t pitch,
                     int64_t first, int dtype, void* stream) {
  if (rows == 0) return 0;
  return with_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return with_pack<T>(logits, cols, pitch, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      return ML_LAUNCH((sum_rows<T, N>), unsigned(rows), kThreads, 0, stream, static_cast<const T*>(logits),
                       static_cast<const int64_t*>(target), static_cast<Wide<T>*>(stats), rows, cols, pitch, first);
    });
  });
}

int ml_cross_entropy_backward(void* logits, const void* target, const void* log_sum, const void* dloss, int64_t rows,
                              int64_t cols, int64_t pitch, int64_t first, int dtype, void* stream) {
  if (rows == 0) return 0;
  return with_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return with_pack<T>(logits, cols, pitch, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      return ML_LAUNCH((to_gradient<T, N>), unsigned(rows), kThreads, 0, stream, static_cast<T*>(logits),
                       static_cast<const int64_t*>(target), static_cast<const Wide<T>*>(log_sum),
                       static_cast<const Wide<T>*>(dloss), cols, pitch, first);
    });
  });
}
