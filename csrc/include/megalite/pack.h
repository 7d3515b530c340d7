// Neighbours that are read and written by one access, of 16 bytes at most.
#pragma once

#include "megalite/dtype.h"
#include "megalite/port.h"

namespace megalite {

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];

  static ML_DEVICE Pack load(const T* from) { return *reinterpret_cast<const Pack*>(from); }
  ML_DEVICE void store(T* to) const { *reinterpret_cast<Pack*>(to) = *this; }
};

// How many T are 16 bytes.
template <typename T>
constexpr int per_pack = 16 / int(sizeof(T));

inline bool is_aligned(const void* pointer, int64_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(pointer) % uintptr_t(bytes) == 0;
}

}  // namespace megalite
