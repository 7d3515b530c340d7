// The ops of megalite/ops/ over the C interface, for torch's stable ABI: one build serves torch 2.11 and newer.
//
// Whoever includes this says what differs between devices: `Here`, which holds a device for a call and gives its stream.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>
#include <vector>

#include "megalite/api.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

int code_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return ML_F32;
    case ScalarType::Half:
      return ML_F16;
    case ScalarType::BFloat16:
      return ML_BF16;
    case ScalarType::Double:
      return ML_F64;
    default:
      return ML_UNSUPPORTED;
  }
}

ScalarType wide_of(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }

Tensor like(const Tensor& x, torch::headeronly::IntHeaderOnlyArrayRef shape, ScalarType dtype) {
  return torch::stable::new_empty(x, shape, dtype);
}

void check(int answer, const char* op) {
  STD_TORCH_CHECK(answer != ML_UNSUPPORTED, "megalite::", op, " has no kernel for these dtypes");
  STD_TORCH_CHECK(answer == 0, "megalite::", op, ": CUDA error ", answer);
}

struct Rows {
  int64_t cols, rows;

  explicit Rows(const Tensor& x) : cols(x.size(x.dim() - 1)), rows(cols == 0 ? 0 : x.numel() / cols) {}
};

torch::headeronly::IntHeaderOnlyArrayRef leading(const Tensor& x) { return x.sizes().slice(0, x.dim() - 1); }

struct Normed {
  Tensor y, mean, rstd;
};

Normed norm(const Tensor& input, const Tensor& weight, const Tensor* bias, double eps, double origin, const char* op) {
  Here here(input);
  Tensor x = dense(input), w = dense(weight);
  Rows shape(x);
  Tensor y = like(x, x.sizes(), w.scalar_type()), rstd = like(x, leading(x), wide_of(x));
  Tensor mean = bias ? like(x, leading(x), wide_of(x)) : rstd;
  check(ml_norm(x.const_data_ptr(), w.const_data_ptr(), bias ? bias->const_data_ptr() : nullptr, y.mutable_data_ptr(),
                bias ? mean.mutable_data_ptr() : nullptr, rstd.mutable_data_ptr(), shape.rows, shape.cols, eps, origin,
                code_of(x), code_of(w), here.stream),
        op);
  return {y, mean, rstd};
}

Normed norm_backward(const Tensor& given, const Tensor& input, const Tensor& weight, const Tensor* mean,
                     const Tensor& rstd, double origin, const char* op) {
  Here here(input);
  Tensor dy = dense(given), x = dense(input), w = dense(weight);
  Rows shape(x);
  Tensor dx = like(x, x.sizes(), x.scalar_type()), dweight = like(w, w.sizes(), w.scalar_type());
  Tensor dbias = mean ? like(w, w.sizes(), w.scalar_type()) : dweight;
  int64_t scratch[] = {ml_norm_parts(shape.rows, shape.cols) * shape.cols * (mean ? 2 : 1)};
  Tensor partial = like(x, {scratch, 1}, wide_of(x));
  check(ml_norm_backward(dy.const_data_ptr(), x.const_data_ptr(), w.const_data_ptr(),
                         mean ? mean->const_data_ptr() : nullptr, rstd.const_data_ptr(), dx.mutable_data_ptr(),
                         dweight.mutable_data_ptr(), mean ? dbias.mutable_data_ptr() : nullptr,
                         partial.mutable_data_ptr(), shape.rows, shape.cols, origin, code_of(x), code_of(w),
                         here.stream),
        op);
  return {dx, dweight, dbias};
}

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight, double eps, double origin) {
  Normed found = norm(x, weight, nullptr, eps, origin, "rms_norm");
  return {found.y, found.rstd};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                             const Tensor& rstd, double origin) {
  Normed found = norm_backward(dy, x, weight, nullptr, rstd, origin, "rms_norm_backward");
  return {found.y, found.mean};
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target, int64_t first, int64_t cols) {
  Here here(logits);
  Tensor ids = dense(target);
  STD_TORCH_CHECK(logits.is_contiguous(), "megalite::cross_entropy takes contiguous logits");
  Rows shape(logits);
  int64_t size[] = {3, shape.rows};
  Tensor stats = like(logits, {size, 2}, wide_of(logits));
  check(ml_cross_entropy(logits.const_data_ptr(), ids.const_data_ptr(), stats.mutable_data_ptr(), shape.rows, cols,
                         shape.cols, first, code_of(logits), here.stream),
        "cross_entropy");
  return stats;
}

void cross_entropy_backward(Tensor logits, const Tensor& target, const Tensor& log_sum, const Tensor& dloss,
                            int64_t first, int64_t cols) {
  Here here(logits);
  Tensor ids = dense(target), sums = dense(log_sum), given = dense(dloss);
  STD_TORCH_CHECK(logits.is_contiguous(), "megalite::cross_entropy_backward takes contiguous logits");
  STD_TORCH_CHECK(given.scalar_type() == wide_of(logits) && sums.scalar_type() == wide_of(logits),
                  "megalite::cross_entropy_backward takes log_sum and dloss in fp32, or fp64 for such logits");
  Rows shape(logits);
  check(ml_cross_entropy_backward(logits.mutable_data_ptr(), ids.const_data_ptr(), sums.const_data_ptr(),
                                  given.const_data_ptr(), shape.rows, cols, shape.cols, first, code_of(logits),
                                  here.stream),
        "cross_entropy_backward");
}

Tensor glu(const Tensor& input, double slope) {
  Here here(input);
  Tensor x = dense(input);
  Rows shape(x);
  std::vector<int64_t> half(x.sizes().begin(), x.sizes().end());
  half.back() /= 2;
  Tensor y = like(x, {half.data(), half.size()}, x.scalar_type());
  check(ml_glu(x.const_data_ptr(), y.mutable_data_ptr(), shape.rows, shape.cols / 2, slope, code_of(x), here.stream),
        "glu");
  return y;
}

Tensor glu_backward(const Tensor& given, const Tensor& input, double slope) {
  Here here(input);
  Tensor dy = dense(given), x = dense(input);
  Rows shape(x);
  Tensor dx = like(x, x.sizes(), x.scalar_type());
  check(ml_glu_backward(dy.const_data_ptr(), x.const_data_ptr(), dx.mutable_data_ptr(), shape.rows, shape.cols / 2,
                        slope, code_of(x), here.stream),
        "glu_backward");
  return dx;
}

template <typename Library>
void implement(Library& library) {
  library.impl("glu", TORCH_BOX(&glu));
  library.impl("glu_backward", TORCH_BOX(&glu_backward));
  library.impl("cross_entropy", TORCH_BOX(&cross_entropy));
  library.impl("cross_entropy_backward", TORCH_BOX(&cross_entropy_backward));
  library.impl("rms_norm", TORCH_BOX(&rms_norm));
  library.impl("rms_norm_backward", TORCH_BOX(&rms_norm_backward));
}

}  // namespace
