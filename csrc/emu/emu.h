// CUDA's words for a C++ compiler: the kernels of csrc/cuda, executed on the host, one fiber for each thread of a block.
//
// Blocks run one after the other. Within a block a thread runs until it waits, at a barrier or for its warp; which one
// runs next is the order that ml_emu_order sets. Mistakes that would be undefined on a GPU end the launch with an error.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#define __global__ static
#define __launch_bounds__(...)
#define ML_DEVICE inline
#define ML_UNROLL
#define ML_SHARED(T, name, count) \
  static const char name##_of_block = 0; \
  T* name = static_cast<T*>(emu::shared(&name##_of_block, sizeof(T) * (count)))
#define ML_DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(emu::dynamic_shared())
#define ML_UNWRAP(...) __VA_ARGS__
#define ML_LAUNCH(kernel, grid, block, bytes, stream, ...) \
  ((void)(stream), emu::launch((grid), (block), (bytes), [&] { ML_UNWRAP kernel(__VA_ARGS__); }))

namespace emu {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};

// Of the thread that runs.
struct Place {
  Dim thread, block, block_dim, grid_dim;
};
extern Place place;

int launch(unsigned grid, unsigned block, size_t shared_bytes, const std::function<void()>& kernel);
void barrier();
// What the lane `from` of this warp hands in at the same call.
uint64_t exchange(unsigned lanes, uint64_t value, unsigned from);
void* shared(const void* which, size_t bytes);
void* dynamic_shared();
unsigned lane();

template <typename T>
T exchanged(unsigned lanes, T value, unsigned from) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(lanes, bits, from);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace emu

#define threadIdx (emu::place.thread)
#define blockIdx (emu::place.block)
#define blockDim (emu::place.block_dim)
#define gridDim (emu::place.grid_dim)

inline void __syncthreads() { emu::barrier(); }
template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int mask) {
  return emu::exchanged(lanes, value, emu::lane() ^ unsigned(mask));
}
template <typename T>
T __shfl_sync(unsigned lanes, T value, int from) {
  return emu::exchanged(lanes, value, unsigned(from));
}
using std::exp;
using std::sqrt;

namespace megalite {

// Few, so that blocks of small cases have several rows to go through.
inline int multiprocessors() { return 3; }

}  // namespace megalite
