// Indices that every worker can draw from a shared seed, without memory: a keyed permutation of the smallest power
// of two that covers n, of which the first k images below n are taken.

#include "kernels.h"
#include "mix.h"

namespace thinwire {
namespace {

constexpr unsigned kRounds = 8;
// A network with halves of a bit or two reaches only some of the permutations, so tiny tensors use part of 256.
constexpr unsigned kMinBits = 8;

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

// A Feistel network over numbers of low_bits + high_bits bits, the halves differing by at most one bit.
struct Permutation {
  uint64_t key[kRounds];
  unsigned low_bits;
  unsigned high_bits;
};

Permutation keyed_permutation(uint64_t seed, unsigned bits) {
  Permutation permutation{};
  // Mixed before use, since otherwise seeds that differ by kGolden would share all keys but one.
  const uint64_t start = mix64(seed + kGolden);
  for (unsigned i = 0; i < kRounds; ++i) permutation.key[i] = mix64(start + (i + 1) * kGolden);
  permutation.low_bits = bits - bits / 2;
  permutation.high_bits = bits / 2;
  return permutation;
}

// `nbits` bits that depend on all of half and key.
uint64_t scramble(uint64_t half, uint64_t key, unsigned nbits) {
  uint64_t z = (half ^ key) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 32)) * 0x94d049bb133111ebu;
  return z >> (64 - nbits);
}

uint64_t permute(const Permutation& permutation, uint64_t x) {
  uint64_t low = x & ((uint64_t{1} << permutation.low_bits) - 1);
  uint64_t high = x >> permutation.low_bits;
  for (unsigned i = 0; i < kRounds; i += 2) {
    high ^= scramble(low, permutation.key[i], permutation.high_bits);
    low ^= scramble(high, permutation.key[i + 1], permutation.low_bits);
  }
  return high << permutation.low_bits | low;
}

unsigned covering_bits(size_t n) {
  unsigned bits = kMinBits;
  while (uint64_t{1} << bits < n) ++bits;
  return bits;
}

}  // namespace

void random_indices(uint64_t seed, size_t n, size_t k, uint32_t* index) {
  const unsigned bits = covering_bits(n);
  const Permutation permutation = keyed_permutation(seed, bits);
  const uint64_t domain = uint64_t{1} << bits;
  size_t taken = 0;
  // Each image is written and kept only if it is below n: no branch to mispredict.
  for (uint64_t x = 0; taken < k && x < domain; ++x) {
    const uint64_t image = permute(permutation, x);
    index[taken] = static_cast<uint32_t>(image);
    taken += image < n;
  }
}

}  // namespace thinwire
