// The gated activation and its derivatives at one place, for both kinds of kernels. sigmoid is that of slope x gate.
#pragma once

#include "megalite/dtype.h"

namespace megalite {

template <typename A>
ML_INLINE A glu_at(A gate, A up, A sigmoid) {
  return gate * sigmoid * up;
}
template <typename A>
ML_INLINE A glu_to_gate(A gate, A up, A sigmoid, A slope, A dy) {
  return dy * up * sigmoid * (A(1) + slope * gate * (A(1) - sigmoid));
}
template <typename A>
ML_INLINE A glu_to_up(A gate, A sigmoid, A dy) {
  return dy * gate * sigmoid;
}

}  // namespace megalite
