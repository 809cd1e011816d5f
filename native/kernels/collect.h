// Elements whose magnitude reaches a threshold, gathered while feedback is applied in the same pass.
#pragma once

#include "kernels/reduce.h"
#include "kernels/run.h"
#include "table.h"

namespace thinwire {

// A source makes runs of new values; those that are found are cleared, and what is left is kept as the new state.
template <class V>
struct PlainValues {
  struct Run {
    typename V::F x[4];
  };
  const float* x;

  inline void advance(size_t i, size_t count, Run& run, QuickSquares<V>&) const {
    load_run<V>(x + i, count, run.x);
  }
  inline void find(Run&, int, typename V::M, const Found&) const {}
  inline void keep(size_t, size_t, const Run&) const {}
  inline void note(size_t, double) const {}
  inline void prefetch(size_t i) const { __builtin_prefetch(x + i); }

  // For codecs that look again at what was kept: where it is, and a new value for one of it.
  inline void keep_near(size_t, size_t, const Run&) const {}
  inline const float* kept(size_t i) const { return x + i; }
  inline void replace(size_t, float) const {}
};

template <class V>
inline void clear_run(const Spent& gradient, size_t i, size_t count) {
  const typename V::F zero = V::set(0.0f);
  if (gradient.clear) store_run<V>(gradient.data + i, count, {zero, zero, zero, zero});
}

template <class V>
class ResidualValues {
 public:
  using Run = typename PlainValues<V>::Run;

  ResidualValues(const ResidualStep& step, size_t numel)
      : step_(step), residual_(step.residual.to, numel, step.residual.from == step.residual.to) {}

  inline void advance(size_t i, size_t count, Run& run, QuickSquares<V>& squares) const {
    const typename V::F gain = V::set(step_.gains.gain), keep = V::set(step_.gains.keep);
    typename V::F gradient[4];
    load_run<V>(step_.residual.from + i, count, run.x);
    load_run<V>(step_.gradient.data + i, count, gradient);
    squares.add(gradient);
    for (int j = 0; j < 4; ++j) run.x[j] = V::add(V::mul(run.x[j], keep), V::mul(gradient[j], gain));
  }
  inline void find(Run& run, int j, typename V::M found, const Found&) const { run.x[j] = V::clear(found, run.x[j]); }
  inline void keep(size_t i, size_t count, const Run& run) const {
    residual_.store(i, count, run.x);
    clear_run<V>(step_.gradient, i, count);
  }
  inline void note(size_t grain, double squares) const { step_.squares[grain] = squares; }
  inline void prefetch(size_t i) const {
    __builtin_prefetch(step_.gradient.data + i);
    __builtin_prefetch(step_.residual.from + i);
  }
  // Not past the caches, as keep() may: it is looked at at once.
  inline void keep_near(size_t i, size_t count, const Run& run) const {
    store_run<V>(step_.residual.to + i, count, run.x);
    clear_run<V>(step_.gradient, i, count);
  }
  inline const float* kept(size_t i) const { return step_.residual.to + i; }
  inline void replace(size_t i, float x) const { step_.residual.to[i] = x; }

 private:
  const ResidualStep& step_;
  Writer<V> residual_;
};

template <class V, bool kNesterov>
class DgcValues {
 public:
  struct Run {
    typename V::F x[4], velocity[4];
  };

  DgcValues(const DgcStep& step, size_t numel)
      : step_(step),
        velocity_(step.velocity.to, numel, step.velocity.from == step.velocity.to),
        residual_(step.residual.to, numel, step.residual.from == step.residual.to) {}

  inline void advance(size_t i, size_t count, Run& run, QuickSquares<V>& squares) const {
    const typename V::F gain = V::set(step_.gains.gain), keep = V::set(step_.gains.keep);
    const typename V::F momentum = V::set(step_.step.momentum);
    typename V::F gradient[4];
    load_run<V>(step_.gradient.data + i, count, gradient);
    load_run<V>(step_.velocity.from + i, count, run.velocity);
    load_run<V>(step_.residual.from + i, count, run.x);
    squares.add(gradient);
    for (int j = 0; j < 4; ++j) {
      const typename V::F g = V::mul(gradient[j], gain);
      typename V::F increment;
      if constexpr (kNesterov) {
        run.velocity[j] = V::mul(V::add(run.velocity[j], g), momentum);
        increment = V::add(run.velocity[j], g);
      } else {
        run.velocity[j] = V::add(V::mul(run.velocity[j], momentum), g);
        increment = run.velocity[j];
      }
      run.x[j] = V::add(V::mul(run.x[j], keep), increment);
    }
  }
  inline void find(Run& run, int j, typename V::M mask, const Found& found) const {
    V::compress(mask, run.velocity[j], found.velocity + found.count);
    run.x[j] = V::clear(mask, run.x[j]);
    if (step_.step.mask) run.velocity[j] = V::clear(mask, run.velocity[j]);
  }
  inline void keep(size_t i, size_t count, const Run& run) const {
    velocity_.store(i, count, run.velocity);
    residual_.store(i, count, run.x);
    clear_run<V>(step_.gradient, i, count);
  }
  inline void note(size_t grain, double squares) const { step_.squares[grain] = squares; }

 private:
  const DgcStep& step_;
  Writer<V> velocity_, residual_;
};

template <class V, class Values>
inline void gather(const Values& values, size_t i, typename Values::Run& run, int j, typename V::M mask, Found& found) {
  const uint32_t bits = V::bits(mask);
  if (bits == 0) return;
  if (found.count + 16 > found.capacity) {
    found.overflow = true;
    return;
  }
  V::compress(mask, run.x[j], found.value + found.count);
  V::compress_index(mask, static_cast<uint32_t>(i), found.index + found.count);
  values.find(run, j, mask, found);
  found.count += static_cast<size_t>(__builtin_popcount(bits));
}

template <class V, class Values>
inline void collect_span(const Values& values, size_t begin, size_t end, typename V::I limit, Found& found,
                         QuickSquares<V>& squares) {
  for (size_t i = begin; i < end; i += kRun) {
    const size_t count = run_length<V>(i, end);
    typename Values::Run run;
    values.advance(i, count, run, squares);
    typename V::M mask[4];
    for (int j = 0; j < 4; ++j) mask[j] = V::at_least(run.x[j], limit);
    const auto any = V::either(V::either(mask[0], mask[1]), V::either(mask[2], mask[3]));
    if (__builtin_expect(V::bits(any) != 0, 0)) {
      for (int j = 0; j < 4; ++j) gather<V>(values, i + 16 * static_cast<size_t>(j), run, j, mask[j], found);
    }
    values.keep(i, count, run);
  }
}

template <class V, class Values>
void collect_range(const Values& values, size_t begin, size_t end, uint32_t threshold, Found& found) {
  // Padding is zero, and a threshold of at least 1 never takes a zero.
  const typename V::I limit = V::iset(threshold == 0 ? 1 : threshold);
  for (size_t grain = begin; grain < end; grain += kGrain) {
    const size_t grain_end = end - grain < kGrain ? end : grain + kGrain;
    double sum = 0.0;
    for (size_t span = grain; span < grain_end; span += Accumulator<V>::kSpan) {
      const size_t stop = grain_end - span < Accumulator<V>::kSpan ? grain_end : span + Accumulator<V>::kSpan;
      QuickSquares<V> squares;
      collect_span<V>(values, span, stop, limit, found, squares);
      sum += squares.total();
    }
    values.note(grain / kGrain, sum);
  }
}

template <class V>
void collect_kernel(const float* x, size_t begin, size_t end, uint32_t threshold, Found& found) {
  collect_range<V>(PlainValues<V>{x}, begin, end, threshold, found);
}

template <class V>
void collect_residual_kernel(const ResidualStep& step, size_t begin, size_t end, uint32_t threshold, Found& found) {
  collect_range<V>(ResidualValues<V>(step, end - begin), begin, end, threshold, found);
}

template <class V>
void collect_dgc_kernel(const DgcStep& step, size_t begin, size_t end, uint32_t threshold, Found& found) {
  if (step.step.nesterov) {
    collect_range<V>(DgcValues<V, true>(step, end - begin), begin, end, threshold, found);
  } else {
    collect_range<V>(DgcValues<V, false>(step, end - begin), begin, end, threshold, found);
  }
}

}  // namespace thinwire
