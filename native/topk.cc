#include <algorithm>
#include <vector>

#include "dispatch.h"
#include "grain_sums.h"
#include "kernels.h"
#include "memory.h"
#include "pool.h"
#include "threshold.h"

namespace thinwire {
namespace {

constexpr uint32_t kNothing = 0x7fffffffu;  // a threshold that no finite number reaches

// Room for what one range finds.
class Finds {
 public:
  Finds(size_t capacity, bool with_velocity)
      : index_(capacity), value_(capacity), velocity_(with_velocity ? capacity : 0) {
    found = {index_.data(), value_.data(), velocity_.data(), capacity, 0, false};
  }
  Found found{};

 private:
  Scratch<uint32_t> index_;
  Scratch<float> value_, velocity_;
};

struct Output {
  uint32_t* index;
  float* value;
  size_t count;
  void add(uint32_t i, float x) {
    index[count] = i;
    value[count++] = x;
  }
};

// The k largest of a number of magnitudes: everything above `threshold`, and the first `ties` that equal it.
struct Cut {
  uint32_t threshold;
  size_t ties;
  bool takes(float x) {
    const uint32_t magnitude = magnitude_bits(x);
    if (magnitude != threshold) return magnitude > threshold;
    if (ties == 0) return false;
    --ties;
    return true;
  }
};

Cut cut_at(const std::vector<Finds>& finds, size_t total, size_t k) {
  if (total <= k) return {0, 0};
  Scratch<uint32_t> magnitudes(total);
  size_t n = 0;
  for (const Finds& part : finds) {
    for (size_t i = 0; i < part.found.count; ++i) magnitudes[n++] = magnitude_bits(part.found.value[i]);
  }
  const uint32_t threshold = kth_largest(magnitudes.data(), n, k);
  const auto above = std::count_if(magnitudes.data(), magnitudes.data() + n, [&](uint32_t x) { return x > threshold; });
  return {threshold, k - static_cast<size_t>(above)};
}

// The exact cut by two more counting passes, in bounded memory whatever the values are.
Cut radix_cut(const float* x, size_t n, uint32_t prefix, size_t k) {
  prefix = prefix << 10 | bin_of(histogram(x, n, 10, 1024, prefix), k);
  prefix = prefix << 10 | bin_of(histogram(x, n, 0, 1024, prefix), k);
  return {prefix, prefix == 0 ? 0 : k};  // zeros are never taken
}

// A problem knows a tensor before the pass (`value`), how to pass over it and gather (`collect`), the tensor after the
// pass (`values`), and what it means that an element of that is taken, or that a gathered one is not.
template <class Problem>
class Selection {
 public:
  Selection(const Problem& problem, size_t n, size_t k, Select select) : problem_(problem), n_(n), k_(k) {
    const bool sampled = select == Select::kSampled;
    const uint32_t threshold = sampled ? likely_threshold(n, k, [&](size_t i) { return problem.value(i); }) : kNothing;
    gather(threshold);
    enough_ = sampled && !overflow_ && (total_ >= k || threshold <= 1);
  }

  size_t write(uint32_t* index, float* value) {
    Output output{index, value, 0};
    enough_ ? write_found(output) : write_by_radix(output);
    return output.count;
  }

 private:
  void gather(uint32_t threshold) {
    const size_t parts = count_parts(n_, kGrain);
    finds_.reserve(parts);
    for (size_t part = 0; part < parts; ++part) finds_.emplace_back(std::min(n_, 4 * k_ + 4096) + 16, Problem::kVelocity);
    gather_with([&](Range range) { problem_.collect(range.begin, range.end, threshold, finds_[range.part].found); });
  }

  template <class Body>
  void gather_with(Body body) {
    parallel(n_, kGrain, finds_.size(), body);
    for (const Finds& part : finds_) {
      total_ += part.found.count;
      overflow_ = overflow_ || part.found.overflow;
    }
  }

  void write_found(Output& output) {
    Cut cut = cut_at(finds_, total_, k_);
    for (const Finds& part : finds_) {
      for (size_t i = 0; i < part.found.count; ++i) {
        if (cut.takes(part.found.value[i])) {
          output.add(part.found.index[i], part.found.value[i]);
        } else {
          problem_.put_back(part.found, i);
        }
      }
    }
  }

  void write_by_radix(Output& output) {
    for (const Finds& part : finds_) {
      for (size_t i = 0; i < part.found.count; ++i) problem_.put_back(part.found, i);
    }
    const float* x = problem_.values();
    size_t rank = k_;
    const uint32_t bin = bin_of(histogram(x, n_, kTopShift, kTopBins, 0), rank);
    Cut cut{0, 0};
    if (bin > 0 && gather_plain(x, bin << kTopShift)) {
      cut = cut_at(finds_, total_, k_);
      for (const Finds& part : finds_) write_taken(part.found, cut, output);
    } else {
      cut = radix_cut(x, n_, bin, rank);
      for (size_t i = 0; i < n_ && output.count < k_; ++i) {
        if (cut.takes(x[i])) output.add(static_cast<uint32_t>(i), x[i]);
      }
    }
    for (size_t i = 0; i < output.count; ++i) problem_.take(output.index[i]);
  }

  // Everything that the first counting pass leaves in the running, if that is few enough.
  bool gather_plain(const float* x, uint32_t threshold) {
    total_ = 0;
    overflow_ = false;
    for (Finds& part : finds_) {
      part.found.count = 0;
      part.found.overflow = false;
    }
    gather_with([&](Range range) { kernels().collect(x, range.begin, range.end, threshold, finds_[range.part].found); });
    return !overflow_;
  }

  static void write_taken(const Found& found, Cut& cut, Output& output) {
    for (size_t i = 0; i < found.count; ++i) {
      if (cut.takes(found.value[i])) output.add(found.index[i], found.value[i]);
    }
  }

  const Problem& problem_;
  size_t n_, k_, total_ = 0;
  std::vector<Finds> finds_;
  bool overflow_ = false, enough_ = false;
};

struct PlainProblem {
  static constexpr bool kVelocity = false;
  const float* x;
  float value(size_t i) const { return x[i]; }
  const float* values() const { return x; }
  void collect(size_t begin, size_t end, uint32_t threshold, Found& found) const {
    kernels().collect(x, begin, end, threshold, found);
  }
  void put_back(const Found&, size_t) const {}
  void take(size_t) const {}
};

struct ResidualProblem {
  static constexpr bool kVelocity = false;
  ResidualStep step;
  float value(size_t i) const { return step.residual.from[i] * step.gains.keep + step.gradient.data[i] * step.gains.gain; }
  const float* values() const { return step.residual.to; }
  void collect(size_t begin, size_t end, uint32_t threshold, Found& found) const {
    kernels().collect_residual(step, begin, end, threshold, found);
  }
  void put_back(const Found& found, size_t i) const { step.residual.to[found.index[i]] = found.value[i]; }
  void take(size_t i) const { step.residual.to[i] = 0.0f; }
};

struct DgcProblem {
  static constexpr bool kVelocity = true;
  DgcStep step;
  // The threshold must be judged on the value after this step's momentum: on the old residual it would be far too low.
  float value(size_t i) const {
    const float g = step.gradient.data[i] * step.gains.gain;
    const float m = step.step.momentum;
    const float velocity = step.velocity.from[i];
    const float increment = step.step.nesterov ? (velocity + g) * m + g : velocity * m + g;
    return step.residual.from[i] * step.gains.keep + increment;
  }
  const float* values() const { return step.residual.to; }
  void collect(size_t begin, size_t end, uint32_t threshold, Found& found) const {
    kernels().collect_dgc(step, begin, end, threshold, found);
  }
  void put_back(const Found& found, size_t i) const {
    step.residual.to[found.index[i]] = found.value[i];
    step.velocity.to[found.index[i]] = found.velocity[i];
  }
  void take(size_t i) const {
    step.residual.to[i] = 0.0f;
    if (step.step.mask) step.velocity.to[i] = 0.0f;
  }
};

template <class Problem>
size_t select_topk(const Problem& problem, size_t n, size_t k, Select select, uint32_t* index, float* value) {
  if (n == 0) return 0;
  Selection<Problem> selection(problem, n, std::max<size_t>(k, 1), select);
  return selection.write(index, value);
}

}  // namespace

size_t topk(const float* x, size_t n, size_t k, Select select, uint32_t* index, float* value) {
  return select_topk(PlainProblem{x}, n, k, select, index, value);
}

size_t residual_topk(Spent gradient, size_t n, size_t k, Select select, Gains gains, Advance residual, uint32_t* index,
                     float* value, double& squares) {
  GrainSums sums(n);
  const size_t count = select_topk(ResidualProblem{{gradient, gains, residual, sums.data()}}, n, k, select, index, value);
  squares = squares_of(gradient, n, sums);
  return count;
}

size_t residual_topk_of_list(SparseList gradient, size_t n, size_t k, Select select, float* residual, float* before,
                             uint32_t* index, float* value) {
  for (size_t i = 0; i < gradient.count; ++i) {
    float& at = residual[gradient.index[i]];
    before[i] = at;
    at += gradient.value[i];
  }
  const size_t count = topk(residual, n, k, select, index, value);
  for (size_t i = 0; i < count; ++i) residual[index[i]] = 0.0f;
  return count;
}

size_t dgc_topk(Spent gradient, size_t n, size_t k, Select select, Gains gains, MomentumStep step, Advance velocity,
                Advance residual, uint32_t* index, float* value, double& squares) {
  GrainSums sums(n);
  const DgcProblem problem{{gradient, gains, step, velocity, residual, sums.data()}};
  const size_t count = select_topk(problem, n, k, select, index, value);
  squares = squares_of(gradient, n, sums);
  return count;
}

uint32_t sampled_threshold(const float* x, size_t n, double ratio, uint64_t seed) {
  if (n == 0) return 0;
  Scratch<uint32_t> magnitudes = sample(n, seed, [x](size_t i) { return x[i]; });
  const size_t wanted = static_cast<size_t>(ratio * static_cast<double>(magnitudes.size()));
  return kth_largest(magnitudes.data(), magnitudes.size(), std::clamp<size_t>(wanted, 1, magnitudes.size()));
}

}  // namespace thinwire
