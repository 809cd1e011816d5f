// Adam, against loops that do one element at a time.

#include "cases.h"
#include "check.h"

namespace thinwire::test {
namespace {

// A parameter, what moves it, and its state.
struct Tensors {
  std::vector<float> param, given, mean, square;

  explicit Tensors(size_t n) : param(gradient(n, n + 1)), given(gradient(n, n + 2)), mean(gradient(n, n + 3)), square(n) {
    const std::vector<float> last = gradient(n, n + 4);
    for (size_t i = 0; i < n; ++i) square[i] = last[i] * last[i];
  }
};

constexpr AdamMeans kMeans{0.1f, 0.999f, 0.001f};

AdamFactors factors(float l2) { return {0.999f, 1e-8f, 0.003f, 0.2f, l2}; }

float slow_ratio(float mean, float square, const AdamFactors& with) {
  const float denominator = std::sqrt(square) * (1.0f / with.correction2_sqrt) + with.eps;
  return mean / denominator;
}

void slow_step(Tensors& x, float l2) {
  const AdamFactors with = factors(l2);
  for (size_t i = 0; i < x.param.size(); ++i) {
    const float g = l2 == 0.0f ? x.given[i] : x.given[i] + l2 * x.param[i];
    x.mean[i] = x.mean[i] + (g - x.mean[i]) * kMeans.weight1;
    x.square[i] = x.square[i] * kMeans.beta2 + (g * g) * kMeans.weight2;
    x.param[i] = x.param[i] * with.decay - with.step_size * slow_ratio(x.mean[i], x.square[i], with);
  }
}

constexpr size_t kBlock = 192;

// A part of the mean of each block, which is summed in 16 lanes.
std::vector<float> slow_floors(const std::vector<float>& square, float part) {
  std::vector<float> floors(square.size());
  for (size_t begin = 0; begin < square.size(); begin += kBlock) {
    const size_t end = std::min(square.size(), begin + kBlock);
    float lanes[16] = {};
    for (size_t i = begin; i < end; ++i) lanes[(i - begin) % 16] += square[i];
    double total = 0.0;
    for (const float lane : lanes) total += static_cast<double>(lane);
    const double mean = total / static_cast<double>(end - begin);
    for (size_t i = begin; i < end; ++i) floors[i] = static_cast<float>(mean * static_cast<double>(part));
  }
  return floors;
}

void slow_momentum_step(Tensors& x, float l2, float floor) {
  const AdamFactors with = factors(l2);
  const std::vector<float> floors = slow_floors(x.square, floor);
  for (size_t i = 0; i < x.param.size(); ++i) {
    x.mean[i] = l2 == 0.0f ? x.given[i] : x.given[i] + l2 * x.param[i];
    float ratio = slow_ratio(x.mean[i], std::max(floors[i], x.square[i]), with);
    ratio = std::max(-0.75f, std::min(0.75f, ratio));
    if (x.square[i] == 0.0f) ratio = 0.0f;
    x.param[i] = x.param[i] * with.decay - with.step_size * ratio;
  }
}

template <class Memory>
void check_step(size_t n, float l2) {
  const Tensors start(n);
  Tensors expected = start;
  slow_step(expected, l2);
  under_every_setting([&] {
    Memory param(start.param), given(start.given), mean(start.mean), square(start.square);
    adam_step({param.data(), given.data(), mean.data(), square.data(), kMeans, factors(l2)}, n);
    CHECK(same_bits(param.data(), expected.param.data(), n));
    CHECK(same_bits(given.data(), start.given.data(), n));
    CHECK(same_bits(mean.data(), expected.mean.data(), n));
    CHECK(same_bits(square.data(), expected.square.data(), n));
  });
}

template <class Memory>
void check_momentum_step(size_t n, float l2, float floor) {
  const Tensors start(n);
  Tensors expected = start;
  slow_momentum_step(expected, l2, floor);
  under_every_setting([&] {
    Memory param(start.param), given(start.given), mean(start.mean), square(start.square);
    adam_momentum_step({param.data(), given.data(), mean.data(), square.data(), factors(l2), floor, kBlock, 0.75f}, n);
    CHECK(same_bits(param.data(), expected.param.data(), n));
    CHECK(same_bits(mean.data(), expected.mean.data(), n));
    CHECK(same_bits(square.data(), start.square.data(), n));
    // The momentum may be where the mean goes.
    Memory again(start.param);
    adam_momentum_step({again.data(), given.data(), given.data(), square.data(), factors(l2), floor, kBlock, 0.75f}, n);
    CHECK(same_bits(again.data(), expected.param.data(), n));
    CHECK(same_bits(given.data(), expected.mean.data(), n));
  });
}

// A momentum as an answer in one bit leaves it: with zeros of both signs, and last what is not finite.
std::vector<float> one_magnitude_a_run(size_t n) {
  std::vector<float> x = gradient(n, n + 9);
  for (size_t i = 0; i < n; ++i) {
    const size_t run = i / kRun;
    const float magnitude = run % 5 == 3 ? 0.0f : run % 7 == 6 ? INFINITY : 1e-3f * static_cast<float>(run + 1);
    x[i] = std::copysign(magnitude, x[i]);
  }
  return x;
}

Bytes slow_sign_runs(const std::vector<float>& x) {
  Bytes runs(sign_runs_nbytes(x.size()));
  for (size_t i = 0; i < x.size(); i += kRun) {
    uint64_t signs = 0;
    for (size_t j = 0; j < kRun; ++j) {
      // Past the end the sign of the first, so that bytes can be compared.
      signs |= static_cast<uint64_t>(std::signbit(i + j < x.size() ? x[i + j] : x[i])) << j;
    }
    store(runs.data() + i / kRun * kSignRun, signs);
    store(runs.data() + i / kRun * kSignRun + 8, std::fabs(x[i]));
  }
  return runs;
}

template <class Memory>
bool momentum_step_with_runs(const std::vector<float>& momentum, float l2, uint8_t* runs) {
  const size_t n = momentum.size();
  const Tensors start(n);
  Tensors expected = start;
  expected.given = momentum;
  slow_momentum_step(expected, l2, 0.1f);
  Memory param(start.param), given(momentum), mean(start.mean), square(start.square);
  const bool held = adam_momentum_step({param.data(), given.data(), mean.data(), square.data(), factors(l2), 0.1f, kBlock,
                                        0.75f, runs}, n);
  CHECK(same_bits(param.data(), expected.param.data(), n));
  CHECK(same_bits(mean.data(), expected.mean.data(), n));
  return held;
}

void a_momentum_of_one_magnitude_a_run_is_written_as_sign_runs() {
  for (const size_t n : awkward_sizes()) {
    const std::vector<float> momentum = one_magnitude_a_run(n);
    const Bytes expected = slow_sign_runs(momentum);
    under_every_setting([&] {
      const auto runs = exact<uint8_t>(expected.size());
      CHECK(momentum_step_with_runs<Aligned>(momentum, 0.0f, runs.get()));
      CHECK(std::equal(expected.begin(), expected.end(), runs.get()));
      CHECK(momentum_step_with_runs<Unaligned>(momentum, 0.0f, runs.get()));
      CHECK(sign_runs_agree(runs.get(), momentum.data(), n));
      CHECK(!momentum_step_with_runs<Aligned>(momentum, 0.01f, runs.get()));
      CHECK(!momentum_step_with_runs<Aligned>(momentum, 0.0f, nullptr));
    });
  }
}

void one_element_that_differs_is_enough_for_no_sign_runs() {
  for (const size_t n : {size_t{2}, size_t{65}, size_t{66}, size_t{4099}, size_t{400003}}) {
    for (const size_t place : {size_t{0}, n / 2, n - 1}) {
      // Alone in its run an element differs from nothing.
      if (n % kRun == 1 && place == n - 1) continue;
      std::vector<float> momentum = one_magnitude_a_run(n);
      momentum[place] = std::nextafter(momentum[place], 1.0f);
      under_every_setting([&] {
        const auto runs = exact<uint8_t>(sign_runs_nbytes(n));
        CHECK(!momentum_step_with_runs<Aligned>(momentum, 0.0f, runs.get()));
      });
    }
  }
}

void steps() {
  for (const size_t n : awkward_sizes()) {
    for (const float l2 : {0.0f, 0.01f}) {
      check_step<Unaligned>(n, l2);
      check_step<Aligned>(n, l2);
    }
  }
}

void momentum_steps() {
  for (const size_t n : awkward_sizes()) {
    for (const float l2 : {0.0f, 0.01f}) {
      check_momentum_step<Unaligned>(n, l2, 0.0f);
      check_momentum_step<Aligned>(n, l2, 0.1f);
    }
  }
}

// Without squares an element only decays, whatever the momentum, also where eps is 0.
void no_squares_no_step() {
  under_every_setting([&] {
    std::vector<float> param(100, 2.0f), momentum(100, 3.0f), mean(100), square(100);
    momentum[7] = 0.0f;
    square[99] = -0.0f;
    adam_momentum_step({param.data(), momentum.data(), mean.data(), square.data(), {0.5f, 0.0f, 1.0f, 1.0f, 0.0f}, 0.1f, kBlock, INFINITY},
                       100);
    CHECK(param == std::vector<float>(100, 1.0f));
    CHECK(mean == momentum);
  });
}

void what_is_not_a_number_stays_so() {
  under_every_setting([&] {
    for (const float floor : {0.0f, 0.1f}) {
      std::vector<float> param(100, 2.0f), momentum(100, NAN), mean(100), square(100, 1.0f);
      momentum[50] = 1.0f;
      adam_momentum_step({param.data(), momentum.data(), mean.data(), square.data(), factors(0.0f), floor, kBlock, 0.75f}, 100);
      for (size_t i = 0; i < 100; ++i) CHECK_EQ(std::isnan(param[i]), i != 50);
    }
  });
}

}  // namespace

Suite adam_suite() {
  return {"test_adam",
          {{"steps", steps},
           {"momentum_steps", momentum_steps},
           {"a_momentum_of_one_magnitude_a_run_is_written_as_sign_runs",
            a_momentum_of_one_magnitude_a_run_is_written_as_sign_runs},
           {"one_element_that_differs_is_enough_for_no_sign_runs", one_element_that_differs_is_enough_for_no_sign_runs},
           {"no_squares_no_step", no_squares_no_step},
           {"what_is_not_a_number_stays_so", what_is_not_a_number_stays_so}}};
}

}  // namespace thinwire::test
