// Adam: one pass over a parameter and its state, each operation rounded on its own.
#pragma once

#include <algorithm>

#include "kernels/reduce.h"
#include "kernels/run.h"
#include "table.h"

namespace thinwire {

// x + l2 * param. Not for l2 = 0, which must leave even -0.0 and what lies beside an inf as they are.
template <class V>
inline typename V::F add_l2(typename V::F x, typename V::F param, const AdamFactors& factors) {
  return V::add(x, V::mul(param, V::set(factors.l2)));
}

// exp_avg / (sqrt(exp_avg_sq) * (1 / correction2_sqrt) + eps). A second division would be what limits the loop.
template <class V>
inline typename V::F adam_ratio(typename V::F exp_avg, typename V::F exp_avg_sq, const AdamFactors& factors) {
  const typename V::F root = V::mul(V::sqrt(exp_avg_sq), V::set(1.0f / factors.correction2_sqrt));
  return V::div(exp_avg, V::add(root, V::set(factors.eps)));
}

// param * decay - step_size * ratio.
template <class V>
inline typename V::F adam_moved(typename V::F param, typename V::F ratio, const AdamFactors& factors) {
  return V::sub(V::mul(param, V::set(factors.decay)), V::mul(ratio, V::set(factors.step_size)));
}

// Whole runs, one register after the other: four of each tensor at once would be more than AVX2 has.
template <class V, bool kL2>
void adam_runs(const AdamStep& step, size_t begin, size_t end) {
  const AdamFactors factors = step.factors;  // a copy, which no store through a float* can change
  const typename V::F weight1 = V::set(step.means.weight1), weight2 = V::set(step.means.weight2);
  const typename V::F beta2 = V::set(step.means.beta2);
  for (size_t i = begin; i < end; i += 16) {
    const typename V::F param = V::load(step.param + i);
    typename V::F gradient = V::load(step.gradient + i);
    typename V::F mean = V::load(step.exp_avg + i), square = V::load(step.exp_avg_sq + i);
    if constexpr (kL2) gradient = add_l2<V>(gradient, param, factors);
    mean = V::add(mean, V::mul(V::sub(gradient, mean), weight1));
    square = V::add(V::mul(square, beta2), V::mul(V::mul(gradient, gradient), weight2));
    V::store(step.exp_avg + i, mean);
    V::store(step.exp_avg_sq + i, square);
    V::store(step.param + i, adam_moved<V>(param, adam_ratio<V>(mean, square, factors), factors));
  }
}

template <class V, bool kL2>
void adam_range(const AdamStep& step, size_t begin, size_t end) {
  const size_t tail = end / kRun * kRun, nbytes = (end - tail) * sizeof(float);
  adam_runs<V, kL2>(step, begin, tail);
  if (tail == end) return;
  float param[kRun] = {}, gradient[kRun] = {}, exp_avg[kRun] = {}, exp_avg_sq[kRun] = {};
  std::memcpy(param, step.param + tail, nbytes);
  std::memcpy(gradient, step.gradient + tail, nbytes);
  std::memcpy(exp_avg, step.exp_avg + tail, nbytes);
  std::memcpy(exp_avg_sq, step.exp_avg_sq + tail, nbytes);
  adam_runs<V, kL2>({param, gradient, exp_avg, exp_avg_sq, step.means, step.factors}, 0, kRun);
  std::memcpy(step.param + tail, param, nbytes);
  std::memcpy(step.exp_avg + tail, exp_avg, nbytes);
  std::memcpy(step.exp_avg_sq + tail, exp_avg_sq, nbytes);
}

// What a square of a block counts as at least: a part of their mean. Lanes are added in order, then each to the next.
template <class V>
inline float block_floor(const float* square, size_t n, float part) {
  typename V::F sum = V::set(0.0f);
  for (size_t i = 0; i < n; i += kRun) {
    typename V::F x[4];
    load_run<V>(square + i, run_length<V>(i, n), x);
    for (int j = 0; j < 4; ++j) sum = V::add(sum, x[j]);
  }
  float lanes[16];
  V::store(lanes, sum);
  double total = 0.0;
  for (const float lane : lanes) total += static_cast<double>(lane);
  return static_cast<float>(total / static_cast<double>(n) * static_cast<double>(part));
}

// A run of exp_avg as it goes by, to be a sign run: whether it is one shows in the magnitudes of the others.
template <class V>
class SignRunWriter {
 public:
  explicit SignRunWriter(float first) : magnitude_(V::magnitude(V::set(first))), first_(first) {}

  inline void add(int j, typename V::F x) {
    signs_ |= static_cast<uint64_t>(V::bits(V::iless(V::bits_of(x), V::iset(0)))) << (16 * j);
    others_ = V::ior(others_, V::ixor(V::magnitude(x), magnitude_));
  }
  inline void finish(uint8_t* runs, size_t i, typename V::I& others) const {
    store_sign_run(runs, i, {signs_, float_from_bits(magnitude_bits(first_))});
    others = V::ior(others, others_);
  }

 private:
  typename V::I magnitude_, others_ = V::iset(0);
  float first_;
  uint64_t signs_ = 0;
};

// Whole runs. With kRuns, which is only for what is not changed by an l2: returns whether all are sign runs.
template <class V, bool kL2, bool kRuns>
bool adam_momentum_runs(const AdamMomentumStep& step, size_t begin, size_t end, float floor) {
  const AdamFactors factors = step.factors;
  const typename V::F least = V::set(floor), zero = V::set(0.0f);
  const typename V::F most = V::set(step.limit), fewest = V::set(-step.limit);
  const Writer<V> exp_avg(step.exp_avg, end - begin, step.exp_avg == step.momentum);
  typename V::I others = V::iset(0);
  for (size_t run = begin; run < end; run += kRun) {
    SignRunWriter<V> sign_run(step.momentum[run]);
    for (int j = 0; j < 4; ++j) {
      const size_t i = run + 16 * static_cast<size_t>(j);
      const typename V::F param = V::load(step.param + i), square = V::load(step.exp_avg_sq + i);
      typename V::F mean = V::load(step.momentum + i);
      if constexpr (kL2) mean = add_l2<V>(mean, param, factors);
      if constexpr (kRuns) sign_run.add(j, mean);
      exp_avg.store_lanes(i, mean);
      // The limits come first: so a nan stays one. An infinite limit changes nothing.
      const typename V::F free = adam_ratio<V>(mean, V::max(least, square), factors);
      const typename V::F ratio = V::max(fewest, V::min(most, free));
      V::store(step.param + i, adam_moved<V>(param, V::choose(V::nonzero(square), ratio, zero), factors));
    }
    if constexpr (kRuns) sign_run.finish(step.runs, run, others);
  }
  const typename V::I all[4] = {others, others, others, others};
  return kRuns && largest_lane<V>(all) == 0;
}

template <class V, bool kL2, bool kRuns>
bool adam_momentum_block(const AdamMomentumStep& step, size_t begin, size_t end) {
  const size_t tail = end / kRun * kRun, nbytes = (end - tail) * sizeof(float);
  const float floor = block_floor<V>(step.exp_avg_sq + begin, end - begin, step.floor);
  const bool whole = adam_momentum_runs<V, kL2, kRuns>(step, begin, tail, floor);
  if (tail == end) return whole;
  float param[kRun] = {}, momentum[kRun], exp_avg_sq[kRun] = {};
  std::fill_n(momentum, kRun, step.momentum[tail]);  // of one magnitude if the rest is
  std::memcpy(param, step.param + tail, nbytes);
  std::memcpy(momentum, step.momentum + tail, nbytes);
  std::memcpy(exp_avg_sq, step.exp_avg_sq + tail, nbytes);
  uint8_t* runs = kRuns ? step.runs + sign_runs_nbytes(tail) : nullptr;
  const AdamMomentumStep last{param,      momentum,   momentum,   exp_avg_sq, step.factors,
                              step.floor, step.block, step.limit, runs};
  const bool rest = adam_momentum_runs<V, kL2, kRuns>(last, 0, kRun, floor);
  std::memcpy(step.param + tail, param, nbytes);
  std::memcpy(step.exp_avg + tail, momentum, nbytes);
  return whole && rest;
}

// Whole blocks, but for the last of the tensor: ranges begin at whole blocks. After the first block that sign runs cannot
// hold no more are made: a momentum that did not come in one bit costs nothing then.
template <class V, bool kL2>
bool adam_momentum_range(const AdamMomentumStep& step, size_t begin, size_t end) {
  bool as_runs = !kL2 && step.runs != nullptr;
  for (size_t i = begin; i < end; i += step.block) {
    const size_t stop = end - i < step.block ? end : i + step.block;
    if (as_runs) {
      as_runs = adam_momentum_block<V, kL2, !kL2>(step, i, stop);
    } else {
      adam_momentum_block<V, kL2, false>(step, i, stop);
    }
  }
  return as_runs;
}

template <class V>
void adam_kernel(const AdamStep& step, size_t begin, size_t end) {
  step.factors.l2 == 0.0f ? adam_range<V, false>(step, begin, end) : adam_range<V, true>(step, begin, end);
}

template <class V>
bool adam_momentum_kernel(const AdamMomentumStep& step, size_t begin, size_t end) {
  return step.factors.l2 == 0.0f ? adam_momentum_range<V, false>(step, begin, end)
                                 : adam_momentum_range<V, true>(step, begin, end);
}

}  // namespace thinwire
