#include "dispatch.h"
#include "kernels.h"
#include "pool.h"

namespace thinwire {

void adam_step(const AdamStep& step, size_t n) {
  parallel(n, kGrain, count_parts(n, kGrain), [&](Range range) { kernels().adam(step, range.begin, range.end); });
}

void adam_momentum_step(const AdamMomentumStep& step, size_t n) {
  const size_t granule = step.block < kGrain ? kGrain / step.block * step.block : step.block;
  parallel(n, granule, count_parts(n, granule),
           [&](Range range) { kernels().adam_momentum(step, range.begin, range.end); });
}

}  // namespace thinwire
