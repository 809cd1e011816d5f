#include "simd/scalar.h"

#include "dispatch.h"
#include "kernels/all.h"

namespace thinwire {

const Kernels& scalar_kernels() {
  static constexpr Kernels table = make_kernels<Scalar>("scalar");
  return table;
}

}  // namespace thinwire
