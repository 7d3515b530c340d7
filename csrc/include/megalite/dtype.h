// The number types of the kernels: what they are stored as, and what they are computed in.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define ML_INLINE __host__ __device__ __forceinline__
#else
#define ML_INLINE inline __attribute__((always_inline))
#endif

namespace megalite {

// Computed in fp32, doubles in double.
template <typename T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
template <typename T>
using Wide = typename WideOf<T>::type;

ML_INLINE float widen(float x) { return x; }
ML_INLINE double widen(double x) { return x; }

template <typename T>
struct Narrow {
  static ML_INLINE T from(T x) { return x; }
};

#if defined(__CUDACC__)

using half = __half;
using bfloat16 = __nv_bfloat16;

ML_INLINE float widen(half x) { return __half2float(x); }
ML_INLINE float widen(bfloat16 x) { return __bfloat162float(x); }
template <>
struct Narrow<half> {
  static ML_INLINE half from(float x) { return __float2half_rn(x); }
};
template <>
struct Narrow<bfloat16> {
  static ML_INLINE bfloat16 from(float x) { return __float2bfloat16_rn(x); }
};

#else

// Without branches, so that loops over them become vector code.
struct half {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

ML_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
ML_INLINE float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

ML_INLINE float widen(bfloat16 x) { return float_of(uint32_t(x.bits) << 16); }
ML_INLINE float widen(half x) {
  uint32_t magnitude = uint32_t(x.bits & 0x7fff) << 13;
  // The product moves the exponent's origin and makes subnormals normal; infinities and NaN keep the top exponent.
  uint32_t scaled = bits_of(float_of(magnitude) * 0x1p112f);
  uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return float_of(scaled | special | uint32_t(x.bits & 0x8000) << 16);
}

template <>
struct Narrow<bfloat16> {
  static ML_INLINE bfloat16 from(float x) {
    uint32_t bits = bits_of(x);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return {uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded)};
  }
};
template <>
struct Narrow<half> {
  static ML_INLINE half from(float x) {
    uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude + 0xc8000fffu + (magnitude >> 13 & 1u)) >> 13;
    uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    uint32_t found = magnitude >= 0x47800000u ? special : finite;
    return {uint16_t(found | (bits >> 16 & 0x8000u))};
  }
};

#endif

template <typename T>
ML_INLINE T narrow(Wide<T> x) {
  return Narrow<T>::from(x);
}

}  // namespace megalite
