// One bit per element: encoding from three sources, decoding, and the lazy residual.
#pragma once

#include "kernels/dense.h"
#include "kernels/reduce.h"
#include "kernels/run.h"
#include "table.h"

namespace thinwire {

// +scale, or -scale where the bit is set.
template <class V>
inline typename V::F signed_scale(uint64_t word, int j, float scale) {
  const auto negative = V::from_bits(static_cast<uint32_t>(word >> (16 * j)) & 0xffffu);
  return V::negate_where(negative, V::set(scale));
}

template <class V>
inline bool any_nonzero(const typename V::F (&x)[4]) {
  const auto low = V::either(V::nonzero(x[0]), V::nonzero(x[1]));
  const auto high = V::either(V::nonzero(x[2]), V::nonzero(x[3]));
  return V::bits(V::either(low, high)) != 0;
}

// x <- x minus what was sent for x: the residual behind (wanted, scales).
template <class V>
inline void subtract_sent(typename V::F (&x)[4], const SignView& last, size_t i) {
  const typename V::F scale = V::set(any_nonzero<V>(x) ? run_scale(last, i) : 0.0f);
  for (int j = 0; j < 4; ++j) x[j] = V::sub(x[j], V::negate_where(V::negative(x[j]), scale));
}

// What was wanted, kept as it is made.
template <class V>
class Wanted {
 public:
  Wanted(Advance place, size_t numel) : place_(place), writer_(place.to, numel, place.from == place.to) {}

  inline void load(size_t i, size_t count, typename V::F (&x)[4]) const {
    load_run<V>(place_.from + i, count, x);
  }
  // Makes the padding zero again: what was sent for it must not count in the mean.
  inline void keep(size_t i, size_t count, typename V::F (&x)[4]) const {
    writer_.store(i, count, x);
    if (count != kRun) load_run<V>(place_.to + i, count, x);
  }

 private:
  Advance place_;
  Writer<V> writer_;
};

// A source gives the run of values to encode that starts at i, and keeps whatever state it has.
template <class V>
struct PlainSource {
  static constexpr bool kGradient = false;
  const float* x;
  inline void run(size_t i, size_t count, typename V::F (&out)[4], QuickSquares<V>&) const {
    load_run<V>(x + i, count, out);
  }
};

// A loop for each, so that a step without a momentum pays nothing for the others.
enum class Carries { kNothing, kFloats, kRuns };

template <class V, Carries kCarries>
struct StepSource {
  static constexpr bool kGradient = true;
  const SignStep& step;
  Wanted<V> wanted;
  inline void run(size_t i, size_t count, typename V::F (&out)[4], QuickSquares<V>& squares) const {
    const typename V::F gain = V::set(step.gains.gain), keep = V::set(step.gains.keep);
    typename V::F gradient[4];
    wanted.load(i, count, out);
    load_run<V>(step.gradient + i, count, gradient);
    squares.add(gradient);
    for (int j = 0; j < 4; ++j) gradient[j] = V::mul(gradient[j], gain);
    if constexpr (kCarries == Carries::kFloats) add_floats(i, count, gradient);
    if constexpr (kCarries == Carries::kRuns) add_sign_run(i, gradient);
    subtract_sent<V>(out, step.last, i);
    for (int j = 0; j < 4; ++j) out[j] = V::add(V::mul(out[j], keep), gradient[j]);
    wanted.keep(i, count, out);
  }

 private:
  inline void add_floats(size_t i, size_t count, typename V::F (&x)[4]) const {
    const typename V::F factor = V::set(step.carried.factor);
    typename V::F momentum[4];
    load_run<V>(step.carried.momentum + i, count, momentum);
    for (int j = 0; j < 4; ++j) x[j] = V::add(V::mul(momentum[j], factor), x[j]);
  }
  // A sign changes no rounding, so one product is that of all elements.
  inline void add_sign_run(size_t i, typename V::F (&x)[4]) const {
    const SignRun run = load_sign_run(step.carried.runs, i);
    const float product = run.magnitude * step.carried.factor;
    for (int j = 0; j < 4; ++j) x[j] = V::add(signed_scale<V>(run.signs, j, product), x[j]);
  }
};

// The run that starts at i of a sum of payloads.
template <class V>
inline void sum_run(const SignSum& sum, size_t i, size_t count, typename V::F (&out)[4]) {
  for (int j = 0; j < 4; ++j) out[j] = V::set(0.0f);
  for (size_t w = 0; w < sum.count; ++w) {
    const uint64_t word = load_bits<V>(sum.payloads[w].signs + i / 8, count);
    const float scale = run_scale(sum.payloads[w], i) * sum.weight;
    for (int j = 0; j < 4; ++j) out[j] = V::add(out[j], signed_scale<V>(word, j, scale));
  }
}

template <class V>
struct SumSource {
  static constexpr bool kGradient = false;
  const SignSumStep& step;
  Wanted<V> wanted;
  inline void run(size_t i, size_t count, typename V::F (&out)[4], QuickSquares<V>&) const {
    typename V::F sum[4];
    sum_run<V>(step.sum, i, count, sum);
    const typename V::F keep = V::set(step.keep);
    wanted.load(i, count, out);
    subtract_sent<V>(out, step.last, i);
    for (int j = 0; j < 4; ++j) out[j] = V::add(V::mul(out[j], keep), sum[j]);
    wanted.keep(i, count, out);
  }
};

template <class V>
inline uint64_t sign_word(const typename V::F (&x)[4]) {
  uint64_t word = 0;
  for (int j = 0; j < 4; ++j) word |= static_cast<uint64_t>(V::bits(V::negative(x[j]))) << (16 * j);
  return word;
}

// Encodes one unit and notes its sum and how many of its elements lie in runs that are not all zeros.
template <class V, SignScale kPower, class Source>
inline void encode_unit(const Source& source, const SignJob& job, size_t begin, size_t end) {
  double sum = 0.0, gradient_sum = 0.0;
  uint64_t live = 0;
  for (size_t span = begin; span < end; span += Accumulator<V>::kSpan) {
    const size_t stop = end - span < Accumulator<V>::kSpan ? end : span + Accumulator<V>::kSpan;
    Accumulator<V> accumulator;
    QuickSquares<V> squares;
    for (size_t i = span; i < stop; i += kRun) {
      const size_t count = run_length<V>(i, stop);
      typename V::F x[4];
      source.run(i, count, x, squares);
      accumulator.template add<kPower>(x);
      store_bits<V>(job.signs + i / 8, count, sign_word<V>(x));
      if (any_nonzero<V>(x)) {
        live += count;
      } else {
        job.zero_map[i / kRun / 8] = static_cast<uint8_t>(job.zero_map[i / kRun / 8] | 1u << (i / kRun % 8));
      }
    }
    sum += accumulator.template total<kPower>();
    if constexpr (Source::kGradient) gradient_sum += squares.total();
  }
  if constexpr (Source::kGradient) job.squares[begin / job.unit] = gradient_sum;
  job.sums[begin / job.unit] = sum;
  job.live[begin / job.unit] = live;
}

template <class V, class Source>
void encode_units(const Source& source, const SignJob& job, size_t begin, size_t end) {
  for (size_t unit = begin; unit < end; unit += job.unit) {
    const size_t stop = end - unit < job.unit ? end : unit + job.unit;
    if (job.scale == SignScale::kL1) {
      encode_unit<V, SignScale::kL1>(source, job, unit, stop);
    } else {
      encode_unit<V, SignScale::kL2>(source, job, unit, stop);
    }
  }
}

template <class V>
void sign_encode_kernel(const float* x, const SignJob& job, size_t begin, size_t end) {
  encode_units<V>(PlainSource<V>{x}, job, begin, end);
}

template <class V>
void sign_step_kernel(const SignStep& step, const SignJob& job, size_t begin, size_t end) {
  if (step.carried.runs != nullptr) {
    encode_units<V>(StepSource<V, Carries::kRuns>{step, {step.wanted, end - begin}}, job, begin, end);
  } else if (step.carried.momentum != nullptr) {
    encode_units<V>(StepSource<V, Carries::kFloats>{step, {step.wanted, end - begin}}, job, begin, end);
  } else {
    encode_units<V>(StepSource<V, Carries::kNothing>{step, {step.wanted, end - begin}}, job, begin, end);
  }
}

template <class V>
void sign_sum_step_kernel(const SignSumStep& step, const SignJob& job, size_t begin, size_t end) {
  encode_units<V>(SumSource<V>{step, {step.wanted, end - begin}}, job, begin, end);
}

template <class V>
void sign_decode_kernel(const SignView& view, size_t begin, size_t end, float* dst) {
  const Writer<V> writer(dst, end - begin, false);
  for (size_t i = begin; i < end; i += kRun) {
    const size_t count = run_length<V>(i, end);
    const uint64_t word = load_bits<V>(view.signs + i / 8, count);
    const float scale = run_scale(view, i);
    typename V::F x[4];
    for (int j = 0; j < 4; ++j) x[j] = signed_scale<V>(word, j, scale);
    writer.store(i, count, x);
  }
}

template <class V>
void sign_add_kernel(const SignView& view, size_t begin, size_t end, float weight, float* dst) {
  for (size_t i = begin; i < end; i += kRun) {
    const size_t count = run_length<V>(i, end);
    const uint64_t word = load_bits<V>(view.signs + i / 8, count);
    const float scale = run_scale(view, i) * weight;
    typename V::F x[4];
    load_run<V>(dst + i, count, x);
    for (int j = 0; j < 4; ++j) x[j] = V::add(x[j], signed_scale<V>(word, j, scale));
    store_run<V>(dst + i, count, x);
  }
}

template <class V>
void sign_sum_kernel(const SignSum& sum, size_t begin, size_t end, float* dst) {
  const Writer<V> writer(dst, end - begin, false);
  for (size_t i = begin; i < end; i += kRun) {
    const size_t count = run_length<V>(i, end);
    typename V::F x[4];
    sum_run<V>(sum, i, count, x);
    writer.store(i, count, x);
  }
}

template <class V>
void sign_settle_kernel(const SignView& last, size_t begin, size_t end, float* wanted) {
  for (size_t i = begin; i < end; i += kRun) {
    const size_t count = run_length<V>(i, end);
    typename V::F x[4];
    load_run<V>(wanted + i, count, x);
    subtract_sent<V>(x, last, i);
    store_run<V>(wanted + i, count, x);
  }
}

}  // namespace thinwire
