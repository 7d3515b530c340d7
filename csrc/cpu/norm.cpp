// RMSNorm (Zhang and Sennrich 2019) and LayerNorm (Ba et al. 2016), forward and backward.

#include <algorithm>

#include "megalite/dispatch.h"
#include "parallel.h"
#include "rows.h"

namespace megalite {
namespace {

template <typename X, typename W, bool CENTERED>
void forward(const X* x, const W* weight, const W* bias, W* y, Wide<X>* means, Wide<X>* rstds, int64_t rows,
             int64_t cols, Wide<X> eps, Wide<X> origin) {
  using A = Wide<X>;
  parallel(rows, grain_of(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const X* in = x + row * cols;
      W* out = y + row * cols;
      A mean = 0;
      if (CENTERED) mean = sum_of<A>(cols, [&](int64_t i) { return widen(in[i]); }) / A(cols);
      A square = sum_of<A>(cols, [&](int64_t i) {
        A away = widen(in[i]) - mean;
        return away * away;
      });
      A rstd = A(1) / std::sqrt(square / A(cols) + eps);
      for (int64_t i = 0; i < cols; ++i) {
        A scaled = (widen(in[i]) - mean) * rstd * (widen(weight[i]) + origin);
        out[i] = narrow<W>(CENTERED ? scaled + A(widen(bias[i])) : scaled);
      }
      if (CENTERED) means[row] = mean;
      rstds[row] = rstd;
    }
  });
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy (weight + origin); mean(g) counts under CENTERED only.
// dweight and dbias are summed in fixed blocks of rows, so that they do not depend on the number of threads.
template <typename X, typename W, bool CENTERED>
void backward(const W* dy, const X* x, const W* weight, const Wide<X>* means, const Wide<X>* rstds, X* dx, W* dweight,
              W* dbias, Wide<X>* partial, int64_t rows, int64_t cols, Wide<X> origin) {
  using A = Wide<X>;
  int64_t parts = ml_norm_parts(rows, cols), height = (rows + parts - 1) / parts;
  parallel(parts, 1 + (32 << 10) / (height * cols + 1), [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      A* __restrict dw = partial + part * cols;
      A* __restrict db = CENTERED ? partial + (parts + part) * cols : nullptr;
      std::fill(dw, dw + cols, A(0));
      if (CENTERED) std::fill(db, db + cols, A(0));
      for (int64_t row = part * height; row < std::min(rows, (part + 1) * height); ++row) {
        const X* in = x + row * cols;
        const W* given = dy + row * cols;
        X* __restrict out = dx + row * cols;
        A mean = CENTERED ? means[row] : A(0), rstd = rstds[row];
        A along = sum_of<A>(cols, [&](int64_t i) {
          return widen(given[i]) * (widen(weight[i]) + origin) * ((widen(in[i]) - mean) * rstd);
        });
        A level = 0;
        if (CENTERED) level = sum_of<A>(cols, [&](int64_t i) { return widen(given[i]) * (widen(weight[i]) + origin); });
        along /= A(cols);
        level /= A(cols);
        for (int64_t i = 0; i < cols; ++i) {
          A d = widen(given[i]), xhat = (widen(in[i]) - mean) * rstd;
          out[i] = narrow<X>(rstd * (d * (widen(weight[i]) + origin) - level - xhat * along));
          dw[i] += d * xhat;
          if (CENTERED) db[i] += d;
        }
      }
    }
  });
  for (int which = 0; which < (CENTERED ? 2 : 1); ++which) {
    A* first = partial + which * parts * cols;
    for (int64_t part = 1; part < parts; ++part)
      for (int64_t i = 0; i < cols; ++i) first[i] += first[part * cols + i];
    W* out = which == 0 ? dweight : dbias;
    for (int64_t i = 0; i < cols; ++i) out[i] = narrow<W>(first[i]);
  }
}

}  // namespace
}  // namespace megalite

using namespace megalite;

// Of rows alone. Few, as each is a row more to write and to read.
int64_t ml_norm_parts(int64_t rows, int64_t) { return std::clamp<int64_t>(rows / 32, 1, 32); }

int ml_norm(const void* x, const void* weight, const void* bias, void* y, void* mean, void* rstd, int64_t rows,
            int64_t cols, double eps, double origin, int dtype, int weight_dtype, void*) {
  return with_dtypes(dtype, weight_dtype, [&](auto type, auto weight_type) {
    using X = typename decltype(type)::type;
    using W = typename decltype(weight_type)::type;
    auto run = mean ? forward<X, W, true> : forward<X, W, false>;
    run(static_cast<const X*>(x), static_cast<const W*>(weight), static_cast<const W*>(bias), static_cast<W*>(y),
        static_cast<Wide<X>*>(mean), static_cast<Wide<X>*>(rstd), rows, cols, Wide<X>(eps), Wide<X>(origin));
    return 0;
  });
}

int ml_norm_backward(const void* dy, const void* x, const void* weight, const void* mean, const void* rstd, void* dx,
                     void* dweight, void* dbias, void* partial, int64_t rows, int64_t cols, double origin, int dtype,
                     int weight_dtype, void*) {
  return with_dtypes(dtype, weight_dtype, [&](auto type, auto weight_type) {
    using X = typename decltype(type)::type;
    using W = typename decltype(weight_type)::type;
    auto run = mean ? backward<X, W, true> : backward<X, W, false>;
    run(static_cast<const W*>(dy), static_cast<const X*>(x), static_cast<const W*>(weight),
        static_cast<const Wide<X>*>(mean), static_cast<const Wide<X>*>(rstd), static_cast<X*>(dx),
        static_cast<W*>(dweight), static_cast<W*>(dbias), static_cast<Wide<X>*>(partial), rows, cols, Wide<X>(origin));
    return 0;
  });
}
