#include <atomic>

#include "dispatch.h"
#include "kernels.h"
#include "pool.h"

namespace thinwire {

void clear(float* dst, size_t n) {
  parallel(n, kGrain, count_parts(n, kGrain),
           [&](Range range) { kernels().clear(dst + range.begin, range.end - range.begin); });
}

Fault float32_check(const uint8_t*, size_t nbytes, size_t n) {
  return nbytes == 4 * n ? Fault{} : Fault{"nbytes", nbytes, 4 * n};
}

void float32_add(const uint8_t* src, size_t n, float weight, float* dst) {
  parallel(n, kGrain, count_parts(n, kGrain), [&](Range range) {
    kernels().float32_add(src + 4 * range.begin, range.end - range.begin, weight, dst + range.begin);
  });
}

void float32_sum(const uint8_t* const* src, size_t count, size_t n, float weight, float* dst) {
  const Float32Sum sum{src, count, weight};
  parallel(n, kGrain, count_parts(n, kGrain),
           [&](Range range) { kernels().float32_sum(sum, range.begin, range.end, dst); });
}

bool half_encode(Half kind, const float* x, size_t n, uint8_t* dst) {
  std::atomic<bool> finite{true};
  parallel(n, kGrain, count_parts(n, kGrain), [&](Range range) {
    const size_t count = range.end - range.begin;
    if (!kernels().half_encode(kind, x + range.begin, count, dst + 2 * range.begin)) finite.store(false);
  });
  return finite.load();
}

Fault half_check(Half kind, const uint8_t* payload, size_t nbytes, size_t n) {
  if (nbytes != 2 * n) return {"nbytes", nbytes, 2 * n};
  const unsigned exponent = kind == Half::kFloat16 ? 0x7c00 : 0x7f80;
  unsigned bad = 0;  // no early return: the compiler makes a vector loop of this
  for (size_t i = 0; i < n; ++i) bad |= (load<uint16_t>(payload + 2 * i) & exponent) == exponent ? 1u : 0u;
  return bad != 0 ? Fault{"an element is inf or nan"} : Fault{};
}

void half_decode(Half kind, const uint8_t* payload, size_t n, float* dst) {
  parallel(n, kGrain, count_parts(n, kGrain), [&](Range range) {
    kernels().half_decode(kind, payload + 2 * range.begin, range.end - range.begin, dst + range.begin);
  });
}

void half_add(Half kind, const uint8_t* payload, size_t n, float weight, float* dst) {
  parallel(n, kGrain, count_parts(n, kGrain), [&](Range range) {
    kernels().half_add(kind, payload + 2 * range.begin, range.end - range.begin, weight, dst + range.begin);
  });
}

}  // namespace thinwire
