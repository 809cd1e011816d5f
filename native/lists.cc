#include <algorithm>
#include <vector>

#include "dispatch.h"
#include "kernels.h"

namespace thinwire {
namespace {

constexpr size_t kAhead = 16;  // entries: a miss takes longer than a few additions

}  // namespace

size_t nonzero(const float* x, size_t n, uint32_t* index, float* value, size_t capacity) {
  constexpr size_t kStretch = 4096;
  uint32_t stretch_index[kStretch + 16];
  float stretch_value[kStretch + 16];
  size_t total = 0;
  for (size_t begin = 0; begin < n; begin += kStretch) {
    Found found{stretch_index, stretch_value, nullptr, kStretch + 16, 0, false};
    kernels().collect(x, begin, std::min(n, begin + kStretch), 1, found);
    const size_t room = std::min(found.count, capacity - std::min(capacity, total));
    std::copy_n(stretch_index, room, index + std::min(capacity, total));
    std::copy_n(stretch_value, room, value + std::min(capacity, total));
    total += found.count;
  }
  return total;
}

void scatter_add(const uint32_t* index, const float* value, size_t count, float weight, float* dst) {
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(dst + index[i + kAhead], 1);
    dst[index[i]] += value[i] * weight;
  }
}

void scatter(const uint32_t* index, const float* value, size_t count, float* dst) {
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(dst + index[i + kAhead], 1);
    dst[index[i]] = value[i];
  }
}

size_t sparse_merge(const SparseList* lists, size_t count, float weight, uint32_t* index, float* value) {
  constexpr uint64_t kEnd = ~uint64_t{0};
  std::vector<size_t> at(count);
  const auto head = [&](size_t w) { return at[w] < lists[w].count ? uint64_t{lists[w].index[at[w]]} : kEnd; };
  size_t written = 0;
  for (;;) {
    uint64_t lowest = kEnd;
    for (size_t w = 0; w < count; ++w) lowest = std::min(lowest, head(w));
    if (lowest == kEnd) return written;
    float sum = 0.0f;
    for (size_t w = 0; w < count; ++w) {
      if (head(w) == lowest) sum += lists[w].value[at[w]++] * weight;
    }
    if (sum == 0.0f) continue;
    index[written] = static_cast<uint32_t>(lowest);
    value[written++] = sum;
  }
}

}  // namespace thinwire
