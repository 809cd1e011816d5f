// Sums for each grain of a tensor: their total does not depend on threads.
#pragma once

#include <numeric>

#include "kernels.h"
#include "memory.h"

namespace thinwire {

class GrainSums {
 public:
  explicit GrainSums(size_t n) : sums_((n + kGrain - 1) / kGrain) {}
  double* data() { return sums_.data(); }
  double total() const { return std::accumulate(sums_.data(), sums_.data() + sums_.size(), 0.0); }

 private:
  Scratch<double> sums_;
};

// The sum of squares of a gradient that was read once, from what was summed in floats.
inline double squares_of(Spent gradient, size_t n, const GrainSums& sums) {
  return gradient.clear ? sums.total() : exact_squares(sums.total(), gradient.data, n);
}

}  // namespace thinwire
