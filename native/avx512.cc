#include "simd/avx512.h"

#include "dispatch.h"
#include "kernels/all.h"

namespace thinwire {

const Kernels& avx512_kernels() {
  static constexpr Kernels table = make_kernels<Avx512>("avx512");
  return table;
}

}  // namespace thinwire
