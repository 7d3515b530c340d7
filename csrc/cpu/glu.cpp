// Gated activations (Shazeer 2020), forward and backward from the input alone.

#include "megalite/dispatch.h"
#include "megalite/glu.h"
#include "parallel.h"
#include "rows.h"

namespace megalite {
namespace {

template <typename T>
void forward(const T* x, T* y, int64_t rows, int64_t cols, Wide<T> slope) {
  using A = Wide<T>;
  parallel(rows, grain_of(2 * cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T *gate = x + 2 * row * cols, *up = gate + cols;
      T* __restrict out = y + row * cols;
      for (int64_t i = 0; i < cols; ++i) {
        A g = widen(gate[i]);
        out[i] = narrow<T>(glu_at(g, A(widen(up[i])), A(1) / (A(1) + exp_of(-slope * g))));
      }
    }
  });
}

template <typename T>
void backward(const T* dy, const T* x, T* dx, int64_t rows, int64_t cols, Wide<T> slope) {
  using A = Wide<T>;
  parallel(rows, grain_of(4 * cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T *gate = x + 2 * row * cols, *up = gate + cols, *given = dy + row * cols;
      T* __restrict dgate = dx + 2 * row * cols;
      T* __restrict dup = dgate + cols;
      for (int64_t i = 0; i < cols; ++i) {
        A g = widen(gate[i]), d = widen(given[i]), sigmoid = A(1) / (A(1) + exp_of(-slope * g));
        dgate[i] = narrow<T>(glu_to_gate(g, A(widen(up[i])), sigmoid, slope, d));
        dup[i] = narrow<T>(glu_to_up(g, sigmoid, d));
      }
    }
  });
}

}  // namespace
}  // namespace megalite

using namespace megalite;

int ml_glu(const void* x, void* y, int64_t rows, int64_t cols, double slope, int dtype, void*) {
  return with_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    forward(static_cast<const T*>(x), static_cast<T*>(y), rows, cols, Wide<T>(slope));
    return 0;
  });
}

int ml_glu_backward(const void* dy, const void* x, void* dx, int64_t rows, int64_t cols, double slope, int dtype,
                    void*) {
  return with_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    backward(static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<T*>(dx), rows, cols, Wide<T>(slope));
    return 0;
  });
}
