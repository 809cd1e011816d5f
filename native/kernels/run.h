// A run of up to 64 elements as four registers. The tail of a tensor is a run padded with zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace thinwire {

template <class V>
inline void load_run(const float* p, size_t count, typename V::F (&x)[4]) {
  if (count == kRun) {
    for (int j = 0; j < 4; ++j) x[j] = V::load(p + 16 * j);
    return;
  }
  float padded[kRun] = {};
  std::memcpy(padded, p, count * sizeof(float));
  for (int j = 0; j < 4; ++j) x[j] = V::load(padded + 16 * j);
}

template <class V>
inline void store_run(float* p, size_t count, const typename V::F (&x)[4]) {
  if (count == kRun) {
    for (int j = 0; j < 4; ++j) V::store(p + 16 * j, x[j]);
    return;
  }
  float padded[kRun];
  for (int j = 0; j < 4; ++j) V::store(padded + 16 * j, x[j]);
  std::memcpy(p, padded, count * sizeof(float));
}

// Stores runs, past the caches if that is worth it and possible: memory that was not read need not be fetched then.
template <class V>
class Writer {
 public:
  // `dst` is where a tensor of n elements begins.
  Writer(float* dst, size_t n, bool fetched)
      : dst_(dst), streams_(!fetched && n >= kGrain && reinterpret_cast<uintptr_t>(dst) % 64 == 0) {}
  ~Writer() {
    if (streams_) V::end_streams();
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  inline void store(size_t i, size_t count, const typename V::F (&x)[4]) const {
    if (streams_ && count == kRun) {
      for (int j = 0; j < 4; ++j) V::stream(dst_ + i + 16 * j, x[j]);
    } else {
      store_run<V>(dst_ + i, count, x);
    }
  }

  // The same for the sixteen elements from i on.
  inline void store_lanes(size_t i, typename V::F x) const {
    if (streams_) {
      V::stream(dst_ + i, x);
    } else {
      V::store(dst_ + i, x);
    }
  }

 private:
  float* dst_;
  bool streams_;
};

template <class V>
inline size_t run_length(size_t i, size_t end) {
  return end - i < kRun ? end - i : kRun;
}

// 64 bits of which the first `count` matter, in ceil(count / 8) bytes.
template <class V>
inline uint64_t load_bits(const uint8_t* p, size_t count) {
  uint64_t word = 0;
  if (count == kRun) {
    std::memcpy(&word, p, 8);  // of a size known at compile time, and so one instruction
  } else {
    std::memcpy(&word, p, (count + 7) / 8);
  }
  return word;
}

template <class V>
inline void store_bits(uint8_t* p, size_t count, uint64_t word) {
  if (count == kRun) {
    std::memcpy(p, &word, 8);
    return;
  }
  word &= (uint64_t{1} << count) - 1;
  std::memcpy(p, &word, (count + 7) / 8);
}

}  // namespace thinwire
