// What tests and the fuzzer share: random numbers that are the same everywhere, and buffers without slack.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace thinwire::test {

using Bytes = std::vector<uint8_t>;

// What the integer codes can hold, which is more than kMaxNumel.
constexpr size_t kWide = 0xffffffff;

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // A number below `limit`, which is not 0.
  uint64_t below(uint64_t limit) { return next() % limit; }
  // In [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  bool chance(double probability) { return unit() < probability; }

 private:
  uint64_t state_;
};

// A heap buffer of exactly `count` elements, so that AddressSanitizer sees a touch of the one after the last.
template <class T>
std::unique_ptr<T[]> exact(size_t count) {
  return std::unique_ptr<T[]>(new T[count]());
}

template <class T>
std::unique_ptr<T[]> exact_copy(const T* src, size_t count) {
  auto copy = exact<T>(count);
  std::copy_n(src, count, copy.get());
  return copy;
}

}  // namespace thinwire::test
