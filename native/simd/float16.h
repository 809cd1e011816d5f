// IEEE half precision in plain integer arithmetic, rounding to nearest even.
#pragma once

#include <cstdint>

#include "bytes.h"

namespace thinwire {

static inline uint16_t to_float16(float x) {
  const uint32_t sign = float_bits(x) >> 16 & 0x8000u;
  const uint32_t a = magnitude_bits(x);
  if (a >= 0x47800000u) {  // 65536 and above, inf, nan
    const uint32_t top = a > kInfinityBits ? 0x7e00u | (a >> 13 & 0x3ffu) : 0x7c00u;
    return static_cast<uint16_t>(sign | top);
  }
  if (a >= 0x38800000u) {  // normal halves: move the exponent, round 13 bits away
    const uint32_t rounded = a - 0x38000000u + 0xfffu + (a >> 13 & 1u);
    return static_cast<uint16_t>(sign | rounded >> 13);
  }
  // Subnormal halves are multiples of 2^-24. Adding 0.5 makes the float's last bit worth just that, so the addition rounds.
  const float aligned = float_from_bits(a) + 0.5f;
  return static_cast<uint16_t>(sign | (float_bits(aligned) - 0x3f000000u));
}

static inline float from_float16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t a = half & 0x7fffu;
  if (a >= 0x7c00u) return float_from_bits(sign | kInfinityBits | (a & 0x3ffu) << 13);
  if (a >= 0x0400u) return float_from_bits(sign | ((a << 13) + 0x38000000u));
  return float_from_bits(sign | float_bits(static_cast<float>(a) * 0x1p-24f));
}

}  // namespace thinwire
