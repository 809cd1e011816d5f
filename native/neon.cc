#include "simd/neon.h"

#include "dispatch.h"
#include "kernels/all.h"

namespace thinwire {

const Kernels& neon_kernels() {
  static constexpr Kernels table = make_kernels<Neon>("neon");
  return table;
}

}  // namespace thinwire
