#include <atomic>

#include "dispatch.h"
#include "kernels.h"
#include "pool.h"

namespace thinwire {

void adam_step(const AdamStep& step, size_t n) {
  parallel(n, kGrain, count_parts(n, kGrain), [&](Range range) { kernels().adam(step, range.begin, range.end); });
}

bool adam_momentum_step(const AdamMomentumStep& step, size_t n) {
  std::atomic<bool> as_runs{step.runs != nullptr && step.factors.l2 == 0.0f};
  const size_t granule = step.block < kGrain ? kGrain / step.block * step.block : step.block;
  parallel(n, granule, count_parts(n, granule), [&](Range range) {
    if (!kernels().adam_momentum(step, range.begin, range.end)) as_runs = false;
  });
  return as_runs;
}

}  // namespace thinwire
