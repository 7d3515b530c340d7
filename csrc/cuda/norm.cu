// RMSNorm (Zhang and Sennrich 2019) and LayerNorm (Ba et al. 2016), forward and backward.
//
// A row stays in the registers of the threads that share it: one read, one write. Rows that do not start at 16 bytes,
// are no whole packs, or are longer than a block holds, are read again for each pass.

#include <type_traits>

#include "megalite/dispatch.h"
#include "megalite/pack.h"
#include "megalite/reduce.h"

namespace megalite {
namespace {

template <typename X, typename W>
struct Norm {
  const X* x;
  const W* weight;
  const W* bias;
  const W* dy;
  W* y;
  X* dx;
  Wide<X>* mean;
  Wide<X>* rstd;
  Wide<X>* partial_weight;
  Wide<X>* partial_bias;
  int64_t rows;
  int cols;
  Wide<X> eps, origin;
};

// How a block of threads covers rows: `width` threads share one, each holding `packs` packs of it.
struct Shape {
  int width, packs, slots;

  int threads() const { return width * slots; }
};

constexpr int kMostPacks = 4;
constexpr int kThreads = 128;
// Backward holds two rows and the sums of its columns.
template <typename X>
constexpr int kMostPacksBackward = sizeof(X) < 4 ? 2 : 4;
constexpr int kMostThreadsBackward = 512;

Shape shape_of(int64_t cols, int per_pack, int most_packs) {
  int64_t packs = (cols + per_pack - 1) / per_pack;
  int width = 1;
  while (width < kWarp && width < packs) width *= 2;
  int each = 1;
  while (each < most_packs && width * each < packs) each *= 2;
  if (width * each < packs) width = int((packs + kWarp * each - 1) / (kWarp * each)) * kWarp;
  return {width, each, width <= kWarp ? kThreads / width : 1};
}

// A thread's columns of a row, `N` at a time from column `first` on, `step` apart.
template <int N>
struct Columns {
  int first, step, count;

  ML_DEVICE int at(int pack) const { return first + pack * step; }
  ML_DEVICE bool has(int pack) const { return at(pack) < count; }
};

template <typename X, typename W, int PACKS, bool CENTERED>
__global__ void __launch_bounds__(1024) norm_rows(Norm<X, W> a, int width) {
  constexpr int N = per_pack<X>;
  using A = Wide<X>;
  ML_SHARED(A, scratch, kMostWarps);
  int slot = int(threadIdx.x) / width, lane = int(threadIdx.x) % width;
  int64_t row = int64_t(blockIdx.x) * (int(blockDim.x) / width) + slot;
  Columns<N> columns{lane * N, width * N, row < a.rows ? a.cols : 0};
  Pack<X, N> x[PACKS];
  ML_UNROLL
  for (int i = 0; i < PACKS; ++i)
    if (columns.has(i)) x[i] = Pack<X, N>::load(a.x + row * a.cols + columns.at(i));
  A mean = 0;
  if (CENTERED) {
    A sum[1] = {0};
    ML_UNROLL
    for (int i = 0; i < PACKS; ++i)
      if (columns.has(i))
        for (int k = 0; k < N; ++k) sum[0] += widen(x[i].at[k]);
    row_sum(sum, width, scratch);
    mean = sum[0] / A(a.cols);
  }
  A square[1] = {0};
  ML_UNROLL
  for (int i = 0; i < PACKS; ++i)
    if (columns.has(i))
      for (int k = 0; k < N; ++k) {
        A away = widen(x[i].at[k]) - mean;
        square[0] += away * away;
      }
  row_sum(square, width, scratch);
  A rstd = A(1) / sqrt(square[0] / A(a.cols) + a.eps);
  ML_UNROLL
  for (int i = 0; i < PACKS; ++i) {
    if (!columns.has(i)) continue;
    auto weight = Pack<W, N>::load(a.weight + columns.at(i));
    Pack<W, N> y;
    for (int k = 0; k < N; ++k) {
      A scaled = (widen(x[i].at[k]) - mean) * rstd * (widen(weight.at[k]) + a.origin);
      y.at[k] = narrow<W>(CENTERED ? scaled + widen(a.bias[columns.at(i) + k]) : scaled);
    }
    y.store(a.y + row * a.cols + columns.at(i));
  }
  if (lane == 0 && row < a.rows) {
    if (CENTERED) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

template <typename X, typename W, bool CENTERED>
__global__ void __launch_bounds__(256) norm_any_rows(Norm<X, W> a) {
  using A = Wide<X>;
  ML_SHARED(A, scratch, kMostWarps);
  int64_t row = blockIdx.x;
  const X* x = a.x + row * a.cols;
  int width = int(blockDim.x), lane = int(threadIdx.x);
  A mean = 0;
  if (CENTERED) {
    A sum[1] = {0};
    for (int c = lane; c < a.cols; c += width) sum[0] += widen(x[c]);
    row_sum(sum, width, scratch);
    mean = sum[0] / A(a.cols);
  }
  A square[1] = {0};
  for (int c = lane; c < a.cols; c += width) {
    A away = widen(x[c]) - mean;
    square[0] += away * away;
  }
  row_sum(square, width, scratch);
  A rstd = A(1) / sqrt(square[0] / A(a.cols) + a.eps);
  for (int c = lane; c < a.cols; c += width) {
    A scaled = (widen(x[c]) - mean) * rstd * (widen(a.weight[c]) + a.origin);
    a.y[row * a.cols + c] = narrow<W>(CENTERED ? scaled + widen(a.bias[c]) : scaled);
  }
  if (lane == 0) {
    if (CENTERED) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy (weight + origin); mean(g) counts under CENTERED only.
// A block takes every gridDim-th group of rows; what it sums for dweight = sum of dy xhat stays in its registers.
template <typename X, typename W, int PACKS, bool CENTERED>
__global__ void __launch_bounds__(kMostThreadsBackward) norm_rows_backward(Norm<X, W> a, int width) {
  constexpr int N = per_pack<X>;
  using A = Wide<X>;
  ML_SHARED(A, scratch, kMostWarps * 2);
  ML_DYNAMIC_SHARED(A, joint);
  int slots = int(blockDim.x) / width, slot = int(threadIdx.x) / width, lane = int(threadIdx.x) % width;
  Columns<N> columns{lane * N, width * N, a.cols};
  A dweight[PACKS][N] = {}, dbias[PACKS][N] = {};
  for (int64_t base = int64_t(blockIdx.x) * slots; base < a.rows; base += int64_t(gridDim.x) * slots) {
    int64_t row = base + slot;
    columns.count = row < a.rows ? a.cols : 0;
    A mean = CENTERED && row < a.rows ? a.mean[row] : 0, rstd = row < a.rows ? a.rstd[row] : 0;
    Pack<X, N> x[PACKS];
    Pack<W, N> dy[PACKS];
    ML_UNROLL
    for (int i = 0; i < PACKS; ++i)
      if (columns.has(i)) {
        x[i] = Pack<X, N>::load(a.x + row * a.cols + columns.at(i));
        dy[i] = Pack<W, N>::load(a.dy + row * a.cols + columns.at(i));
      }
    A sum[2] = {0, 0};
    ML_UNROLL
    for (int i = 0; i < PACKS; ++i)
      if (columns.has(i)) {
        auto weight = Pack<W, N>::load(a.weight + columns.at(i));
        ML_UNROLL
        for (int k = 0; k < N; ++k) {
          A given = widen(dy[i].at[k]), g = given * (widen(weight.at[k]) + a.origin);
          A xhat = (widen(x[i].at[k]) - mean) * rstd;
          sum[0] += g * xhat;
          if (CENTERED) sum[1] += g;
          dweight[i][k] += given * xhat;
          if (CENTERED) dbias[i][k] += given;
        }
      }
    row_sum(sum, width, scratch);
    A along = sum[0] / A(a.cols), level = sum[1] / A(a.cols);
    ML_UNROLL
    for (int i = 0; i < PACKS; ++i)
      if (columns.has(i)) {
        auto weight = Pack<W, N>::load(a.weight + columns.at(i));
        Pack<X, N> dx;
        ML_UNROLL
        for (int k = 0; k < N; ++k) {
          A g = widen(dy[i].at[k]) * (widen(weight.at[k]) + a.origin);
          A xhat = (widen(x[i].at[k]) - mean) * rstd;
          dx.at[k] = narrow<X>(rstd * (g - level - xhat * along));
        }
        dx.store(a.dx + row * a.cols + columns.at(i));
      }
  }
  columns.count = a.cols;
  ML_UNROLL
  for (int part = 0; part < (CENTERED ? 2 : 1); ++part) {
    ML_UNROLL
    for (int i = 0; i < PACKS; ++i)
      if (columns.has(i))
        ML_UNROLL
        for (int k = 0; k < N; ++k)
          joint[slot * a.cols + columns.at(i) + k] = part == 0 ? dweight[i][k] : dbias[i][k];
    __syncthreads();
    A* partial = (part == 0 ? a.partial_weight : a.partial_bias) + int64_t(blockIdx.x) * a.cols;
    for (int c = int(threadIdx.x); c < a.cols; c += int(blockDim.x)) {
      A sum = 0;
      for (int s = 0; s < slots; ++s) sum += joint[s * a.cols + c];
      partial[c] = sum;
    }
    __syncthreads();
  }
}

template <typename X, typename W, bool CENTERED>
__global__ void __launch_bounds__(256, 4) norm_any_rows_backward(Norm<X, W> a) {
  using A = Wide<X>;
  ML_SHARED(A, scratch, kMostWarps * 2);
  int width = int(blockDim.x), lane = int(threadIdx.x);
  // A thread always meets the same columns: these sums are its own.
  A* dweight = a.partial_weight + int64_t(blockIdx.x) * a.cols;
  A* dbias = a.partial_bias + int64_t(blockIdx.x) * a.cols;
  for (int c = lane; c < a.cols; c += width) {
    dweight[c] = 0;
    if (CENTERED) dbias[c] = 0;
  }
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const X* x = a.x + row * a.cols;
    const W* dy = a.dy + row * a.cols;
    A mean = CENTERED ? a.mean[row] : 0, rstd = a.rstd[row];
    A sum[2] = {0, 0};
    for (int c = lane; c < a.cols; c += width) {
      A given = widen(dy[c]), g = given * (widen(a.weight[c]) + a.origin), xhat = (widen(x[c]) - mean) * rstd;
      sum[0] += g * xhat;
      sum[1] += g;
      dweight[c] += given * xhat;
      if (CENTERED) dbias[c] += given;
    }
    row_sum(sum, width, scratch);
    A along = sum[0] / A(a.cols), level = CENTERED ? sum[1] / A(a.cols) : 0;
    for (int c = lane; c < a.cols; c += width) {
      A g = widen(dy[c]) * (widen(a.weight[c]) + a.origin), xhat = (widen(x[c]) - mean) * rstd;
      a.dx[row * a.cols + c] = narrow<X>(rstd * (g - level - xhat * along));
    }
  }
}

// The sum of each column of partial [parts, cols], in one order whatever the device.
template <typename A, typename W>
__global__ void __launch_bounds__(512) sum_parts(const A* partial, W* out, int parts, int cols) {
  ML_SHARED(A, joint, 512);
  int c = int(blockIdx.x) * kWarp + int(threadIdx.x) % kWarp, first = int(threadIdx.x) / kWarp;
  A sum = 0;
  if (c < cols)
    for (int p = first; p < parts; p += 512 / kWarp) sum += partial[int64_t(p) * cols + c];
  joint[threadIdx.x] = sum;
  __syncthreads();
  if (first > 0 || c >= cols) return;
  for (int p = 1; p < 512 / kWarp; ++p) sum += joint[p * kWarp + int(threadIdx.x)];
  out[c] = narrow<W>(sum);
}

template <int MOST, typename F>
int with_packs(int packs, F run) {
  if constexpr (MOST > 1)
    if (packs < MOST) return with_packs<MOST / 2>(packs, run);
  return run(std::integral_constant<int, MOST>{});
}

template <bool CENTERED, typename X, typename W>
int forward(const Norm<X, W>& a, void* stream) {
  Shape shape = shape_of(a.cols, per_pack<X>, kMostPacks);
  constexpr int64_t kWeightBytes = per_pack<X> * sizeof(W);
  bool whole = a.cols % per_pack<X> == 0 && is_aligned(a.x) && is_aligned(a.y, kWeightBytes) &&
               is_aligned(a.weight, kWeightBytes) && shape.threads() <= 1024;
  if constexpr (sizeof(X) < 8)
    if (whole)
      return with_packs<kMostPacks>(shape.packs, [&](auto packs) {
        constexpr int kPacks = decltype(packs)::value;
        unsigned blocks = unsigned((a.rows + shape.slots - 1) / shape.slots);
        return ML_LAUNCH((norm_rows<X, W, kPacks, CENTERED>), blocks, shape.threads(), 0, stream, a, shape.width);
      });
  return ML_LAUNCH((norm_any_rows<X, W, CENTERED>), unsigned(a.rows), 256, 0, stream, a);
}

template <bool CENTERED, typename X, typename W>
int backward(const Norm<X, W>& a, W* dweight, W* dbias, void* stream) {
  using A = Wide<X>;
  Shape shape = shape_of(a.cols, per_pack<X>, kMostPacksBackward<X>);
  constexpr int64_t kWeightBytes = per_pack<X> * sizeof(W);
  bool whole = a.cols % per_pack<X> == 0 && is_aligned(a.x) && is_aligned(a.dx) && is_aligned(a.dy, kWeightBytes) &&
               is_aligned(a.weight, kWeightBytes) && shape.threads() <= kMostThreadsBackward;
  unsigned parts = unsigned(ml_norm_parts(a.rows, a.cols));
  int answer = ML_UNSUPPORTED;
  if constexpr (sizeof(X) < 8)
    if (whole)
      answer = with_packs<kMostPacksBackward<X>>(shape.packs, [&](auto packs) {
        constexpr int kPacks = decltype(packs)::value;
        size_t bytes = sizeof(A) * size_t(shape.slots) * size_t(a.cols);
        return ML_LAUNCH((norm_rows_backward<X, W, kPacks, CENTERED>), parts, shape.threads(), bytes, stream, a,
                         shape.width);
      });
  if (!(sizeof(X) < 8 && whole))
    answer = ML_LAUNCH((norm_any_rows_backward<X, W, CENTERED>), parts, 256, 0, stream, a);
  unsigned blocks = unsigned((a.cols + kWarp - 1) / kWarp);
  if (answer == 0)
    answer = ML_LAUNCH((sum_parts<A, W>), blocks, 512, 0, stream, a.partial_weight, dweight, int(parts), a.cols);
  if (answer == 0 && CENTERED)
    answer = ML_LAUNCH((sum_parts<A, W>), blocks, 512, 0, stream, a.partial_bias, dbias, int(parts), a.cols);
  return answer;
}

}  // namespace
}  // namespace megalite

using namespace megalite;

int64_t ml_norm_parts(int64_t rows, int64_t) {
  int64_t most = 2 * int64_t(multiprocessors());
  return rows < 1 ? 1 : rows < most ? rows : most;
}

int ml_norm(const void* x, const void* weight, const void* bias, void* y, void* mean, void* rstd, int64_t rows,
            int64_t cols, double eps, double origin, int dtype, int weight_dtype, void* stream) {
  if (rows == 0 || cols == 0) return 0;
  return with_dtypes(dtype, weight_dtype, [&](auto type, auto weight_type) {
    using X = typename decltype(type)::type;
    using W = typename decltype(weight_type)::type;
    Norm<X, W> a{};
    a.x = static_cast<const X*>(x), a.weight = static_cast<const W*>(weight), a.bias = static_cast<const W*>(bias);
    a.y = static_cast<W*>(y), a.mean = static_cast<Wide<X>*>(mean), a.rstd = static_cast<Wide<X>*>(rstd);
    a.rows = rows, a.cols = int(cols), a.eps = Wide<X>(eps), a.origin = Wide<X>(origin);
    return mean ? forward<true>(a, stream) : forward<false>(a, stream);
  });
}

int ml_norm_backward(const void* dy, const void* x, const void* weight, const void* mean, const void* rstd, void* dx,
                     void* dweight, void* dbias, void* partial, int64_t rows, int64_t cols, double origin, int dtype,
                     int weight_dtype, void* stream) {
  if (cols == 0) return 0;
  return with_dtypes(dtype, weight_dtype, [&](auto type, auto weight_type) {
    using X = typename decltype(type)::type;
    using W = typename decltype(weight_type)::type;
    Norm<X, W> a{};
    a.x = static_cast<const X*>(x), a.weight = static_cast<const W*>(weight), a.dy = static_cast<const W*>(dy);
    a.dx = static_cast<X*>(dx);
    a.mean = const_cast<Wide<X>*>(static_cast<const Wide<X>*>(mean));
    a.rstd = const_cast<Wide<X>*>(static_cast<const Wide<X>*>(rstd));
    a.partial_weight = static_cast<Wide<X>*>(partial);
    a.partial_bias = a.partial_weight + ml_norm_parts(rows, cols) * cols;
    a.rows = rows, a.cols = int(cols), a.origin = Wide<X>(origin);
    W *dw = static_cast<W*>(dweight), *db = static_cast<W*>(dbias);
    return mean ? backward<true>(a, dw, db, stream) : backward<false>(a, dw, db, stream);
  });
}
