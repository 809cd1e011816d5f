// Elements whose magnitude reaches a threshold, gathered while feedback is applied in the same pass.
#pragma once

#include "kernels/run.h"
#include "table.h"

namespace thinwire {

// A source advances the state of a run as if nothing were taken, and afterwards gives up the elements that are.
template <class V>
struct PlainValues {
  const float* x;
  inline void advance(size_t i, size_t count, typename V::F (&out)[4]) const {
    prefetch_run<V>(x + i);
    load_run<V>(x + i, count, out);
  }
  inline void take(size_t, Found&, size_t) const {}
};

template <class V>
struct ResidualValues {
  ResidualStep step;
  inline void advance(size_t i, size_t count, typename V::F (&out)[4]) const {
    const typename V::F gain = V::set(step.gains.gain), keep = V::set(step.gains.keep);
    typename V::F gradient[4];
    prefetch_run<V>(step.residual + i);
    prefetch_run<V>(step.gradient + i);
    load_run<V>(step.residual + i, count, out);
    load_run<V>(step.gradient + i, count, gradient);
    for (int j = 0; j < 4; ++j) out[j] = V::add(V::mul(out[j], keep), V::mul(gradient[j], gain));
    store_run<V>(step.residual + i, count, out);
  }
  inline void take(size_t i, Found&, size_t) const { step.residual[i] = 0.0f; }
};

template <class V, bool kNesterov>
struct DgcValues {
  DgcStep step;
  inline void advance(size_t i, size_t count, typename V::F (&out)[4]) const {
    const typename V::F gain = V::set(step.gains.gain), keep = V::set(step.gains.keep);
    const typename V::F momentum = V::set(step.step.momentum);
    typename V::F gradient[4], velocity[4];
    prefetch_run<V>(step.gradient + i);
    prefetch_run<V>(step.velocity + i);
    prefetch_run<V>(step.residual + i);
    load_run<V>(step.gradient + i, count, gradient);
    load_run<V>(step.velocity + i, count, velocity);
    load_run<V>(step.residual + i, count, out);
    for (int j = 0; j < 4; ++j) {
      const typename V::F g = V::mul(gradient[j], gain);
      typename V::F increment;
      if constexpr (kNesterov) {
        velocity[j] = V::mul(V::add(velocity[j], g), momentum);
        increment = V::add(velocity[j], g);
      } else {
        velocity[j] = V::add(V::mul(velocity[j], momentum), g);
        increment = velocity[j];
      }
      out[j] = V::add(V::mul(out[j], keep), increment);
    }
    store_run<V>(step.velocity + i, count, velocity);
    store_run<V>(step.residual + i, count, out);
  }
  inline void take(size_t i, Found& found, size_t place) const {
    step.residual[i] = 0.0f;
    found.velocity[place] = step.velocity[i];
    if (step.step.mask) step.velocity[i] = 0.0f;
  }
};

template <class V, class Values>
inline void gather(const Values& values, size_t i, typename V::F x, typename V::M mask, Found& found) {
  const uint32_t bits = V::bits(mask);
  if (bits == 0) return;
  if (found.count + 16 > found.capacity) {
    found.overflow = true;
    return;
  }
  V::compress(mask, x, found.value + found.count);
  V::compress_index(mask, static_cast<uint32_t>(i), found.index + found.count);
  for (uint32_t left = bits; left != 0; left &= left - 1) {
    values.take(i + static_cast<size_t>(__builtin_ctz(left)), found, found.count++);
  }
}

template <class V, class Values>
void collect_range(const Values& values, size_t begin, size_t end, uint32_t threshold, Found& found) {
  // Padding is zero, and a threshold of at least 1 never takes a zero.
  const typename V::I limit = V::iset(threshold == 0 ? 1 : threshold);
  for (size_t i = begin; i < end; i += kRun) {
    typename V::F x[4];
    values.advance(i, run_length<V>(i, end), x);
    typename V::M mask[4];
    for (int j = 0; j < 4; ++j) mask[j] = V::at_least(x[j], limit);
    const auto any = V::either(V::either(mask[0], mask[1]), V::either(mask[2], mask[3]));
    if (__builtin_expect(V::bits(any) == 0, 1)) continue;
    for (size_t j = 0; j < 4; ++j) gather<V>(values, i + 16 * j, x[j], mask[j], found);
  }
}

template <class V>
void collect_kernel(const float* x, size_t begin, size_t end, uint32_t threshold, Found& found) {
  collect_range<V>(PlainValues<V>{x}, begin, end, threshold, found);
}

template <class V>
void collect_residual_kernel(const ResidualStep& step, size_t begin, size_t end, uint32_t threshold, Found& found) {
  collect_range<V>(ResidualValues<V>{step}, begin, end, threshold, found);
}

template <class V>
void collect_dgc_kernel(const DgcStep& step, size_t begin, size_t end, uint32_t threshold, Found& found) {
  if (step.step.nesterov) {
    collect_range<V>(DgcValues<V, true>{step}, begin, end, threshold, found);
  } else {
    collect_range<V>(DgcValues<V, false>{step}, begin, end, threshold, found);
  }
}

}  // namespace thinwire
