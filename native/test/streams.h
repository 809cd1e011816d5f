// What tests of integer codes share: streams as strings of '0' and '1', and room for what they claim to hold.
#pragma once

#include <memory>
#include <string>

#include "kernels.h"
#include "tools.h"

namespace thinwire::test {

inline std::string low_bits(uint64_t value, unsigned nbits) {
  std::string text;
  for (unsigned i = nbits; i-- > 0;) text += (value >> i & 1) != 0 ? '1' : '0';
  return text;
}

inline Bytes to_bytes(const std::string& bits) {
  Bytes bytes((bits.size() + 7) / 8);
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bits[i] == '1') bytes[i / 8] = static_cast<uint8_t>(bytes[i / 8] | 0x80u >> i % 8);
  }
  return bytes;
}

// Room for what a stream claims to hold. A stream that claims more than this test ever writes gets none, and must
// be refused without it.
constexpr size_t kMostRoom = 1 << 20;

template <class T>
std::unique_ptr<T[]> room_for(size_t count) {
  return count > kMostRoom ? nullptr : exact<T>(count);
}

inline bool same(const Fault& a, const Fault& b) {
  return a.what == b.what && a.found == b.found && a.expected == b.expected;
}

}  // namespace thinwire::test
