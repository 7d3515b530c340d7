// CUDA as the kernels write it: compiled by nvcc, or by a C++ compiler for the host (csrc/emu/emu.h).
#pragma once

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#define ML_DEVICE __device__ __forceinline__
#define ML_UNROLL _Pragma("unroll")
// Memory of a block, of a size known to the compiler and of one given at launch.
#define ML_SHARED(T, name, count) __shared__ T name[count]
#define ML_DYNAMIC_SHARED(T, name)                        \
  extern __shared__ __align__(16) unsigned char ml_dynamic[]; \
  T* name = reinterpret_cast<T*>(ml_dynamic)
// Launch, and what CUDA answers. In parentheses: (kernel<...>).
#define ML_LAUNCH(kernel, grid, block, bytes, stream, ...) \
  (kernel<<<(grid), (block), (bytes), static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__), int(cudaGetLastError()))

namespace megalite {

inline int multiprocessors() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

}  // namespace megalite

#else
#include "emu.h"
#endif
