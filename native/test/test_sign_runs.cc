// A momentum as sign runs, against the floats that they stand for.

#include "cases.h"
#include "check.h"

namespace thinwire::test {
namespace {

// Sign runs, and the floats that they stand for. The bits past the end are set, and must mean nothing.
struct SignRuns {
  Bytes bytes;
  std::vector<float> floats;

  explicit SignRuns(size_t n, uint64_t seed) : bytes(sign_runs_nbytes(n)), floats(gradient(n, seed)) {
    for (size_t i = 0; i < n; i += kRun) {
      const float magnitude = i / kRun % 5 == 3 ? 0.0f : 1e-3f * static_cast<float>(i % 977 + 1);
      uint64_t signs = ~uint64_t{0};
      for (size_t j = i; j < std::min(n, i + kRun); ++j) {
        if (!std::signbit(floats[j])) signs ^= uint64_t{1} << (j - i);
        floats[j] = std::copysign(magnitude, floats[j]);
      }
      store(bytes.data() + i / kRun * kSignRun, signs);
      store(bytes.data() + i / kRun * kSignRun + 8, magnitude);
    }
  }
};

template <class Memory>
void sign_runs_equal_floats(size_t n, size_t block, float factor) {
  const SignRuns momentum(n, n + 5);
  const auto runs = exact_copy(momentum.bytes.data(), momentum.bytes.size());
  const std::vector<float> start = gradient(n, n + 6), g = gradient(n, n + 7);
  const size_t most_nbytes = onebit_max_nbytes(n, block);
  struct Step {
    Carried carried;
    Memory wanted;
    std::vector<float> scales;
    Bytes payload;
    Step(Carried with, const std::vector<float>& x, size_t count) : carried(with), wanted(x), scales(count) {}
  };
  under_every_setting([&] {
    const size_t scales = sign_scales(n, block);
    Step steps[] = {{{momentum.floats.data(), factor}, start, scales}, {{nullptr, factor, runs.get()}, start, scales}};
    for (Step& step : steps) {
      const auto payload = exact<uint8_t>(most_nbytes);
      double squares = 0.0;
      const size_t nbytes =
          onebit_step(g.data(), n, {0.1f, 0.7f}, SignScale::kL1, block, {step.wanted.data(), step.wanted.data()},
                      {step.scales.data(), step.scales.data()}, payload.get(), squares, step.carried);
      step.payload.assign(payload.get(), payload.get() + nbytes);
    }
    CHECK(steps[0].payload == steps[1].payload);
    CHECK(same_bits(steps[0].wanted.data(), steps[1].wanted.data(), n));
    CHECK(same_bits(steps[0].scales.data(), steps[1].scales.data(), steps[0].scales.size()));
  });
}

void momentum_as_sign_runs() {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{65}, size_t{4099}, size_t{400003}}) {
    for (const size_t block : {size_t{0}, size_t{64}, size_t{128}, size_t{4096}, size_t{65536}}) sign_runs_equal_floats<Unaligned>(n, block, 0.9f);
    for (const float factor : {0.9f, 0.0f, -0.3f}) sign_runs_equal_floats<Aligned>(n, 0, factor);
  }
}

void sign_runs_that_do_not_agree() {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{65}, size_t{64 * 64}, size_t{4099}, size_t{400003}}) {
    SignRuns momentum(n, n);
    const auto runs = exact_copy(momentum.bytes.data(), momentum.bytes.size());
    CHECK(sign_runs_agree(runs.get(), momentum.floats.data(), n));
    // All runs are compared as long as there are few.
    for (size_t i = 0; n <= 64 * 64 && i < n; ++i) {
      momentum.floats[i] = -momentum.floats[i];
      CHECK(!sign_runs_agree(runs.get(), momentum.floats.data(), n));
      momentum.floats[i] = -momentum.floats[i];
    }
    if (n > 0) CHECK(!sign_runs_agree(runs.get(), std::vector<float>(n, 0.125f).data(), n));
  }
}

}  // namespace

Suite sign_runs_suite() {
  return {"test_sign_runs",
          {{"momentum_as_sign_runs", momentum_as_sign_runs},
           {"sign_runs_that_do_not_agree", sign_runs_that_do_not_agree}}};
}

}  // namespace thinwire::test
