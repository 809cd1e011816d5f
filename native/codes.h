// What the readers of integer codes share.
#pragma once

#include <cstdint>

#include "bits.h"
#include "kernels.h"

namespace thinwire {
namespace {

// What a reader gives instead of a number. Both are larger than any number.
constexpr uint64_t kEndsEarly = ~uint64_t{0};
constexpr uint64_t kTooLarge = kEndsEarly - 1;

constexpr unsigned floor_log2(uint32_t value) { return 31 - static_cast<unsigned>(__builtin_clz(value)); }

// What is left of a stream after its last number must be padding: fewer than 8 bits, all zero.
Fault check_padding(const BitReader& in) {
  const uint64_t left = in.bits_left();
  if (left >= 8) return {"bytes after the bit stream", left / 8, 0};
  if (in.window() != 0) return {"padding bits of the bit stream are not zero"};
  return {};
}

}  // namespace
}  // namespace thinwire
