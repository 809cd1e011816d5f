// Dithering: the same bits everywhere, levels that exist, and a mean that is the input.

#include "bytes.h"
#include "cases.h"
#include "check.h"

namespace thinwire::test {
namespace {

std::vector<DitherSettings> all_settings() {
  std::vector<DitherSettings> settings;
  for (unsigned bits = 1; bits <= 8; ++bits) {
    for (const Levels levels : {Levels::kLinear, Levels::kNatural}) {
      settings.push_back({bits, levels, Norm::kMax});
      if (bits > 1) settings.push_back({bits, levels, Norm::kL2});
    }
  }
  return settings;
}

Bytes encode(const float* x, size_t n, DitherSettings settings, uint64_t seed) {
  const auto payload = exact<uint8_t>(dither_max_nbytes(n, settings));
  const size_t nbytes = dither_encode(x, n, settings, seed, payload.get());
  return Bytes(payload.get(), payload.get() + nbytes);
}

void bytes_do_not_depend_on_instructions_or_threads() {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{65}, size_t{4099}, size_t{400003}}) {
    Unaligned x(gradient(n, n));
    const std::vector<float> start = gradient(n, n + 1);
    for (const DitherSettings settings : all_settings()) {
      choose_kernels("scalar");
      const Bytes expected = encode(x.data(), n, settings, 5);
      CHECK(!dither_check(expected.data(), expected.size(), n));
      std::vector<float> decoded(n), sum = start;
      dither_decode(expected.data(), expected.size(), n, decoded.data());
      for (size_t i = 0; i < n; ++i) sum[i] += decoded[i] * 0.75f;
      under_every_setting([&] {
        CHECK(encode(x.data(), n, settings, 5) == expected);
        Unaligned out(start);
        dither_add(expected.data(), expected.size(), n, 0.75f, out.data());
        // Where a sparse stream says nothing, nothing is added, not even +0 to -0.
        for (size_t i = 0; i < n; ++i) CHECK(out.data()[i] == sum[i]);
        dither_decode(expected.data(), expected.size(), n, out.data());
        CHECK(same_bits(out.data(), decoded.data(), n));
      });
    }
  }
}

// Whether `value` is one of the two levels around x. A level is a whole number of steps, or a power of two, of the scale.
bool is_neighbour(double value, double x, double scale, DitherSettings settings) {
  const double top = settings.bits == 1 ? 1.0 : static_cast<double>((1u << (settings.bits - 1)) - 1);
  if (settings.bits == 1) return std::fabs(std::fabs(value) - scale) <= 1e-6 * scale;
  if (settings.levels == Levels::kLinear) {
    const double level = value / scale * top;
    return std::fabs(level - std::nearbyint(level)) < 1e-4 && std::fabs(value - x) <= scale / top * 1.0001;
  }
  if (value == 0.0) return std::fabs(x) <= scale * std::exp2(1.0 - top) * 1.0001;
  const double power = std::log2(std::fabs(value) / scale);
  const bool near = std::fabs(value) <= std::max(2.0 * std::fabs(x), scale * std::exp2(1.0 - top)) * 1.0001 &&
                    std::fabs(value) >= 0.5 * std::fabs(x) * 0.9999;
  return std::fabs(power - std::nearbyint(power)) < 1e-4 && (value < 0.0) == (x < 0.0) && near;
}

void values_are_levels_next_to_the_input() {
  const std::vector<float> x = gradient(5000, 3);
  for (const DitherSettings settings : all_settings()) {
    const Bytes payload = encode(x.data(), x.size(), settings, 11);
    std::vector<float> out(x.size());
    dither_decode(payload.data(), payload.size(), x.size(), out.data());
    const double scale = static_cast<double>(load<float>(payload.data()));
    for (size_t i = 0; i < x.size(); ++i) {
      CHECK(is_neighbour(static_cast<double>(out[i]), static_cast<double>(x[i]), scale, settings));
    }
  }
}

void largest_magnitude_keeps_its_value() {
  for (unsigned bits = 1; bits <= 8; ++bits) {
    for (const Levels levels : {Levels::kLinear, Levels::kNatural}) {
      for (uint64_t seed = 0; seed < 300; ++seed) {
        std::vector<float> x = gradient(70, seed);
        x[13] = -0.7f - static_cast<float>(seed) * 0.013f;
        std::vector<float> out(70);
        const Bytes payload = encode(x.data(), 70, {bits, levels, Norm::kMax}, seed);
        dither_decode(payload.data(), payload.size(), 70, out.data());
        CHECK(std::fabs(out[13] - x[13]) <= 2e-7f * std::fabs(x[13]));
      }
    }
  }
}

void tiny_and_huge_tensors() {
  for (const DitherSettings settings : all_settings()) {
    for (const float size : {0.0f, 1e-45f, 1e-33f, 1e-29f, 1.0f, 3.4e38f}) {
      std::vector<float> x(200, size), out(200);
      x[3] = -size;
      const Bytes payload = encode(x.data(), 200, settings, 1);
      CHECK(!dither_check(payload.data(), payload.size(), 200));
      dither_decode(payload.data(), payload.size(), 200, out.data());
      for (const float y : out) CHECK(std::isfinite(y) && (size >= 1e-30f || y == 0.0f));
    }
    std::vector<float> x(200, 1.0f);
    x[150] = NAN;
    CHECK_EQ(encode(x.data(), 200, settings, 1).size(), size_t{0});
  }
}

void damaged_headers_are_refused() {
  const std::vector<float> x = gradient(130, 1);
  Bytes payload = encode(x.data(), 130, {4, Levels::kLinear, Norm::kMax}, 1);
  const auto refused = [&](size_t at, uint8_t byte) {
    Bytes damaged = payload;
    damaged[at] = byte;
    return static_cast<bool>(dither_check(damaged.data(), damaged.size(), 130));
  };
  CHECK(refused(3, 0xff));
  CHECK(refused(4, 0));
  CHECK(refused(4, 9));
  CHECK(refused(5, 2));
  CHECK(refused(6, 2));
  CHECK(refused(7, 1));
  CHECK(refused(payload.size() - 1, 0xff));  // 2 elements in the last run: six padding bits
}

}  // namespace

Suite dither_suite() {
  return {"test_dither",
          {{"bytes_do_not_depend_on_instructions_or_threads", bytes_do_not_depend_on_instructions_or_threads},
           {"values_are_levels_next_to_the_input", values_are_levels_next_to_the_input},
           {"largest_magnitude_keeps_its_value", largest_magnitude_keeps_its_value},
           {"tiny_and_huge_tensors", tiny_and_huge_tensors},
           {"damaged_headers_are_refused", damaged_headers_are_refused}}};
}

}  // namespace thinwire::test
