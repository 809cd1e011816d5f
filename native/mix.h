// The finalizer of splitmix64: 64 bits that depend on all bits of x.
#pragma once

#include <cstdint>

namespace thinwire {

static inline uint64_t mix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

}  // namespace thinwire
