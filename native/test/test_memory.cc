// Scratch memory: every byte of it can be written, and nobody else has it meanwhile.

#include "memory.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "check.h"

namespace thinwire::test {
namespace {

// Around the sizes from which on memory is kept, and beyond which it is not.
constexpr size_t kMost = size_t{1} << 25;
constexpr size_t kSizes[] = {0, 1, 4095, 4096, 4097, 65536, 65537, kMost - 1, kMost, kMost + 1};

void every_byte_is_there() {
  for (int again = 0; again < 2; ++again) {
    for (const size_t nbytes : kSizes) {
      Scratch<uint8_t> scratch(nbytes);
      CHECK_EQ(scratch.size(), nbytes);
      std::fill_n(scratch.data(), nbytes, uint8_t{7});
    }
  }
}

void two_at_once_are_apart() {
  for (const size_t nbytes : kSizes) {
    Scratch<uint8_t> one(nbytes), other(nbytes);
    std::fill_n(one.data(), nbytes, uint8_t{1});
    std::fill_n(other.data(), nbytes, uint8_t{2});
    CHECK(std::all_of(one.data(), one.data() + nbytes, [](uint8_t x) { return x == 1; }));
  }
}

void moving_moves_the_memory() {
  Scratch<float> one(5000);
  one[4999] = 3.0f;
  const float* place = one.data();
  Scratch<float> other = std::move(one);
  CHECK(other.data() == place);
  one = Scratch<float>(6000);
  one[5999] = 4.0f;
  CHECK_EQ(other[4999], 3.0f);
  other = std::move(one);
  CHECK_EQ(other[5999], 4.0f);
}

void threads_have_their_own() {
  std::atomic<int> disturbed{0};
  std::vector<std::thread> threads;
  for (uint8_t number = 0; number < 4; ++number) {
    threads.emplace_back([number, &disturbed] {
      for (int again = 0; again < 100; ++again) {
        Scratch<uint8_t> scratch(10000);
        std::fill_n(scratch.data(), scratch.size(), number);
        for (size_t i = 0; i < scratch.size(); ++i) disturbed += scratch[i] == number ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(disturbed.load(), 0);
}

}  // namespace

Suite memory_suite() {
  return {"test_memory",
          {{"every_byte_is_there", every_byte_is_there},
           {"two_at_once_are_apart", two_at_once_are_apart},
           {"moving_moves_the_memory", moving_moves_the_memory},
           {"threads_have_their_own", threads_have_their_own}}};
}

}  // namespace thinwire::test
