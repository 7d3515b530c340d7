// Cross entropy over a part of a vocabulary, its gradient in the place of the logits.

#include <limits>

#include "megalite/dispatch.h"
#include "parallel.h"
#include "rows.h"

namespace megalite {
namespace {

template <typename T>
void forward(const T* logits, const int64_t* target, Wide<T>* stats, int64_t rows, int64_t cols, int64_t pitch,
             int64_t first) {
  using A = Wide<T>;
  parallel(rows, grain_of(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = logits + row * pitch;
      A high = max_of<A>(cols, std::numeric_limits<float>::lowest(), [&](int64_t i) { return widen(x[i]); });
      int64_t column = target[row] - first;
      stats[row] = high;
      stats[rows + row] = sum_of<A>(cols, [&](int64_t i) { return exp_of(widen(x[i]) - high); });
      stats[2 * rows + row] = column >= 0 && column < cols ? widen(x[column]) : A(0);
    }
  });
}

template <typename T>
void backward(T* logits, const int64_t* target, const Wide<T>* log_sum, const Wide<T>* dloss, int64_t rows,
              int64_t cols, int64_t pitch, int64_t first) {
  using A = Wide<T>;
  parallel(rows, grain_of(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* x = logits + row * pitch;
      A scale = dloss[row], sum = log_sum[row];
      int64_t column = target[row] - first;
      bool is_here = column >= 0 && column < cols;
      A at_target = is_here ? (exp_of(widen(x[column]) - sum) - A(1)) * scale : A(0);
      for (int64_t i = 0; i < cols; ++i) x[i] = narrow<T>(exp_of(widen(x[i]) - sum) * scale);
      for (int64_t i = cols; i < pitch; ++i) x[i] = narrow<T>(A(0));
      if (is_here) x[column] = narrow<T>(at_target);
    }
  });
}

}  // namespace
}  // namespace megalite

using namespace megalite;

int ml_cross_entropy(const void* logits, const void* target, void* stats, int64_t rows, int64_t cols, int64_t pitch,
                     int64_t first, int dtype, void*) {
  return with_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    forward(static_cast<const T*>(logits), static_cast<const int64_t*>(target), static_cast<Wide<T>*>(stats), rows,
            cols, pitch, first);
    return 0;
  });
}

int ml_cross_entropy_backward(void* logits, const void* target, const void* log_sum, const void* dloss, int64_t rows,
                              int64_t cols, int64_t pitch, int64_t first, int dtype, void*) {
  return with_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    backward(static_cast<T*>(logits), static_cast<const int64_t*>(target), static_cast<const Wide<T>*>(log_sum),
             static_cast<const Wide<T>*>(dloss), rows, cols, pitch, first);
    return 0;
  });
}
