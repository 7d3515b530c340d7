// Work shared among the threads of whoever calls: torch's, where the library is bound to torch.
#pragma once

#include <cstdint>

namespace megalite {

using Range = void (*)(int64_t begin, int64_t end, void* work);

// Calls range on parts of 0 .. count - 1 of at least `grain`, possibly at the same time. Given by csrc/bind.
void share(int64_t count, int64_t grain, Range range, void* work);

// The same for run(begin, end).
template <typename F>
void parallel(int64_t count, int64_t grain, const F& run) {
  share(
      count, grain, [](int64_t begin, int64_t end, void* work) { (*static_cast<const F*>(work))(begin, end); },
      const_cast<F*>(&run));
}

// Rows that make it worth to wake another thread.
inline int64_t grain_of(int64_t cols) { return 1 + (32 << 10) / (cols + 1); }

}  // namespace megalite
