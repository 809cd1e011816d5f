// One bit per element, against loops that do one element at a time.

#include "cases.h"
#include "check.h"

namespace thinwire::test {
namespace {

constexpr size_t kBlocks[] = {0, 64, 128, 4096, 65536};

bool run_has_nonzero(const float* x, size_t n, size_t i) {
  for (size_t j = i / kRun * kRun; j < std::min(n, i / kRun * kRun + kRun); ++j) {
    if (x[j] != 0.0f) return true;
  }
  return false;
}

// What a payload with these scales decodes to.
std::vector<float> slow_decode(const float* x, size_t n, size_t block, const std::vector<float>& scales) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) {
    const float scale = run_has_nonzero(x, n, i) ? scales[sign_block(n, block) == 0 ? 0 : i / block] : 0.0f;
    out[i] = x[i] < 0.0f ? -scale : scale;
  }
  return out;
}

std::vector<float> scales_of(const Bytes& payload, size_t n, size_t block) {
  std::vector<float> scales(sign_scales(n, block));
  if (!scales.empty()) std::memcpy(scales.data(), payload.data() + 8, 4 * scales.size());
  return scales;
}

Bytes encode(const float* x, size_t n, SignScaling scaling, size_t block) {
  const size_t capacity = onebit_max_nbytes(n, block);
  const auto exact_payload = exact<uint8_t>(capacity);
  const size_t nbytes = onebit_encode(x, n, scaling, block, exact_payload.get());
  return Bytes(exact_payload.get(), exact_payload.get() + nbytes);
}

double slow_mean(const float* x, size_t begin, size_t end, size_t n, SignScale scale) {
  double sum = 0.0, live = 0.0;
  for (size_t i = begin; i < end; ++i) {
    const double a = std::fabs(static_cast<double>(x[i]));
    sum += scale == SignScale::kL1 ? a : a * a;
    live += run_has_nonzero(x, n, i) ? 1.0 : 0.0;
  }
  const double mean = live == 0.0 ? 0.0 : sum / live;
  return scale == SignScale::kL1 ? mean : std::sqrt(mean);
}

void scales_are_means_over_live_runs() {
  for (const size_t n : awkward_sizes()) {
    const std::vector<float> x = gradient(n, n);
    for (const size_t block : kBlocks) {
      for (const SignScale scale : {SignScale::kL1, SignScale::kL2}) {
        const auto scales = scales_of(encode(x.data(), n, scale, block), n, block);
        const size_t step = sign_block(n, block) == 0 ? n : block;
        for (size_t s = 0; s < scales.size(); ++s) {
          const double mean = slow_mean(x.data(), s * step, std::min(n, (s + 1) * step), n, scale);
          CHECK(std::fabs(static_cast<double>(scales[s]) - mean) <= 1e-5 * mean);
        }
      }
    }
  }
}

void bytes_do_not_depend_on_instructions_or_threads() {
  for (const size_t n : awkward_sizes()) {
    Unaligned x(gradient(n, n + 1));
    for (const size_t block : kBlocks) {
      choose_kernels("scalar");
      const Bytes expected = encode(x.data(), n, SignScale::kL1, block);
      const Bytes squares = encode(x.data(), n, SignScale::kL2, block);
      under_every_setting([&] {
        CHECK(encode(x.data(), n, SignScale::kL1, block) == expected);
        CHECK(encode(x.data(), n, SignScale::kL2, block) == squares);
      });
    }
  }
}

void decoding_and_adding() {
  for (const size_t n : awkward_sizes()) {
    const std::vector<float> x = gradient(n, n + 2);
    const std::vector<float> start = gradient(n, n + 3);
    for (const size_t block : kBlocks) {
      const Bytes payload = encode(x.data(), n, SignScale::kL1, block);
      CHECK(!onebit_check(payload.data(), payload.size(), n));
      const std::vector<float> expected = slow_decode(x.data(), n, block, scales_of(payload, n, block));
      std::vector<float> sum = start;
      for (size_t i = 0; i < n; ++i) sum[i] += expected[i] * 0.25f;
      // At an odd address: payloads are slices of frames.
      const auto shifted = exact<uint8_t>(payload.size() + 1);
      std::copy(payload.begin(), payload.end(), shifted.get() + 1);
      under_every_setting([&] {
        Unaligned out(start);
        onebit_add(shifted.get() + 1, n, 0.25f, out.data());
        CHECK(same_bits(out.data(), sum.data(), n));
        onebit_decode(shifted.get() + 1, n, out.data());
        CHECK(same_bits(out.data(), expected.data(), n));
      });
    }
  }
}

// What a step is given in the plain form: the gradient, and the momentum if there is one.
std::vector<float> slow_given(const float* g, size_t n, float gain, Carried carried) {
  std::vector<float> given(n);
  for (size_t i = 0; i < n; ++i) {
    given[i] = g[i] * gain;
    if (carried.momentum != nullptr) given[i] = carried.momentum[i] * carried.factor + given[i];
  }
  return given;
}

// Three steps of the lazy form against: wanted = residual + given, encode, residual = wanted - decoded.
template <class Memory>
void lazy_steps_equal_plain_ones(size_t n, size_t block, Gains gains, const float* factor = nullptr) {
  under_every_setting([&] {
    std::vector<float> residual(n);
    Memory wanted(residual), wanted_to(residual);
    std::vector<float> scales(sign_scales(n, block)), scales_to(scales);
    const auto payload = exact<uint8_t>(onebit_max_nbytes(n, block));
    for (uint64_t step = 0; step < 3; ++step) {
      Unaligned g(gradient(n, n + 10 + step)), momentum(gradient(n, n + 20 + step));
      const Carried carried = factor == nullptr ? Carried{} : Carried{momentum.data(), *factor};
      const std::vector<float> given = slow_given(g.data(), n, gains.gain, carried);
      for (size_t i = 0; i < n; ++i) residual[i] = residual[i] * gains.keep + given[i];
      const Bytes expected = encode(residual.data(), n, {SignScale::kL1, 1.5f}, block);
      const auto sent = slow_decode(residual.data(), n, block, scales_of(expected, n, block));
      const std::vector<float> before(wanted.data(), wanted.data() + n);
      double squares = 0.0;
      const size_t nbytes = onebit_step(g.data(), n, gains, {SignScale::kL1, 1.5f}, block,
                                        {wanted.data(), wanted_to.data()}, {scales.data(), scales_to.data()},
                                        payload.get(), squares, carried);
      CHECK(Bytes(payload.get(), payload.get() + nbytes) == expected);
      CHECK(near(squares, sum_squares(g.data(), n)));
      CHECK(same_bits(wanted.data(), before.data(), n));
      std::swap(wanted, wanted_to);
      scales.swap(scales_to);
      for (size_t i = 0; i < n; ++i) residual[i] -= sent[i];
    }
    onebit_settle(wanted.data(), n, block, scales.data());
    CHECK(same_bits(wanted.data(), residual.data(), n));
  });
}

void fused_step() {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{65}, size_t{4099}, size_t{400003}}) {
    for (const size_t block : kBlocks) lazy_steps_equal_plain_ones<Unaligned>(n, block, {1.0f, 1.0f});
    lazy_steps_equal_plain_ones<Aligned>(n, 0, {1.0f, 1.0f});
    lazy_steps_equal_plain_ones<Unaligned>(n, 0, {0.3f, 1.7f});
  }
}

void fused_step_with_momentum() {
  const float factor = 0.9f, none = 0.0f;
  for (const size_t n : {size_t{0}, size_t{1}, size_t{65}, size_t{4099}, size_t{400003}}) {
    for (const size_t block : kBlocks) lazy_steps_equal_plain_ones<Unaligned>(n, block, {0.1f, 1.0f}, &factor);
    lazy_steps_equal_plain_ones<Aligned>(n, 0, {0.3f, 1.7f}, &factor);
    lazy_steps_equal_plain_ones<Aligned>(n, 0, {0.3f, 1.7f}, &none);
  }
}

void a_momentum_that_is_not_finite_gives_no_payload() {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> g = gradient(100, 1), momentum = g, wanted(100), scales(1);
    momentum[99] = bad;
    const auto payload = exact<uint8_t>(onebit_max_nbytes(100, 0));
    double squares = 0.0;
    CHECK_EQ(onebit_step(g.data(), 100, {}, SignScale::kL1, 0, {wanted.data(), wanted.data()},
                         {scales.data(), scales.data()}, payload.get(), squares, {momentum.data(), 0.9f}),
             size_t{0});
    CHECK(near(squares, sum_squares(g.data(), 100)));
  }
}

void fused_sum() {
  for (const size_t n : {size_t{0}, size_t{63}, size_t{4099}, size_t{400003}}) {
    const Bytes a = encode(gradient(n, 1).data(), n, SignScale::kL1, 0);
    const Bytes b = encode(gradient(n, 2).data(), n, SignScale::kL2, 128);
    const uint8_t* payloads[] = {a.data(), b.data()};
    std::vector<float> mean(n);
    choose_kernels("scalar");
    for (const uint8_t* payload : payloads) onebit_add(payload, n, 0.5f, mean.data());
    for (const size_t block : {size_t{0}, size_t{64}}) {
      std::vector<float> plain = gradient(n, 3), plain_scales(sign_scales(n, block));
      const auto expected = exact<uint8_t>(onebit_max_nbytes(n, block));
      double squares = 0.0;
      const size_t nbytes = onebit_step(mean.data(), n, {}, SignScale::kL1, block, {plain.data(), plain.data()},
                                        {plain_scales.data(), plain_scales.data()}, expected.get(), squares);
      under_every_setting([&] {
        std::vector<float> wanted = gradient(n, 3), scales(sign_scales(n, block));
        const auto payload = exact<uint8_t>(onebit_max_nbytes(n, block));
        CHECK_EQ(onebit_sum_step(payloads, 2, 0.5f, n, 1.0f, SignScale::kL1, block, {wanted.data(), wanted.data()},
                                 {scales.data(), scales.data()}, payload.get()),
                 nbytes);
        CHECK(std::equal(payload.get(), payload.get() + nbytes, expected.get()));
        CHECK(same_bits(wanted.data(), plain.data(), n));
      });
    }
  }
}

void summing() {
  for (const size_t n : awkward_sizes()) {
    const Bytes a = encode(gradient(n, 1).data(), n, SignScale::kL1, 0);
    const Bytes b = encode(gradient(n, 2).data(), n, SignScale::kL2, 128);
    // At an odd address: payloads are slices of frames.
    const auto shifted = exact<uint8_t>(b.size() + 1);
    std::copy(b.begin(), b.end(), shifted.get() + 1);
    const uint8_t* payloads[] = {a.data(), shifted.get() + 1, a.data()};
    choose_kernels("scalar");
    std::vector<float> expected(n);
    for (const uint8_t* payload : payloads) onebit_add(payload, n, 0.3f, expected.data());
    under_every_setting([&] {
      Unaligned anywhere(gradient(n, 3));
      Aligned aligned(gradient(n, 3));
      onebit_sum(payloads, 3, n, 0.3f, anywhere.data());
      onebit_sum(payloads, 3, n, 0.3f, aligned.data());
      CHECK(same_bits(anywhere.data(), expected.data(), n));
      CHECK(same_bits(aligned.data(), expected.data(), n));
    });
  }
}

void huge_and_non_finite_values() {
  // The mean overflows a float on the way, and is above the largest scale.
  std::vector<float> x(1000, 3e38f);
  CHECK_EQ(scales_of(encode(x.data(), x.size(), SignScale::kL1, 0), x.size(), 0)[0], 0x1p100f);
  CHECK_EQ(scales_of(encode(x.data(), x.size(), SignScale::kL2, 0), x.size(), 0)[0], 0x1p100f);
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    x[777] = bad;
    CHECK_EQ(encode(x.data(), x.size(), SignScale::kL1, 0).size(), size_t{0});
    CHECK_EQ(encode(x.data(), x.size(), SignScale::kL2, 64).size(), size_t{0});
  }
}

}  // namespace

Suite sign_suite() {
  return {"test_sign",
          {{"scales_are_means_over_live_runs", scales_are_means_over_live_runs},
           {"bytes_do_not_depend_on_instructions_or_threads", bytes_do_not_depend_on_instructions_or_threads},
           {"decoding_and_adding", decoding_and_adding},
           {"fused_step", fused_step},
           {"fused_step_with_momentum", fused_step_with_momentum},
           {"a_momentum_that_is_not_finite_gives_no_payload", a_momentum_that_is_not_finite_gives_no_payload},
           {"fused_sum", fused_sum},
           {"summing", summing},
           {"huge_and_non_finite_values", huge_and_non_finite_values}}};
}

}  // namespace thinwire::test
