#include <cmath>
#include <vector>

#include "dispatch.h"
#include "kernels.h"
#include "pool.h"

namespace thinwire {
namespace {

// Only reached when the floats of a span together exceed what a float holds.
double slow_sum(const float* x, size_t n, SignScale power) {
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(x[i] < 0.0f ? -x[i] : x[i]);
    sum += power == SignScale::kL1 ? value : value * value;
  }
  return sum;
}

double sum(const float* x, size_t n, SignScale power) {
  std::vector<double> grains((n + kGrain - 1) / kGrain);
  parallel(n, kGrain, count_parts(n, kGrain), [&](Range range) {
    for (size_t i = range.begin; i < range.end; i += kGrain) {
      const size_t count = range.end - i < kGrain ? range.end - i : kGrain;
      const double total = kernels().sum(x + i, count, power);
      grains[i / kGrain] = std::isfinite(total) ? total : slow_sum(x + i, count, power);
    }
  });
  double total = 0.0;
  for (double grain : grains) total += grain;
  return total;
}

uint32_t max_magnitude(const float* x, size_t n) {
  const size_t parts = count_parts(n, kGrain);
  std::vector<uint32_t> largest(parts);
  parallel(n, kGrain, parts, [&](Range range) {
    largest[range.part] = kernels().max_magnitude(x + range.begin, range.end - range.begin);
  });
  uint32_t top = 0;
  for (uint32_t part : largest) top = part > top ? part : top;
  return top;
}

}  // namespace

bool all_finite(const float* x, size_t n) { return max_magnitude(x, n) < kInfinityBits; }

double sum_abs(const float* x, size_t n) { return sum(x, n, SignScale::kL1); }

double sum_squares(const float* x, size_t n) { return sum(x, n, SignScale::kL2); }

double exact_squares(double quick, const float* x, size_t n) {
  return std::isfinite(quick) ? quick : sum_squares(x, n);
}

float max_abs(const float* x, size_t n) { return float_from_bits(max_magnitude(x, n)); }

}  // namespace thinwire
