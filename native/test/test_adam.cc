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
           {"no_squares_no_step", no_squares_no_step},
           {"what_is_not_a_number_stays_so", what_is_not_a_number_stays_so}}};
}

}  // namespace thinwire::test
