#include "simd/avx2.h"

#include "dispatch.h"
#include "kernels/all.h"

namespace thinwire {

const Kernels& avx2_kernels() {
  static constexpr Kernels table = make_kernels<Avx2>("avx2");
  return table;
}

}  // namespace thinwire
