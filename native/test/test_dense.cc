// 16-bit floats and reductions, against arithmetic in double.

#include <sys/wait.h>
#include <unistd.h>

#include <cfenv>

#include "bytes.h"
#include "cases.h"
#include "check.h"
#include "simd/float16.h"

namespace thinwire::test {
namespace {

// The value nearest to x with `mantissa` bits after the point and exponents from `lowest` up; ties to even.
double slow_round(double x, int mantissa, int lowest) {
  if (x == 0.0) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 1, lowest) - mantissa);
  return std::nearbyint(x / unit) * unit;
}

std::vector<float> awkward_floats() {
  std::vector<float> x = gradient(3000, 1);
  for (const float y : {0.0f, -0.0f, 1e-45f, 6e-8f, 2.98e-8f, 2.99e-8f, 6.1e-5f, 65504.0f, 65519.0f, 65520.0f, 1e6f, 3.4e38f,
                        1.00048828125f, 1.00146484375f, 1.00390625f, 1.01171875f}) {
    x.push_back(y);
    x.push_back(-y);
  }
  return x;
}

void halves_round_to_nearest_even_and_saturate() {
  const std::vector<float> x = awkward_floats();
  const size_t n = x.size();
  under_every_setting([&] {
    for (const Half kind : {Half::kFloat16, Half::kBFloat16}) {
      const auto payload = exact<uint8_t>(2 * n);
      CHECK(half_encode(kind, x.data(), n, payload.get()));
      CHECK(!half_check(kind, payload.get(), 2 * n, n));
      std::vector<float> out(n);
      half_decode(kind, payload.get(), n, out.data());
      const double limit = kind == Half::kFloat16 ? 65504.0 : static_cast<double>(float_from_bits(0x7f7f0000u));
      for (size_t i = 0; i < n; ++i) {
        const double rounded = kind == Half::kFloat16 ? slow_round(static_cast<double>(x[i]), 10, -14) : slow_round(static_cast<double>(x[i]), 7, -126);
        CHECK_EQ(static_cast<double>(out[i]), std::max(-limit, std::min(limit, rounded)));
      }
    }
  });
}

void every_half_survives() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if ((half & 0x7c00) == 0x7c00) continue;
    CHECK_EQ(to_float16(from_float16(half)), half);
  }
}

void every_size_and_weight() {
  for (const size_t n : awkward_sizes()) {
    Unaligned x(gradient(n, n));
    const std::vector<float> start = gradient(n, n + 1);
    const auto payload = exact<uint8_t>(2 * n + 1), raw = exact<uint8_t>(4 * n + 1);
    if (n > 0) std::memcpy(raw.get() + 1, x.data(), 4 * n);
    std::vector<float> decoded(n), sum = start, raw_sum = start;
    choose_kernels("scalar");
    half_encode(Half::kFloat16, x.data(), n, payload.get() + 1);
    half_decode(Half::kFloat16, payload.get() + 1, n, decoded.data());
    for (size_t i = 0; i < n; ++i) {
      sum[i] += decoded[i] * 0.3f;
      raw_sum[i] += x.data()[i] * 0.3f;
    }
    under_every_setting([&] {
      Unaligned a(start), b(start);
      half_add(Half::kFloat16, payload.get() + 1, n, 0.3f, a.data());
      float32_add(raw.get() + 1, n, 0.3f, b.data());
      CHECK(same_bits(a.data(), sum.data(), n));
      CHECK(same_bits(b.data(), raw_sum.data(), n));
    });
  }
}

// Sources at any address; the sum may take the place of any of them.
template <class Memory>
void sum_in_place_of(size_t place, size_t n) {
  const std::vector<float> x[] = {gradient(n, n + 2), gradient(n, n + 3), gradient(n, n + 4)};
  std::vector<float> expected(n);
  for (size_t i = 0; i < n; ++i) expected[i] = ((0.0f + x[0][i] * 0.3f) + x[1][i] * 0.3f) + x[2][i] * 0.3f;
  under_every_setting([&] {
    Memory out(x[place]);
    const auto shifted = exact<uint8_t>(4 * n + 1);
    if (n > 0) std::memcpy(shifted.get() + 1, x[(place + 1) % 3].data(), 4 * n);
    const uint8_t* sources[3];
    sources[place] = reinterpret_cast<const uint8_t*>(out.data());
    sources[(place + 1) % 3] = shifted.get() + 1;
    sources[(place + 2) % 3] = reinterpret_cast<const uint8_t*>(x[(place + 2) % 3].data());
    float32_sum(sources, 3, n, 0.3f, out.data());
    CHECK(same_bits(out.data(), expected.data(), n));
  });
}

void sums() {
  for (const size_t n : awkward_sizes()) {
    for (size_t place = 0; place < 3; ++place) {
      sum_in_place_of<Aligned>(place, n);
      sum_in_place_of<Unaligned>(place, n);
    }
  }
}

void reductions() {
  for (const size_t n : awkward_sizes()) {
    std::vector<float> x = gradient(n, n + 4);
    double abs_sum = 0.0, squares = 0.0;
    float top = 0.0f;
    for (const float y : x) {
      abs_sum += std::fabs(static_cast<double>(y));
      squares += static_cast<double>(y) * static_cast<double>(y);
      top = std::max(top, std::fabs(y));
    }
    choose_kernels("scalar");
    const double first_abs = sum_abs(x.data(), n), first_squares = sum_squares(x.data(), n);
    under_every_setting([&] {
      CHECK_EQ(sum_abs(x.data(), n), first_abs);
      CHECK_EQ(sum_squares(x.data(), n), first_squares);
      CHECK_EQ(max_abs(x.data(), n), top);
      CHECK(all_finite(x.data(), n));
    });
    CHECK(std::fabs(first_abs - abs_sum) <= 1e-6 * abs_sum);
    CHECK(std::fabs(first_squares - squares) <= 1e-12 * squares);
    if (n == 0) continue;
    for (const float bad : {INFINITY, -INFINITY, NAN, -NAN}) {
      x[n - 1] = bad;
      under_every_setting([&] { CHECK(!all_finite(x.data(), n)); });
    }
  }
}

// A child that forks off after the pool was used must be able to use it too.
void the_pool_survives_a_fork() {
  const std::vector<float> x = gradient(1 << 20, 1);
  set_thread_count(3);
  const double expected = sum_abs(x.data(), x.size());
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(sum_abs(x.data(), x.size()) == expected ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_EQ(sum_abs(x.data(), x.size()), expected);
  set_thread_count(1);
}

void float_mode_is_the_default_for_a_while() {
  const volatile float one = 1.0f, little = 1e-10f;
  std::fesetround(FE_UPWARD);
  CHECK(one + little > 1.0f);
  {
    DefaultFloatMode mode;
    CHECK_EQ(one + little, 1.0f);
  }
  CHECK_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
}

}  // namespace

Suite dense_suite() {
  return {"test_dense",
          {{"halves_round_to_nearest_even_and_saturate", halves_round_to_nearest_even_and_saturate},
           {"every_half_survives", every_half_survives},
           {"every_size_and_weight", every_size_and_weight},
           {"sums", sums},
           {"reductions", reductions},
           {"the_pool_survives_a_fork", the_pool_survives_a_fork},
           {"float_mode_is_the_default_for_a_while", float_mode_is_the_default_for_a_while}}};
}

}  // namespace thinwire::test
