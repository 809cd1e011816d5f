// Little-endian numbers at any address. The wire is little-endian on every machine.
//
// Everything is `static`: this header is compiled for several instruction sets, and the linker must never
// pick one set's copy for another.
#pragma once

#include <cstdint>
#include <cstring>

namespace thinwire {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "big-endian machines would need byte swaps here");

template <class T>
static inline T load(const uint8_t* src) {
  T value;
  std::memcpy(&value, src, sizeof value);
  return value;
}

template <class T>
static inline void store(uint8_t* dst, T value) {
  std::memcpy(dst, &value, sizeof value);
}

static inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float float_from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The bits of |x|: ordered as the magnitudes are, with inf and every nan above all finite ones.
static inline uint32_t magnitude_bits(float x) { return float_bits(x) & 0x7fffffffu; }

constexpr uint32_t kInfinityBits = 0x7f800000u;

}  // namespace thinwire
