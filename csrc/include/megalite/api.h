// The one interface of every kernel: csrc/cuda (by nvcc, or executed on the host by csrc/emu) and csrc/cpu implement it.
//
// Pointers are to contiguous tensors, rows x cols; nothing but the outputs is written. dtypes are ML_F32 ... ML_F64.
// `wide` is what the kernel computes in: double for doubles, otherwise float. `stream` is a cudaStream_t, or ignored.
// Each returns 0, ML_UNSUPPORTED for dtypes it has no code for, or what CUDA answered.
#pragma once

#include <cstdint>

#define ML_API extern "C" __attribute__((visibility("default")))

enum { ML_F32 = 0, ML_F16 = 1, ML_BF16 = 2, ML_F64 = 3 };
enum { ML_UNSUPPORTED = -1 };

// y = (x - mean) / sqrt(mean of (x - mean)^2 + eps) * (weight + origin) + bias
//
// x, [rows, cols] of `dtype`; weight and bias [cols], y of `weight_dtype`: the same, or 16 bits beside fp32.
// mean and rstd [rows], wide. RMSNorm: mean is null and counts as 0, and so is bias.
ML_API int ml_norm(const void* x, const void* weight, const void* bias, void* y, void* mean, void* rstd, int64_t rows,
                   int64_t cols, double eps, double origin, int dtype, int weight_dtype, void* stream);

// dy of `weight_dtype` -> dx of `dtype`, dweight and dbias of `weight_dtype`. partial is scratch: for each of dweight
// and dbias [ml_norm_parts, cols], wide.
ML_API int ml_norm_backward(const void* dy, const void* x, const void* weight, const void* mean, const void* rstd,
                            void* dx, void* dweight, void* dbias, void* partial, int64_t rows, int64_t cols,
                            double origin, int dtype, int weight_dtype, void* stream);
ML_API int64_t ml_norm_parts(int64_t rows, int64_t cols);

// Cross entropy over the columns first .. first + cols - 1 of a vocabulary, one part of it. Rows of logits are `pitch`
// apart: what is behind cols is padding and takes no part. target [rows] are int64 ids of the whole vocabulary.
//
// stats [3, rows], wide: the largest logit of a row (the lowest float where cols is 0), the sum of exp(logit - that),
// the target's logit, or 0 where it is elsewhere.
ML_API int ml_cross_entropy(const void* logits, const void* target, void* stats, int64_t rows, int64_t cols,
                            int64_t pitch, int64_t first, int dtype, void* stream);

// In place: logits become (exp(logit - log_sum) - [target]) dloss, padding 0. log_sum and dloss [rows], wide.
ML_API int ml_cross_entropy_backward(void* logits, const void* target, const void* log_sum, const void* dloss,
                                     int64_t rows, int64_t cols, int64_t pitch, int64_t first, int dtype,
                                     void* stream);

// Gated activations: x [rows, 2, cols], the gate first, y [rows, cols] = gate sigmoid(slope gate) up. SwiGLU: slope 1.
ML_API int ml_glu(const void* x, void* y, int64_t rows, int64_t cols, double slope, int dtype, void* stream);

// dy [rows, cols] -> dx [rows, 2, cols].
ML_API int ml_glu_backward(const void* dy, const void* x, void* dx, int64_t rows, int64_t cols, double slope,
                           int dtype, void* stream);
