// The CPU kernels as torch's; their threads are torch's, too.

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "../cpu/parallel.h"

namespace {

struct Here {
  void* stream = nullptr;

  explicit Here(const torch::stable::Tensor&) {}
};

}  // namespace

#include "ops.h"

void megalite::share(int64_t count, int64_t grain, Range range, void* work) {
  if (count <= grain)
    range(0, count, work);
  else
    torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) { range(begin, end, work); });
}

STABLE_TORCH_LIBRARY_IMPL(megalite, CPU, library) { implement(library); }
