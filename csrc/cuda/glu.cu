// Gated activations (Shazeer 2020), forward and backward from the input alone. A thread takes neighbours of one row.

#include <type_traits>

#include "megalite/dispatch.h"
#include "megalite/glu.h"
#include "megalite/pack.h"

namespace megalite {
namespace {

constexpr int kThreads = 256;

// `each` is cols / N: how many threads a row has.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) gate(const T* x, T* y, int64_t count, int64_t each, Wide<T> slope) {
  using A = Wide<T>;
  int64_t at = int64_t(blockIdx.x) * kThreads + int(threadIdx.x);
  if (at >= count) return;
  const T* from = x + (at + at / each * each) * N;
  auto gates = Pack<T, N>::load(from), ups = Pack<T, N>::load(from + each * N);
  ML_UNROLL
  for (int k = 0; k < N; ++k) {
    A g = widen(gates.at[k]);
    gates.at[k] = narrow<T>(glu_at(g, A(widen(ups.at[k])), A(1) / (A(1) + exp(-slope * g))));
  }
  gates.store(y + at * N);
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) gate_backward(const T* dy, const T* x, T* dx, int64_t count, int64_t each,
                                                          Wide<T> slope) {
  using A = Wide<T>;
  int64_t at = int64_t(blockIdx.x) * kThreads + int(threadIdx.x);
  if (at >= count) return;
  int64_t place = (at + at / each * each) * N;
  auto gates = Pack<T, N>::load(x + place), ups = Pack<T, N>::load(x + place + each * N);
  auto given = Pack<T, N>::load(dy + at * N);
  ML_UNROLL
  for (int k = 0; k < N; ++k) {
    A g = widen(gates.at[k]), d = widen(given.at[k]), sigmoid = A(1) / (A(1) + exp(-slope * g));
    gates.at[k] = narrow<T>(glu_to_gate(g, A(widen(ups.at[k])), sigmoid, slope, d));
    ups.at[k] = narrow<T>(glu_to_up(g, sigmoid, d));
  }
  gates.store(dx + place);
  ups.store(dx + place + each * N);
}

unsigned blocks_of(int64_t count) { return unsigned((count + kThreads - 1) / kThreads); }

template <typename T, typename F>
int with_pack(bool is_aligned, int64_t cols, F run) {
  constexpr int N = sizeof(T) < 8 ? per_pack<T> : 1;
  if (is_aligned && cols % N == 0) return run(std::integral_constant<int, N>{});
  return run(std::integral_constant<int, 1>{});
}

}  // namespace
}  // namespace megalite

using namespace megalite;

int ml_glu(const void* x, void* y, int64_t rows, int64_t cols, double slope, int dtype, void* stream) {
  if (rows * cols == 0) return 0;
  return with_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return with_pack<T>(is_aligned(x) && is_aligned(y), cols, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      int64_t count = rows * cols / N;
      return ML_LAUNCH((gate<T, N>), blocks_of(count), kThreads, 0, stream, static_cast<const T*>(x),
                       static_cast<T*>(y), count, cols / N, Wide<T>(slope));
    });
  });
}

int ml_glu_backward(const void* dy, const void* x, void* dx, int64_t rows, int64_t cols, double slope, int dtype,
                    void* stream) {
  if (rows * cols == 0) return 0;
  return with_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return with_pack<T>(is_aligned(x) && is_aligned(dy) && is_aligned(dx), cols, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      int64_t count = rows * cols / N;
      return ML_LAUNCH((gate_backward<T, N>), blocks_of(count), kThreads, 0, stream, static_cast<const T*>(dy),
                       static_cast<const T*>(x), static_cast<T*>(dx), count, cols / N, Wide<T>(slope));
    });
  });
}
