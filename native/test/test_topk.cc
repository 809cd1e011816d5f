// Top-k, alone and fused with feedback, against sorting everything.

#include <numeric>

#include "bytes.h"
#include "cases.h"
#include "check.h"

namespace thinwire::test {
namespace {

struct Taken {
  std::vector<uint32_t> index;
  std::vector<float> value;
};

// The k largest magnitudes that are not zero, the lower index first among equals, in index order.
Taken slow_topk(const std::vector<float>& x, size_t k) {
  std::vector<uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return magnitude_bits(x[a]) > magnitude_bits(x[b]); });
  order.resize(std::min(k, order.size()));
  while (!order.empty() && x[order.back()] == 0.0f) order.pop_back();
  std::sort(order.begin(), order.end());
  Taken taken{order, {}};
  for (const uint32_t i : order) taken.value.push_back(x[i]);
  return taken;
}

bool same(const Taken& expected, const uint32_t* index, const float* value, size_t count) {
  return count == expected.index.size() && std::equal(index, index + count, expected.index.begin()) &&
         same_bits(value, expected.value.data(), count);
}

std::vector<size_t> counts_for(size_t n) {
  std::vector<size_t> counts;
  for (const size_t k : {size_t{1}, n / 1000 + 1, n / 100 + 1, n / 4 + 1, n}) {
    if (k <= n && k > 0) counts.push_back(k);
  }
  return counts;
}

std::vector<float> constant(size_t n) { return std::vector<float>(n, -2.5f); }

// Everything that matters lies in one corner that a sample hardly sees.
std::vector<float> clustered(size_t n) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n / 50; ++i) x[n - 1 - i] = static_cast<float>(i % 97) + 1.0f;
  return x;
}

void plain_selection() {
  for (const size_t n : awkward_sizes()) {
    for (const std::vector<float>& x : {gradient(n, n), constant(n), clustered(n), std::vector<float>(n)}) {
      for (const size_t k : n > 100000 ? std::vector<size_t>{n / 1000} : counts_for(n)) {
        const Taken expected = slow_topk(x, k);
        Unaligned data(x);
        const auto index = exact<uint32_t>(k);
        const auto value = exact<float>(k);
        under_every_setting([&] {
          for (const Select select : {Select::kSampled, Select::kRadix}) {
            const size_t count = topk(data.data(), n, k, select, index.get(), value.get());
            CHECK(same(expected, index.get(), value.get(), count));
          }
        });
      }
    }
  }
}

// Residual and velocity as in Deep Gradient Compression, one element at a time.
struct SlowDgc {
  std::vector<float> velocity, residual;

  Taken step(const std::vector<float>& g, size_t k, Gains gains, const MomentumStep* momentum) {
    for (size_t i = 0; i < g.size(); ++i) {
      float increment = g[i] * gains.gain;
      if (momentum != nullptr && momentum->nesterov) {
        velocity[i] = (velocity[i] + increment) * momentum->momentum;
        increment = velocity[i] + increment;
      } else if (momentum != nullptr) {
        increment = velocity[i] = velocity[i] * momentum->momentum + increment;
      }
      residual[i] = residual[i] * gains.keep + increment;
    }
    Taken taken = slow_topk(residual, k);
    for (const uint32_t i : taken.index) {
      residual[i] = 0.0f;
      if (momentum != nullptr && momentum->mask) velocity[i] = 0.0f;
    }
    return taken;
  }
};

constexpr Gains kGains{0.5f, 1.25f};

struct SlowStep {
  std::vector<float> gradient;
  Taken taken;
  SlowDgc after;
};

std::vector<SlowStep> slow_steps(size_t n, size_t k, const MomentumStep* momentum) {
  SlowDgc slow{std::vector<float>(n), std::vector<float>(n)};
  std::vector<SlowStep> steps;
  for (uint64_t step = 0; step < 4; ++step) {
    const std::vector<float> g = step == 2 ? clustered(n) : gradient(n, 31 * n + step);
    Taken taken = slow.step(g, k, kGains, momentum);
    steps.push_back({g, std::move(taken), slow});
  }
  return steps;
}

// State that is advanced in place, or into memory beside it, aligned or not: the next step then goes the other way.
template <class Memory>
class Buffers {
 public:
  Buffers(size_t n, bool in_place) : now_(std::vector<float>(n)), then_(std::vector<float>(n)), in_place_(in_place) {}
  Advance advance() { return {now_.data(), in_place_ ? now_.data() : then_.data()}; }
  void turn() {
    if (!in_place_) std::swap(now_, then_);
  }
  float* data() { return now_.data(); }

 private:
  Memory now_, then_;
  bool in_place_;
};

// With its own memory for the state, a step clears its gradient here.
template <class Memory>
void check_steps(const std::vector<SlowStep>& steps, size_t n, size_t k, Select select, const MomentumStep* momentum,
                 bool in_place) {
  Buffers<Memory> velocity(n, in_place), residual(n, in_place);
  const auto index = exact<uint32_t>(k);
  const auto value = exact<float>(k);
  for (const SlowStep& slow : steps) {
    Unaligned gradient(slow.gradient);
    const Spent g{gradient.data(), !in_place};
    const std::vector<float> before(residual.data(), residual.data() + n);
    double squares = 0.0;
    const size_t count = momentum == nullptr
                             ? residual_topk(g, n, k, select, kGains, residual.advance(), index.get(), value.get(), squares)
                             : dgc_topk(g, n, k, select, kGains, *momentum, velocity.advance(), residual.advance(),
                                        index.get(), value.get(), squares);
    CHECK(near(squares, sum_squares(slow.gradient.data(), n)));
    CHECK(same_bits(g.data, g.clear ? std::vector<float>(n).data() : slow.gradient.data(), n));
    CHECK(same(slow.taken, index.get(), value.get(), count));
    CHECK(in_place || same_bits(residual.data(), before.data(), n));
    residual.turn();
    if (momentum != nullptr) velocity.turn();
    CHECK(same_bits(residual.data(), slow.after.residual.data(), n));
    CHECK(same_bits(velocity.data(), slow.after.velocity.data(), n));
  }
}

void check_feedback(size_t n, size_t k, const MomentumStep* momentum) {
  const std::vector<SlowStep> steps = slow_steps(n, k, momentum);
  under_every_setting([&] {
    for (const Select select : {Select::kSampled, Select::kRadix}) {
      check_steps<Unaligned>(steps, n, k, select, momentum, true);
      if (n < kGrain) {
        check_steps<Unaligned>(steps, n, k, select, momentum, false);
      } else {  // large enough to be stored past the caches
        check_steps<Aligned>(steps, n, k, select, momentum, false);
      }
    }
  });
}

void fused_with_feedback() {
  const MomentumStep steps[] = {{0.9f, false, true}, {0.9f, false, false}, {0.9f, true, true}, {0.9f, true, false}};
  for (const size_t n : {size_t{1}, size_t{64}, size_t{65}, size_t{4099}, size_t{30011}, size_t{400003}}) {
    const size_t k = n / 100 + 1;
    check_feedback(n, k, nullptr);
    for (const MomentumStep& step : steps) check_feedback(n, k, &step);
  }
}

void feedback_on_a_list() {
  for (const size_t n : {size_t{1}, size_t{65}, size_t{30011}, size_t{140003}}) {
    const size_t k = n / 100 + 1;
    under_every_setting([&] {
      for (const Select select : {Select::kSampled, Select::kRadix}) {
        std::vector<float> expected(n, 0.25f), found(n, 0.25f);
        for (uint64_t step = 0; step < 3; ++step) {
          const std::vector<float> whole = gradient(n, n + step);
          std::vector<uint32_t> at(k), slow_index(k), index(k);
          std::vector<float> listed(k), slow_value(k), value(k);
          const size_t count = topk(whole.data(), n, k, select, at.data(), listed.data());
          std::vector<float> dense(n);
          scatter(at.data(), listed.data(), count, dense.data());
          double squares = 0.0;
          const size_t slow = residual_topk({dense.data(), false}, n, k, select, {1.0f, 1.0f},
                                            {expected.data(), expected.data()}, slow_index.data(), slow_value.data(), squares);
          const std::vector<float> old = found;
          std::vector<float> before(count);
          const size_t fast = residual_topk_of_list({at.data(), listed.data(), count}, n, k, select, found.data(),
                                                    before.data(), index.data(), value.data());
          CHECK(slow == fast && index == slow_index);
          CHECK(same_bits(value.data(), slow_value.data(), k));
          CHECK(same_bits(found.data(), expected.data(), n));
          std::vector<float> undone = found;
          scatter(index.data(), value.data(), fast, undone.data());
          scatter(at.data(), before.data(), count, undone.data());
          CHECK(same_bits(undone.data(), old.data(), n));
        }
      }
    });
  }
}

void every_nonzero_element() {
  for (const size_t n : awkward_sizes()) {
    const std::vector<float> x = gradient(n, n + 5);
    const Taken expected = slow_topk(x, n);
    under_every_setting([&] {
      const size_t count = nonzero(x.data(), n, nullptr, nullptr, 0);
      CHECK_EQ(count, expected.index.size());
      const auto index = exact<uint32_t>(count);
      const auto value = exact<float>(count);
      nonzero(x.data(), n, index.get(), value.get(), count);
      CHECK(same(expected, index.get(), value.get(), count));
    });
  }
}

}  // namespace

Suite topk_suite() {
  return {"test_topk",
          {{"plain_selection", plain_selection},
           {"fused_with_feedback", fused_with_feedback},
           {"feedback_on_a_list", feedback_on_a_list},
           {"every_nonzero_element", every_nonzero_element}}};
}

}  // namespace thinwire::test
