#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "dispatch.h"
#include "kernels.h"
#include "memory.h"
#include "pool.h"

namespace thinwire {
namespace {

constexpr size_t kHeader = 8;
// Larger scales are sent as this one, and refused: whatever peers send, sums of theirs stay far from overflow.
constexpr float kMaxScale = 0x1p100f;

size_t bit_bytes(size_t bits) { return bits / 8 + (bits % 8 != 0); }

size_t count_runs(size_t n) { return n / kRun + (n % kRun != 0); }

uint64_t count_ones(const uint8_t* bytes, size_t nbytes) {
  uint64_t ones = 0;
  for (size_t i = 0; i < nbytes; ++i) ones += static_cast<uint64_t>(__builtin_popcount(bytes[i]));
  return ones;
}

SignView view_of(const uint8_t* payload, size_t n) {
  const size_t block = load<uint32_t>(payload);
  const uint8_t* scales = payload + kHeader;
  const uint8_t* signs = scales + 4 * sign_scales(n, block);
  return {block, scales, signs, load<uint32_t>(payload + 4) == 0 ? nullptr : signs + bit_bytes(n)};
}

std::vector<SignView> views_of(const uint8_t* const* payloads, size_t count, size_t n) {
  std::vector<SignView> views(count);
  for (size_t w = 0; w < count; ++w) views[w] = view_of(payloads[w], n);
  return views;
}

SignView last_view(size_t n, size_t block, const float* scales) {
  return {sign_block(n, block), reinterpret_cast<const uint8_t*>(scales), nullptr, nullptr};
}

// What sign_runs_agree compares at most.
constexpr size_t kSampledRuns = 64;

bool run_agrees(SignRun run, const float* x, size_t count) {
  for (size_t j = 0; j < count; ++j) {
    const uint32_t sign = static_cast<uint32_t>(run.signs >> j & 1) << 31;
    if (float_bits(x[j]) != (sign | float_bits(run.magnitude))) return false;
  }
  return true;
}

// Ranges of whole units that also end at whole bytes of the zero map.
size_t granule_of(size_t unit) { return unit % (8 * kRun) == 0 ? unit : 8 * unit; }

// The sums and live counts of a payload being written, and where its parts go.
class Encoding {
 public:
  Encoding(size_t n, SignScaling scaling, size_t block, uint8_t* payload)
      : n_(n),
        block_(sign_block(n, block)),
        unit_(block_ == 0 ? kGrain : block_),
        stretch_(scaling.stretch),
        payload_(payload),
        sums_((n + unit_ - 1) / unit_),
        live_(sums_.size()),
        squares_(sums_.size()) {
    std::fill_n(sums_.data(), sums_.size(), 0.0);
    std::fill_n(live_.data(), live_.size(), uint64_t{0});
    uint8_t* signs = payload + kHeader + 4 * sign_scales(n, block_);
    std::memset(signs + bit_bytes(n), 0, bit_bytes(count_runs(n)));
    job_ = {n, unit_, scaling.mean, signs, signs + bit_bytes(n), sums_.data(), live_.data(), squares_.data()};
  }

  // encode(job, begin, end) writes signs, zero map, sums and live counts of a range.
  template <class Encode>
  void run(Encode encode) {
    const size_t granule = granule_of(unit_);
    parallel(n_, granule, count_parts(n_, granule),
             [&](Range range) { encode(job_, range.begin, range.end); });
  }

  // Of the gradient, after a step.
  double squares() const { return std::accumulate(squares_.data(), squares_.data() + squares_.size(), 0.0); }

  // Writes header and scales, computed from the sums; `values` are the encoded ones. Returns the payload's size,
  // or 0 if a sum is not finite.
  size_t finish(const float* values, float* scales) {
    for (size_t unit = 0; unit < sums_.size(); ++unit) {
      const size_t begin = unit * unit_;
      // Floats may overflow on the way to a sum that does not; sum_abs takes the slow road then.
      if (!std::isfinite(sums_[unit])) sums_[unit] = sum_abs(values + begin, std::min(unit_, n_ - begin));
      if (!std::isfinite(sums_[unit])) return 0;
    }
    write_scales(scales);
    const uint64_t zero_runs = count_ones(job_.zero_map, bit_bytes(count_runs(n_)));
    store(payload_, static_cast<uint32_t>(block_));
    store(payload_ + 4, static_cast<uint32_t>(zero_runs));
    const uint8_t* end = job_.zero_map + (zero_runs == 0 ? 0 : bit_bytes(count_runs(n_)));
    return static_cast<size_t>(end - payload_);
  }

 private:
  void write_scales(float* scales) {
    const size_t units_per_scale = block_ == 0 ? sums_.size() : 1;
    for (size_t s = 0; s < sign_scales(n_, block_); ++s) {
      double sum = 0.0;
      uint64_t live = 0;
      for (size_t unit = s * units_per_scale; unit < (s + 1) * units_per_scale; ++unit) {
        sum += sums_[unit];
        live += live_[unit];
      }
      const double mean = live == 0 ? 0.0 : sum / static_cast<double>(live);
      const double size = job_.scale == SignScale::kL1 ? mean : std::sqrt(mean);
      const auto scale = static_cast<float>(std::min(stretch_ * size, static_cast<double>(kMaxScale)));
      store(payload_ + kHeader + 4 * s, scale);
      if (scales != nullptr) scales[s] = scale;
    }
  }

  size_t n_, block_, unit_;
  double stretch_;
  uint8_t* payload_;
  Scratch<double> sums_;
  Scratch<uint64_t> live_;
  Scratch<double> squares_;
  SignJob job_{};
};

Fault check_scales(const uint8_t* scales, size_t count) {
  for (size_t s = 0; s < count; ++s) {
    if (load<uint32_t>(scales + 4 * s) > float_bits(kMaxScale)) return {"a scale is negative, above 2^100 or nan"};
  }
  return {};
}

bool has_padding(const uint8_t* bytes, size_t bits) {
  return bits % 8 != 0 && bytes[bits / 8] >> (bits % 8) != 0;
}

// A scale that no element uses must be zero, or one tensor would have many payloads.
Fault check_unused_scales(const SignView& view, size_t n) {
  const size_t step = view.block == 0 ? n : view.block;
  for (size_t begin = 0; begin < n; begin += step) {
    bool used = false;
    for (size_t i = begin; i < std::min(n, begin + step) && !used; i += kRun) used = !run_is_zero(view, i);
    if (!used && load<uint32_t>(view.scales + 4 * (begin / step)) != 0) return {"a scale without elements is not zero"};
  }
  return {};
}

Fault check_zero_map(const SignView& view, size_t n, uint32_t zero_runs) {
  const size_t runs = count_runs(n);
  if (has_padding(view.zero_map, runs)) return {"padding bits of the zero map are not zero"};
  const uint64_t marked = count_ones(view.zero_map, bit_bytes(runs));
  if (marked != zero_runs) return {"runs in the zero map", marked, zero_runs};
  for (size_t i = 0; i < n; i += kRun) {
    const size_t count = n - i < kRun ? n - i : kRun;
    if (run_is_zero(view, i) && count_ones(view.signs + i / 8, bit_bytes(count)) != 0) {
      return {"a run of zeros has signs"};
    }
  }
  return check_unused_scales(view, n);
}

}  // namespace

size_t onebit_max_nbytes(size_t n, size_t block) {
  return kHeader + 4 * sign_scales(n, block) + bit_bytes(n) + bit_bytes(count_runs(n));
}

size_t onebit_encode(const float* x, size_t n, SignScaling scaling, size_t block, uint8_t* payload) {
  Encoding encoding(n, scaling, block, payload);
  encoding.run([x](const SignJob& job, size_t begin, size_t end) { kernels().sign_encode(x, job, begin, end); });
  return encoding.finish(x, nullptr);
}

Fault onebit_check(const uint8_t* payload, size_t nbytes, size_t n) {
  if (nbytes < kHeader) return {"nbytes (at least the header)", nbytes, kHeader};
  const size_t block = load<uint32_t>(payload);
  if (block % kRun != 0) return {"block is not a multiple of 64"};
  if (block != 0 && block >= n) return {"block (below numel)", block, n};
  const uint32_t zero_runs = load<uint32_t>(payload + 4);
  const size_t scales = sign_scales(n, block);
  const size_t expected = kHeader + 4 * scales + bit_bytes(n) + (zero_runs == 0 ? 0 : bit_bytes(count_runs(n)));
  if (nbytes != expected) return {"nbytes", nbytes, expected};
  const SignView view = view_of(payload, n);
  if (const Fault fault = check_scales(view.scales, scales)) return fault;
  if (has_padding(view.signs, n)) return {"padding bits of the signs are not zero"};
  return zero_runs == 0 ? Fault{} : check_zero_map(view, n, zero_runs);
}

void onebit_decode(const uint8_t* payload, size_t n, float* dst) {
  const SignView view = view_of(payload, n);
  parallel(n, kGrain, count_parts(n, kGrain),
           [&](Range range) { kernels().sign_decode(view, range.begin, range.end, dst); });
}

void onebit_add(const uint8_t* payload, size_t n, float weight, float* dst) {
  const SignView view = view_of(payload, n);
  parallel(n, kGrain, count_parts(n, kGrain),
           [&](Range range) { kernels().sign_add(view, range.begin, range.end, weight, dst); });
}

void onebit_sum(const uint8_t* const* payloads, size_t count, size_t n, float weight, float* dst) {
  const std::vector<SignView> views = views_of(payloads, count, n);
  const SignSum sum{views.data(), count, weight};
  parallel(n, kGrain, count_parts(n, kGrain),
           [&](Range range) { kernels().sign_sum(sum, range.begin, range.end, dst); });
}

size_t onebit_step(const float* gradient, size_t n, Gains gains, SignScaling scaling, size_t block, Advance wanted,
                   Advance scales, uint8_t* payload, double& squares, Carried carried) {
  const SignStep step{gradient, gains, wanted, last_view(n, block, scales.from), carried};
  Encoding encoding(n, scaling, block, payload);
  encoding.run([&](const SignJob& job, size_t begin, size_t end) { kernels().sign_step(step, job, begin, end); });
  squares = exact_squares(encoding.squares(), gradient, n);
  return encoding.finish(wanted.to, scales.to);
}

size_t onebit_sum_step(const uint8_t* const* payloads, size_t count, float weight, size_t n, float keep,
                       SignScaling scaling, size_t block, Advance wanted, Advance scales, uint8_t* payload) {
  const std::vector<SignView> views = views_of(payloads, count, n);
  const SignSumStep step{{views.data(), count, weight}, keep, wanted, last_view(n, block, scales.from)};
  Encoding encoding(n, scaling, block, payload);
  encoding.run([&](const SignJob& job, size_t begin, size_t end) { kernels().sign_sum_step(step, job, begin, end); });
  return encoding.finish(wanted.to, scales.to);
}

bool sign_runs_agree(const uint8_t* runs, const float* x, size_t n) {
  const size_t count = count_runs(n), samples = std::min(count, kSampledRuns);
  for (size_t sample = 0; sample < samples; ++sample) {
    const size_t i = kRun * (sample * count / samples);
    if (!run_agrees(load_sign_run(runs, i), x + i, std::min(kRun, n - i))) return false;
  }
  return true;
}

void onebit_settle(float* wanted, size_t n, size_t block, const float* scales) {
  const SignView last = last_view(n, block, scales);
  parallel(n, kGrain, count_parts(n, kGrain),
           [&](Range range) { kernels().sign_settle(last, range.begin, range.end, wanted); });
}

}  // namespace thinwire
