// From dtype codes to types.
#pragma once

#include "megalite/api.h"
#include "megalite/dtype.h"

namespace megalite {

template <typename T>
struct Type {
  using type = T;
};

template <typename F>
int with_dtype(int dtype, F run) {
  switch (dtype) {
    case ML_F32:
      return run(Type<float>{});
#if !defined(ML_ONLY_F32)  // one instance of each kernel, for builds that are to be quick
    case ML_F16:
      return run(Type<half>{});
    case ML_BF16:
      return run(Type<bfloat16>{});
    case ML_F64:
      return run(Type<double>{});
#endif
  }
  return ML_UNSUPPORTED;
}

// Activations of one dtype with weights of the same, or with weights of 16 bits beside fp32 activations.
template <typename F>
int with_dtypes(int dtype, int weight_dtype, F run) {
  if (dtype == weight_dtype) return with_dtype(dtype, [&](auto type) { return run(type, type); });
#if !defined(ML_ONLY_F32)
  if (dtype == ML_F32 && weight_dtype == ML_F16) return run(Type<float>{}, Type<half>{});
  if (dtype == ML_F32 && weight_dtype == ML_BF16) return run(Type<float>{}, Type<bfloat16>{});
#endif
  return ML_UNSUPPORTED;
}

}  // namespace megalite
