// The magnitudes that the entries of a chunk can have, as 16 bits: the low 11 are the low level, the bits 20 to 30 of that
// float; the others how far above it the high one is, in steps that the logarithm is cut into.
//
// Levels between the two lie at equal distances of float bits, which is nearly a geometric series. All of it is integer
// arithmetic. Everything is `static`, for the reason that bytes.h gives.
#pragma once

#include <cstdint>

#include "bytes.h"

namespace thinwire {

constexpr unsigned kLevelShift = 20;          // an eighth of an octave is 1
constexpr uint32_t kLeastNormal = 0x00800000u;  // the smallest magnitude that is taken
constexpr uint32_t kLeastLevel = kLeastNormal >> kLevelShift;
// 2^100. Larger ones are sent as this: whatever peers send, sums of theirs stay far from overflow.
constexpr uint32_t kMostLevel = (127 + 100) << 3;
constexpr unsigned kLowBits = 11;
constexpr uint32_t kFineSpans = 16, kMostSpan = 31;

// What a span stands for: eighths of an octave up to two octaves, and halves of one beyond, up to 9.5.
static inline uint32_t span_width(uint32_t span) { return span <= kFineSpans ? span : 4 * span - 3 * kFineSpans; }
static inline uint32_t low_of(uint16_t levels) { return levels & ((1u << kLowBits) - 1); }
static inline uint32_t span_of(uint16_t levels) { return levels >> kLowBits; }

// The level with this number, from 0 to `top`, the highest.
static inline float level_of(uint16_t levels, uint32_t number, uint32_t top) {
  const uint32_t width = span_width(span_of(levels)) << kLevelShift;
  return float_from_bits((low_of(levels) << kLevelShift) + width * number / top);
}

static inline uint32_t nearest_level(float magnitude) {
  const uint32_t level = (float_bits(magnitude) + (1u << (kLevelShift - 1))) >> kLevelShift;
  return level < kLeastLevel ? kLeastLevel : level > kMostLevel ? kMostLevel : level;
}

// The levels nearest to these: low <= high, both positive, or inf.
static inline uint16_t levels_for(float low, float high) {
  const uint32_t lowest = nearest_level(low), width = nearest_level(high) - lowest;
  uint32_t span = width <= kFineSpans ? width : (width + 3 * kFineSpans + 2) / 4;
  if (span > kMostSpan) span = kMostSpan;
  while (lowest + span_width(span) > kMostLevel) --span;
  return static_cast<uint16_t>(lowest | span << kLowBits);
}

}  // namespace thinwire
