// Shared random indices: different, the same everywhere, and every set as likely as any other.

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "check.h"
#include "kernels.h"
#include "tools.h"

namespace thinwire::test {
namespace {

using Indices = std::vector<uint32_t>;

Indices draw(uint64_t seed, size_t n, size_t k) {
  const auto index = exact<uint32_t>(k);
  random_indices(seed, n, k, index.get());
  return Indices(index.get(), index.get() + k);
}

// How far, in standard deviations, a chi-square statistic is above what `freedom` degrees of freedom give.
double excess(double statistic, double freedom) { return (statistic - freedom) / std::sqrt(2 * freedom); }

// The chi-square statistic of counts that should all be equal.
template <class Counts>
double chi_square(const Counts& counts, double expected) {
  double statistic = 0;
  for (const double count : counts) statistic += (count - expected) * (count - expected) / expected;
  return statistic;
}

void different_and_below_n() {
  Random random(1);
  for (size_t n = 0; n <= 600; ++n) {
    for (const size_t k : {size_t{0}, n / 3, n}) {
      Indices index = draw(random.next(), n, k);
      std::sort(index.begin(), index.end());
      CHECK(std::adjacent_find(index.begin(), index.end()) == index.end());
      CHECK(index.empty() || index.back() < n);
    }
  }
}

void awkward_large_sizes() {
  for (const size_t n : {size_t{65535}, size_t{65536}, size_t{65537}, size_t{1} << 31, kWide - 1, kWide}) {
    Indices index = draw(n, n, 20000);
    std::sort(index.begin(), index.end());
    CHECK(std::adjacent_find(index.begin(), index.end()) == index.end());
    CHECK(index.back() < n);
    CHECK(index.front() < n / 1000);
    CHECK(index.back() > n - n / 1000);
  }
}

// Workers that disagree here would add up different coordinates, so these numbers may never change.
void same_everywhere() {
  CHECK(draw(0, 10, 5) == (Indices{5, 9, 4, 0, 8}));
  CHECK(draw(1, 1000, 6) == (Indices{769, 966, 484, 344, 557, 274}));
  CHECK(draw(0x123456789abcdefu, 100000000, 5) == (Indices{67823651, 84088510, 48482311, 42478877, 24574691}));
  CHECK(draw(~uint64_t{0}, kWide, 4) == (Indices{173708625, 1286338026, 3873215825, 4070287066}));
}

// What is drawn first does not depend on how many are drawn.
void prefix_of_a_longer_draw() {
  const Indices all = draw(5, 777, 777);
  for (const size_t k : {0u, 1u, 100u, 776u}) {
    const Indices some = draw(5, 777, k);
    CHECK(std::equal(some.begin(), some.end(), all.begin()));
  }
}

void changes_with_the_seed() {
  const Indices first = draw(0, 1000000, 1000);
  for (uint64_t seed = 1; seed < 50; ++seed) {
    Indices both = draw(seed, 1000000, 1000);
    both.insert(both.end(), first.begin(), first.end());
    std::sort(both.begin(), both.end());
    const auto distinct = std::unique(both.begin(), both.end()) - both.begin();
    CHECK(distinct > 1985);  // one in common is expected
  }
}

// Each index is included k / n of the time.
void inclusion_is_uniform() {
  for (const size_t n : {2u, 3u, 100u, 257u, 1000u}) {
    const size_t k = (n + 3) / 4;
    const double draws = 20000;
    std::vector<double> counts(n);
    for (uint64_t seed = 0; seed < static_cast<uint64_t>(draws); ++seed) {
      for (const uint32_t i : draw(seed, n, k)) ++counts[i];
    }
    const auto size = static_cast<double>(n);
    const double share = static_cast<double>(k) / size;
    // Drawing without replacement makes the counts vary less than chi-square has it.
    const double statistic = chi_square(counts, draws * share) / (1 - share) * (size - 1) / size;
    CHECK(std::fabs(excess(statistic, size - 1)) < 5);
  }
}

// The first two drawn are every ordered pair equally often.
void ordered_pairs_are_uniform() {
  for (const size_t n : {4u, 7u, 19u, 32u}) {
    const double draws = 200000;
    std::map<std::pair<uint32_t, uint32_t>, double> counts;
    for (uint64_t seed = 0; seed < static_cast<uint64_t>(draws); ++seed) {
      const Indices index = draw(seed << 32, n, 2);
      ++counts[{index[0], index[1]}];
    }
    const auto pairs = static_cast<double>(n * (n - 1));
    CHECK_EQ(static_cast<double>(counts.size()), pairs);
    std::vector<double> values;
    for (const auto& entry : counts) values.push_back(entry.second);
    CHECK(std::fabs(excess(chi_square(values, draws / pairs), pairs - 1)) < 5);
  }
}

// The places of two draws that follow one another in a large tensor, in a 16 x 16 grid.
void neighbours_are_independent() {
  const size_t n = 3000000;
  const Indices index = draw(11, n, 400001);
  std::vector<double> counts(256);
  for (size_t i = 0; i + 1 < index.size(); i += 2) {
    ++counts[uint64_t{index[i]} * 16 / n * 16 + uint64_t{index[i + 1]} * 16 / n];
  }
  CHECK(std::fabs(excess(chi_square(counts, 200000.0 / 256), 255)) < 5);
}

// All 20 sets of 3 out of 6, and all 252 of 5 out of 10.
void sets_are_uniform() {
  for (const size_t n : {6u, 10u}) {
    const double draws = 200000;
    std::map<uint32_t, double> counts;
    for (uint64_t seed = 0; seed < static_cast<uint64_t>(draws); ++seed) {
      uint32_t set = 0;
      for (const uint32_t i : draw(seed, n, n / 2)) set |= uint32_t{1} << i;
      ++counts[set];
    }
    const double sets = n == 6 ? 20 : 252;
    CHECK_EQ(static_cast<double>(counts.size()), sets);
    std::vector<double> values;
    for (const auto& entry : counts) values.push_back(entry.second);
    CHECK(std::fabs(excess(chi_square(values, draws / sets), sets - 1)) < 5);
  }
}

}  // namespace

Suite sampling_suite() {
  return {"test_sampling",
          {{"different and below n", different_and_below_n},
           {"awkward large sizes", awkward_large_sizes},
           {"same everywhere", same_everywhere},
           {"prefix of a longer draw", prefix_of_a_longer_draw},
           {"changes with the seed", changes_with_the_seed},
           {"inclusion is uniform", inclusion_is_uniform},
           {"ordered pairs are uniform", ordered_pairs_are_uniform},
           {"neighbours are independent", neighbours_are_independent},
           {"sets are uniform", sets_are_uniform}}};
}

}  // namespace thinwire::test
