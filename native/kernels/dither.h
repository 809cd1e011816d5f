// Stochastic rounding to a few levels, with randomness that depends on seed and position alone.
#pragma once

#include "kernels/dense.h"
#include "kernels/run.h"
#include "table.h"

namespace thinwire {

// 32 random bits: two multiplications and three shifts mix a counter, keyed before and between.
template <class V>
inline typename V::I random_bits(const uint32_t (&key)[2], uint32_t counter) {
  typename V::I x = V::iadd(V::iota(), V::iset(counter + key[0]));
  x = V::ixor(x, V::template ishr<16>(x));
  x = V::imul(x, V::iset(0x7feb352du));
  x = V::ixor(V::ixor(x, V::template ishr<15>(x)), V::iset(key[1]));
  x = V::imul(x, V::iset(0x846ca68bu));
  return V::ixor(x, V::template ishr<16>(x));
}

// The upper 24 bits as a float in [0, 1).
template <class V>
inline typename V::F uniform(typename V::I bits) {
  return V::mul(V::to_float(V::template ishr<8>(bits)), V::set(0x1p-24f));
}

// One bit: minus one or plus one, so that the mean is x. The code is -1 for minus one and 0 for plus one.
template <class V>
inline typename V::I one_bit_code(typename V::F x, const DitherJob& job, typename V::I random) {
  const typename V::F share = V::mul(V::add(V::mul(x, V::set(job.inverse)), V::set(1.0f)), V::set(0.5f));
  return V::ichoose(V::less(uniform<V>(random), share), V::iset(0), V::iset(~0u));
}

template <class V>
inline typename V::I linear_code(typename V::F x, const DitherJob& job, typename V::I random) {
  const float top = static_cast<float>((1u << (job.bits - 1)) - 1);
  // Not so near to one that the sum is rounded up to the next level: the lowest number would miss its own.
  const typename V::F share = V::min(uniform<V>(random), V::set(1.0f - 0x1p-16f));
  const typename V::F raised = V::add(V::mul(x, V::set(job.inverse)), share);
  return V::floor_to_int(V::max(V::min(raised, V::set(top + 0.5f)), V::set(-top)));
}

// Levels 0, 2^(1-s), ..., 1/2, 1 of the scale, s = 2^(bits-1) - 1. Adding random bits below the mantissa's end carries
// into the exponent with just the probability that makes the mean x.
template <class V>
inline typename V::I natural_code(typename V::F x, const DitherJob& job, typename V::I random) {
  const uint32_t s = (1u << (job.bits - 1)) - 1;
  const typename V::F a = V::min(V::mul(V::abs(x), V::set(job.inverse)), V::set(1.0f));
  const typename V::F smallest = V::float_of_bits(V::iset((128u - s) << 23));
  const typename V::F to_smallest = V::float_of_bits(V::iset((126u + s) << 23));
  const typename V::I carried = V::iadd(V::bits_of(a), V::iand(random, V::iset(0x7fffffu)));
  const typename V::I level = V::isub(V::template ishr<23>(carried), V::iset(127u - s));
  const auto up = V::less(uniform<V>(random), V::mul(a, to_smallest));
  const typename V::I low_level = V::add_one(up, V::iset(0));
  const typename V::I code = V::ichoose(V::less(a, smallest), low_level, level);
  return V::ichoose(V::negative(x), V::isub(V::iset(0), code), code);
}

struct OneBitCode {
  template <class V>
  static typename V::I code(typename V::F x, const DitherJob& job, typename V::I random) {
    return one_bit_code<V>(x, job, random);
  }
};
struct LinearCode {
  template <class V>
  static typename V::I code(typename V::F x, const DitherJob& job, typename V::I random) {
    return linear_code<V>(x, job, random);
  }
};
struct NaturalCode {
  template <class V>
  static typename V::I code(typename V::F x, const DitherJob& job, typename V::I random) {
    return natural_code<V>(x, job, random);
  }
};

template <class V, class Rule>
inline void run_codes(const float* x, size_t i, size_t count, const DitherJob& job, typename V::I (&code)[4]) {
  typename V::F run[4];
  load_run<V>(x + i, count, run);
  // Two elements share a counter and see its bits with the halves exchanged: each gets 24 bits, of which the upper
  // 16 belong to it alone.
  for (uint32_t j = 0; j < 4; j += 2) {
    const typename V::I random = random_bits<V>(job.key, static_cast<uint32_t>(i / 2) + 8 * j);
    code[j] = Rule::template code<V>(run[j], job, random);
    code[j + 1] = Rule::template code<V>(run[j + 1], job, V::rotate_half(random));
  }
}

// A run is stored as `bits` planes, plane b holding bit b of each of its elements.
static inline size_t run_offset(size_t i, unsigned bits) { return i / 8 * bits; }

template <class V, class Rule>
void encode_planes(const float* x, const DitherJob& job, size_t begin, size_t end, uint8_t* planes) {
  for (size_t i = begin; i < end; i += kRun) {
    const size_t count = run_length<V>(i, end);
    typename V::I code[4];
    run_codes<V, Rule>(x, i, count, job, code);
    for (auto& quarter : code) quarter = V::ishl_by(quarter, 8 - job.bits);
    typename V::B bytes = V::pack(code);
    uint8_t* dst = planes + run_offset(i, job.bits);
    for (unsigned bit = job.bits; bit-- > 0; bytes = V::twice(bytes)) {
      store_bits<V>(dst + bit * ((count + 7) / 8), count, V::top_bits(bytes));
    }
  }
}

template <class V>
void dither_planes_kernel(const float* x, const DitherJob& job, size_t begin, size_t end, uint8_t* planes) {
  if (job.bits == 1) return encode_planes<V, OneBitCode>(x, job, begin, end, planes);
  if (job.levels == Levels::kLinear) return encode_planes<V, LinearCode>(x, job, begin, end, planes);
  encode_planes<V, NaturalCode>(x, job, begin, end, planes);
}

template <class V, class Rule>
void encode_codes(const float* x, const DitherJob& job, size_t begin, size_t end, int8_t* codes) {
  for (size_t i = begin; i < end; i += kRun) {
    const size_t count = run_length<V>(i, end);
    typename V::I code[4];
    run_codes<V, Rule>(x, i, count, job, code);
    int8_t bytes[kRun];
    V::bstore(bytes, V::pack(code));
    std::memcpy(codes + (i - begin), bytes, count);
  }
}

template <class V>
void dither_codes_kernel(const float* x, const DitherJob& job, size_t begin, size_t end, int8_t* codes) {
  if (job.levels == Levels::kLinear) return encode_codes<V, LinearCode>(x, job, begin, end, codes);
  encode_codes<V, NaturalCode>(x, job, begin, end, codes);
}

template <class V>
inline void load_codes(const uint8_t* src, size_t count, unsigned bits, typename V::I (&code)[4]) {
  typename V::B bytes = V::no_bytes();
  for (unsigned bit = 0; bit < bits; ++bit) {
    const int value = bit + 1 == bits ? -(1 << bit) : 1 << bit;  // the top plane is the sign
    bytes = V::add_where(bytes, load_bits<V>(src + bit * ((count + 7) / 8), count), static_cast<int8_t>(value));
  }
  code[0] = V::template unpack<0>(bytes);
  code[1] = V::template unpack<1>(bytes);
  code[2] = V::template unpack<2>(bytes);
  code[3] = V::template unpack<3>(bytes);
}

template <class V>
inline typename V::F one_bit_value(typename V::I code, const DitherJob& job) {
  return V::negate_where(V::iless(code, V::iset(0)), V::set(job.scale));
}

template <class V>
inline typename V::F linear_value(typename V::I code, const DitherJob& job) {
  return V::mul(V::to_float(code), V::set(job.inverse));
}

template <class V>
inline typename V::F natural_value(typename V::I code, const DitherJob& job) {
  const uint32_t s = (1u << (job.bits - 1)) - 1;
  const typename V::I zero = V::iset(0);
  const typename V::I level = V::imax(code, V::isub(zero, code));
  const typename V::F power = V::float_of_bits(V::template ishl<23>(V::iadd(level, V::iset(127u - s))));
  const typename V::F size = V::clear(V::iless(level, V::iset(1)), V::mul(power, V::set(job.scale)));
  return V::negate_where(V::iless(code, zero), size);
}

// For decoding, job.inverse is the step between linear levels.
template <class V>
inline void run_values(const uint8_t* planes, size_t i, size_t count, const DitherJob& job, typename V::F (&x)[4]) {
  typename V::I code[4];
  load_codes<V>(planes + run_offset(i, job.bits), count, job.bits, code);
  for (int j = 0; j < 4; ++j) {
    x[j] = job.bits == 1                    ? one_bit_value<V>(code[j], job)
           : job.levels == Levels::kLinear ? linear_value<V>(code[j], job)
                                           : natural_value<V>(code[j], job);
  }
}

template <class V>
void dither_decode_kernel(const uint8_t* planes, const DitherJob& job, size_t begin, size_t end, float* dst) {
  for (size_t i = begin; i < end; i += kRun) {
    const size_t count = run_length<V>(i, end);
    typename V::F x[4];
    run_values<V>(planes, i, count, job, x);
    store_run<V>(dst + i, count, x);
  }
}

template <class V>
void dither_add_kernel(const uint8_t* planes, const DitherJob& job, size_t begin, size_t end, float weight,
                       float* dst) {
  const typename V::F factor = V::set(weight);
  for (size_t i = begin; i < end; i += kRun) {
    const size_t count = run_length<V>(i, end);
    typename V::F x[4];
    run_values<V>(planes, i, count, job, x);
    add_weighted<V>(x, factor, dst + i, count);
  }
}

}  // namespace thinwire
