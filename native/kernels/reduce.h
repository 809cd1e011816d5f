// Sums and maxima in a fixed order.
#pragma once

#include "kernels/run.h"
#include "table.h"

namespace thinwire {

template <class V>
inline double sum_lanes(const typename V::F (&x)[4]) {
  float lane[16];
  double sum = 0.0;
  V::store(lane, V::add(V::add(x[0], x[1]), V::add(x[2], x[3])));
  for (float one : lane) sum += static_cast<double>(one);
  return sum;
}

// Sums |x| or x^2 over at most kSpan elements. 64 float lanes (or 16 double lanes for squares) take the elements in
// turn and are then added one after the other in double: the order is the same for every instruction set.
template <class V>
struct Accumulator {
  static constexpr size_t kSpan = 4096;

  typename V::F magnitude[4] = {V::set(0.0f), V::set(0.0f), V::set(0.0f), V::set(0.0f)};
  typename V::D square = V::dzero();

  template <SignScale kPower>
  inline void add(const typename V::F (&x)[4]) {
    for (int j = 0; j < 4; ++j) {
      if constexpr (kPower == SignScale::kL1) {
        magnitude[j] = V::add(magnitude[j], V::abs(x[j]));
      } else {
        square = V::add_squares(square, x[j]);
      }
    }
  }

  template <SignScale kPower>
  inline double total() const {
    if constexpr (kPower == SignScale::kL1) return sum_lanes<V>(magnitude);
    double lane[16], sum = 0.0;
    V::dstore(lane, square);
    for (double x : lane) sum += x;
    return sum;
  }
};

// Sums x^2 over a span in floats, which costs a pass that waits for memory nothing. Inf where doubles would hold the sum.
template <class V>
struct QuickSquares {
  typename V::F lanes[4] = {V::set(0.0f), V::set(0.0f), V::set(0.0f), V::set(0.0f)};

  inline void add(const typename V::F (&x)[4]) {
    for (int j = 0; j < 4; ++j) lanes[j] = V::add(lanes[j], V::mul(x[j], x[j]));
  }
  inline double total() const { return sum_lanes<V>(lanes); }
};

template <class V, SignScale kPower>
double sum_range(const float* x, size_t n) {
  double sum = 0.0;
  for (size_t span = 0; span < n; span += Accumulator<V>::kSpan) {
    const size_t stop = n - span < Accumulator<V>::kSpan ? n : span + Accumulator<V>::kSpan;
    Accumulator<V> accumulator;
    for (size_t i = span; i < stop; i += kRun) {
      typename V::F run[4];
      load_run<V>(x + i, run_length<V>(i, stop), run);
      accumulator.template add<kPower>(run);
    }
    sum += accumulator.template total<kPower>();
  }
  return sum;
}

template <class V>
double sum_kernel(const float* x, size_t n, SignScale power) {
  return power == SignScale::kL1 ? sum_range<V, SignScale::kL1>(x, n) : sum_range<V, SignScale::kL2>(x, n);
}

template <class V>
inline uint32_t largest_lane(const typename V::I (&largest)[4]) {
  uint32_t lane[16];
  V::istore(lane, V::imax(V::imax(largest[0], largest[1]), V::imax(largest[2], largest[3])));
  uint32_t top = 0;
  for (uint32_t x : lane) top = x > top ? x : top;
  return top;
}

template <class V>
uint32_t max_magnitude_kernel(const float* x, size_t n) {
  typename V::I largest[4] = {V::iset(0), V::iset(0), V::iset(0), V::iset(0)};
  for (size_t i = 0; i < n; i += kRun) {
    typename V::F run[4];
    load_run<V>(x + i, run_length<V>(i, n), run);
    for (int j = 0; j < 4; ++j) largest[j] = V::imax(largest[j], V::magnitude(run[j]));
  }
  return largest_lane<V>(largest);
}

}  // namespace thinwire
