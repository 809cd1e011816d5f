#include <algorithm>
#include <cmath>
#include <limits>

#include "dispatch.h"
#include "kernels.h"
#include "memory.h"
#include "mix.h"
#include "pool.h"

namespace thinwire {
namespace {

constexpr size_t kHeader = 8;
// Below the one, levels per unit would overflow; above the other, a decoded level could. Tensors so small are sent
// as zeros, and magnitudes so large as the limit: the feedback keeps the difference.
constexpr float kMinScale = 0x1p-100f;
constexpr float kMaxScale = 0x1p126f;

unsigned top_level(unsigned bits) { return bits == 1 ? 1 : (1u << (bits - 1)) - 1; }

size_t plane_nbytes(size_t n, unsigned bits) { return (n / kRun * 8 + (n % kRun + 7) / 8) * bits; }

float bounded_scale(double norm) {
  if (norm < static_cast<double>(kMinScale)) return 0.0f;
  return static_cast<float>(std::min(norm, static_cast<double>(kMaxScale)));
}

// top / scale, rounded so that scale * inverse is never below top: the largest element always gets the top level.
float inverse_of(float scale, float top) {
  if (scale == 0.0f) return 0.0f;
  const float inverse = top / scale;
  return scale * inverse < top ? std::nextafter(inverse, std::numeric_limits<float>::infinity()) : inverse;
}

DitherJob encoding_job(float scale, DitherSettings settings, uint64_t seed) {
  const bool counts = settings.levels == Levels::kLinear && settings.bits > 1;
  const float top = counts ? static_cast<float>(top_level(settings.bits)) : 1.0f;
  const uint64_t key = mix64(seed + 0x9e3779b97f4a7c15u);
  return {inverse_of(scale, top), scale, settings.bits, settings.levels,
          {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}};
}

DitherJob decoding_job(const uint8_t* payload) {
  const float scale = load<float>(payload);
  const unsigned bits = payload[4];
  return {scale / static_cast<float>(top_level(bits)), scale, bits, static_cast<Levels>(payload[5]), {0, 0}};
}

size_t write_planes(const float* x, size_t n, const DitherJob& job, uint8_t* dst) {
  if (job.scale == 0.0f) {
    std::fill_n(dst, plane_nbytes(n, job.bits), uint8_t{0});
  } else {
    parallel(n, kGrain, count_parts(n, kGrain),
             [&](Range range) { kernels().dither_planes(x, job, range.begin, range.end, dst); });
  }
  return plane_nbytes(n, job.bits);
}

size_t write_elias(const float* x, size_t n, const DitherJob& job, uint8_t* dst) {
  Scratch<int8_t> codes(n);
  if (job.scale == 0.0f) {
    std::fill_n(codes.data(), n, int8_t{0});
  } else {
    parallel(n, kGrain, count_parts(n, kGrain), [&](Range range) {
      kernels().dither_codes(x, job, range.begin, range.end, codes.data() + range.begin);
    });
  }
  uint32_t count = 0;
  const size_t nbytes = elias_encode(codes.data(), n, dst + 4, &count);
  store(dst, count);
  return 4 + nbytes;
}

// What the planes of one run hold, 64 elements at a time.
struct PlaneScan {
  uint64_t any = 0;      // a bit that is set
  uint64_t invalid = 0;  // the code -2^(bits-1), which no rounding gives
  uint64_t top = 0;      // a code of the top level
};

PlaneScan scan_run(const uint8_t* planes, size_t count, unsigned bits) {
  const size_t stride = (count + 7) / 8;
  uint64_t ones = ~uint64_t{0}, low = 0, middle = 0, sign = 0;
  for (unsigned bit = 0; bit < bits; ++bit) {
    uint64_t word = 0;
    std::memcpy(&word, planes + bit * stride, stride);
    if (bit + 1 == bits) {
      sign = word;
    } else {
      ones &= word;
      (bit == 0 ? low : middle) |= word;
    }
  }
  const uint64_t positive = ~sign & ones, negative = sign & low & ~middle;
  return {sign | low | middle, sign & ~(low | middle), positive | negative};
}

Fault check_planes(const uint8_t* planes, size_t n, unsigned bits, bool zero) {
  PlaneScan seen;
  for (size_t i = 0; i < n; i += kRun) {
    const size_t count = std::min(kRun, n - i);
    const PlaneScan run = scan_run(planes + i / 8 * bits, count, bits);
    const uint64_t inside = count == kRun ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    if ((run.any & ~inside) != 0) return {"padding bits are not zero"};
    seen.any |= run.any;
    seen.invalid |= run.invalid;
    seen.top |= run.top & inside;
  }
  if (bits == 1) return zero && seen.any != 0 ? Fault{"there are codes but the scale is zero"} : Fault{};
  if (seen.invalid != 0) return {"a code is below the lowest level"};
  if (zero && seen.any != 0) return {"there are codes but the scale is zero"};
  return !zero && seen.top == 0 ? Fault{"no code has the top level"} : Fault{};
}

Fault check_elias(const uint8_t* payload, size_t nbytes, size_t n, bool zero) {
  if (nbytes < kHeader + 4) return {"nbytes (at least header and count)", nbytes, kHeader + 4};
  const uint32_t count = load<uint32_t>(payload + kHeader);
  if (count > n) return {"codes (at most numel)", count, n};
  if (zero && count != 0) return {"there are codes but the scale is zero"};
  return elias_decode(payload + kHeader + 4, nbytes - kHeader - 4, count, top_level(payload[4]), n, nullptr, nullptr);
}

float level_value(int code, const DitherJob& job) {
  if (job.levels == Levels::kLinear) return static_cast<float>(code) * job.inverse;
  const auto s = static_cast<int>(top_level(job.bits));
  const float power = float_from_bits(static_cast<uint32_t>(std::abs(code) + 127 - s) << 23);
  return code < 0 ? -(power * job.scale) : power * job.scale;
}

template <class Visit>
void visit_elias(const uint8_t* payload, size_t nbytes, size_t n, Visit visit) {
  const DitherJob job = decoding_job(payload);
  const size_t count = load<uint32_t>(payload + kHeader);
  Scratch<uint32_t> index(count);
  Scratch<int8_t> code(count);
  elias_decode(payload + kHeader + 4, nbytes - kHeader - 4, count, top_level(job.bits), n, index.data(), code.data());
  for (size_t i = 0; i < count; ++i) visit(index[i], level_value(code[i], job));
}

bool is_l2(const uint8_t* payload) { return static_cast<Norm>(payload[6]) == Norm::kL2; }

}  // namespace

size_t dither_max_nbytes(size_t n, DitherSettings settings) {
  if (settings.norm == Norm::kMax) return kHeader + plane_nbytes(n, settings.bits);
  return kHeader + 4 + elias_max_nbytes(n, top_level(settings.bits));
}

size_t dither_encode(const float* x, size_t n, DitherSettings settings, uint64_t seed, uint8_t* payload) {
  const double norm = settings.norm == Norm::kMax ? static_cast<double>(max_abs(x, n)) : std::sqrt(sum_squares(x, n));
  if (!std::isfinite(norm)) return 0;
  const float scale = bounded_scale(norm);
  const DitherJob job = encoding_job(scale, settings, seed);
  store(payload, scale);
  payload[4] = static_cast<uint8_t>(settings.bits);
  payload[5] = static_cast<uint8_t>(settings.levels);
  payload[6] = static_cast<uint8_t>(settings.norm);
  payload[7] = 0;
  uint8_t* codes = payload + kHeader;
  return kHeader + (settings.norm == Norm::kMax ? write_planes(x, n, job, codes) : write_elias(x, n, job, codes));
}

Fault dither_check(const uint8_t* payload, size_t nbytes, size_t n) {
  if (nbytes < kHeader) return {"nbytes (at least the header)", nbytes, kHeader};
  const uint32_t scale = load<uint32_t>(payload);
  if (scale != 0 && (scale < float_bits(kMinScale) || scale > float_bits(kMaxScale))) return {"the scale is out of range"};
  const unsigned bits = payload[4];
  if (bits < 1 || bits > 8) return {"bits (1 to 8)", bits, 8};
  if (payload[5] > 1) return {"levels (at most)", payload[5], 1};
  if (payload[6] > 1) return {"norm (at most)", payload[6], 1};
  if (payload[7] != 0) return {"last byte of the header", payload[7], 0};
  if (n == 0 && scale != 0) return {"there is a scale but no element"};
  if (is_l2(payload)) return bits == 1 ? Fault{"the l2 norm has one bit"} : check_elias(payload, nbytes, n, scale == 0);
  const size_t expected = kHeader + plane_nbytes(n, bits);
  if (nbytes != expected) return {"nbytes", nbytes, expected};
  return check_planes(payload + kHeader, n, bits, scale == 0 || n == 0);
}

void dither_decode(const uint8_t* payload, size_t nbytes, size_t n, float* dst) {
  if (is_l2(payload)) {
    std::fill_n(dst, n, 0.0f);
    return visit_elias(payload, nbytes, n, [dst](uint32_t i, float x) { dst[i] = x; });
  }
  const DitherJob job = decoding_job(payload);
  parallel(n, kGrain, count_parts(n, kGrain), [&](Range range) {
    kernels().dither_decode(payload + kHeader, job, range.begin, range.end, dst);
  });
}

void dither_add(const uint8_t* payload, size_t nbytes, size_t n, float weight, float* dst) {
  if (is_l2(payload)) {
    return visit_elias(payload, nbytes, n, [dst, weight](uint32_t i, float x) { dst[i] += x * weight; });
  }
  const DitherJob job = decoding_job(payload);
  parallel(n, kGrain, count_parts(n, kGrain), [&](Range range) {
    kernels().dither_add(payload + kHeader, job, range.begin, range.end, weight, dst);
  });
}

}  // namespace thinwire
