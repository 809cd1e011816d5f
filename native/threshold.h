// The magnitude that the k largest elements reach, by selection, judged by a sample, or by counting.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "bytes.h"
#include "kernels.h"
#include "memory.h"
#include "mix.h"
#include "pool.h"

namespace thinwire {

constexpr unsigned kTopShift = 20;  // 11 bits of a magnitude: the exponent and 3 bits more
constexpr size_t kTopBins = 2048;

// The k-th largest of a, 1 <= k <= n, which may reorder a. A histogram first, so that selection works on a few.
inline uint32_t kth_largest(uint32_t* a, size_t n, size_t k) {
  uint32_t bins[kTopBins] = {};
  for (size_t i = 0; i < n; ++i) ++bins[a[i] >> kTopShift];
  size_t bin = kTopBins - 1;
  for (; bins[bin] < k; --bin) k -= bins[bin];
  uint32_t* end = std::partition(a, a + n, [bin](uint32_t x) { return x >> kTopShift == bin; });
  uint32_t* kth = a + (k - 1);
  std::nth_element(a, kth, end, std::greater<uint32_t>());
  return *kth;
}

constexpr size_t kLine = 16;          // floats in a cache line: sampled together, paid for once
constexpr size_t kAll = 16384;        // tensors up to this size are their own sample
constexpr size_t kSamples = 32768;

// Magnitudes of a sample of n elements: whole cache lines, one at a random place of each of equally many stretches.
template <class Value>
Scratch<uint32_t> sample(size_t n, uint64_t seed, Value value) {
  if (n <= kAll) {
    Scratch<uint32_t> magnitudes(n);
    for (size_t i = 0; i < n; ++i) magnitudes[i] = magnitude_bits(value(i));
    return magnitudes;
  }
  const size_t lines = n / kLine;
  const size_t groups = std::clamp(n / 128, kAll / 2, kSamples) / kLine;
  const size_t stretch = lines / groups;
  Scratch<uint32_t> magnitudes(groups * kLine);
  for (size_t g = 0; g < groups; ++g) {
    const size_t begin = (g * stretch + mix64(seed + g) % stretch) * kLine;
    for (size_t j = 0; j < kLine; ++j) magnitudes[g * kLine + j] = magnitude_bits(value(begin + j));
  }
  return magnitudes;
}

// A threshold that at least k of n elements very probably reach, and not many more.
template <class Value>
uint32_t likely_threshold(size_t n, size_t k, Value value) {
  Scratch<uint32_t> magnitudes = sample(n, 0, value);
  if (magnitudes.size() == n) return kth_largest(magnitudes.data(), n, k);
  const double hits = static_cast<double>(k) * static_cast<double>(magnitudes.size()) / static_cast<double>(n);
  const size_t wanted = static_cast<size_t>(hits + 4.0 * std::sqrt(hits)) + 1;
  if (wanted >= magnitudes.size()) return 1;
  return kth_largest(magnitudes.data(), magnitudes.size(), wanted);
}

// How many elements fall into each of `bins`, by `shift`ed magnitude, among those whose higher bits are `prefix`.
inline std::vector<size_t> histogram(const float* x, size_t n, unsigned shift, size_t bins, uint32_t prefix) {
  const size_t parts = count_parts(n, kGrain);
  std::vector<std::vector<uint32_t>> counts(parts, std::vector<uint32_t>(bins));
  const unsigned above = shift + static_cast<unsigned>(__builtin_ctzll(bins));
  parallel(n, kGrain, parts, [&](Range range) {
    std::vector<uint32_t>& own = counts[range.part];
    for (size_t i = range.begin; i < range.end; ++i) {
      const uint32_t magnitude = magnitude_bits(x[i]);
      if (magnitude >> above == prefix) ++own[magnitude >> shift & (bins - 1)];
    }
  });
  std::vector<size_t> total(bins);
  for (const auto& own : counts) {
    for (size_t b = 0; b < bins; ++b) total[b] += own[b];
  }
  return total;
}

// The bin of the k-th largest; k becomes its rank inside that bin.
inline uint32_t bin_of(const std::vector<size_t>& counts, size_t& k) {
  size_t bin = counts.size() - 1;
  for (; bin > 0 && counts[bin] < k; --bin) k -= counts[bin];
  return static_cast<uint32_t>(bin);
}

}  // namespace thinwire
