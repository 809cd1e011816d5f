// Tensors and instruction sets that kernel tests run over.
#pragma once

#include <cmath>
#include <new>
#include <vector>

#include "dispatch.h"
#include "kernels.h"
#include "pool.h"
#include "tools.h"

namespace thinwire::test {

// Around every width that matters, and one that two and three threads really share.
inline const std::vector<size_t>& awkward_sizes() {
  static const std::vector<size_t> sizes = {0,  1,  7,   8,   9,    15,   16,   17,   31,   32,    33,    63,
                                            64, 65, 127, 129, 1000, 4095, 4096, 4097, 4099, 65536, 65543, 400003};
  return sizes;
}

// Heavy tails, some exact zeros of both signs, and a long stretch of zeros.
inline std::vector<float> gradient(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const double sum = random.unit() + random.unit() + random.unit() - 1.5;
    x[i] = static_cast<float>(1e-3 * sum * (1.0 + 9.0 * std::fabs(sum * sum * sum)));
    if (random.chance(0.02)) x[i] = random.chance(0.5) ? 0.0f : -0.0f;
  }
  for (size_t i = n / 2; i < n / 2 + n / 8; ++i) x[i] = 0.0f;
  return x;
}

// Runs a check under every instruction set this processor has.
template <class Check>
void under_every_instruction_set(Check check_one) {
  for (const char* name : kInstructionSets) {
    if (choose_kernels(name)) check_one();
  }
}

// The same, each with 1, 2 and 3 threads.
template <class Check>
void under_every_setting(Check check_one) {
  under_every_instruction_set([&] {
    for (const size_t threads : {size_t{1}, size_t{2}, size_t{3}}) {
      set_thread_count(threads);
      check_one();
    }
  });
  set_thread_count(1);
}

inline bool same_bits(const float* a, const float* b, size_t n) { return n == 0 || std::memcmp(a, b, 4 * n) == 0; }

// Equal but for the rounding of sums in floats.
inline bool near(double a, double b) { return std::abs(a - b) <= 1e-5 * std::abs(b); }

// A copy whose first element does not lie on a vector's address, in a buffer without slack.
class Unaligned {
 public:
  explicit Unaligned(const std::vector<float>& x) : buffer_(exact<float>(x.size() + 1)) {
    std::copy(x.begin(), x.end(), data());
  }
  float* data() { return buffer_.get() + 1; }

 private:
  std::unique_ptr<float[]> buffer_;
};

// A copy that begins at a whole cache line, in a buffer without slack.
class Aligned {
 public:
  explicit Aligned(const std::vector<float>& x)
      : buffer_(static_cast<float*>(::operator new(x.size() * sizeof(float), std::align_val_t{64}))) {
    std::copy(x.begin(), x.end(), data());
  }
  float* data() { return buffer_.get(); }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> buffer_;
};

}  // namespace thinwire::test
