// The CUDA kernels as torch's, on torch's current stream.

#define USE_CUDA
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

namespace {

struct Here {
  torch::stable::accelerator::DeviceGuard guard;
  void* stream = nullptr;

  explicit Here(const torch::stable::Tensor& x) : guard(x.get_device_index()) {
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  }
};

}  // namespace

#include "ops.h"

STABLE_TORCH_LIBRARY_IMPL(megalite, CUDA, library) { implement(library); }
