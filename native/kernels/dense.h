// 32 and 16 bits per element.
#pragma once

#include "kernels/reduce.h"
#include "kernels/run.h"
#include "table.h"

namespace thinwire {

template <class V>
void clear_kernel(float* dst, size_t n) {
  const Writer<V> writer(dst, n, false);
  const typename V::F zeros[4] = {V::set(0.0f), V::set(0.0f), V::set(0.0f), V::set(0.0f)};
  for (size_t i = 0; i < n; i += kRun) writer.store(i, run_length<V>(i, n), zeros);
}

template <class V>
inline void add_weighted(const typename V::F (&x)[4], typename V::F weight, float* dst, size_t count) {
  typename V::F sum[4];
  load_run<V>(dst, count, sum);
  for (int j = 0; j < 4; ++j) sum[j] = V::add(sum[j], V::mul(x[j], weight));
  store_run<V>(dst, count, sum);
}

// Floats whose bytes need not lie on a float's address.
template <class V>
inline void load_bytes(const uint8_t* src, size_t count, typename V::F (&x)[4]) {
  if (reinterpret_cast<uintptr_t>(src) % alignof(float) == 0) {
    return load_run<V>(reinterpret_cast<const float*>(src), count, x);
  }
  float aligned[kRun] = {};
  std::memcpy(aligned, src, 4 * count);
  load_run<V>(aligned, kRun, x);
}

template <class V>
void float32_add_kernel(const uint8_t* src, size_t n, float weight, float* dst) {
  const typename V::F factor = V::set(weight);
  for (size_t i = 0; i < n; i += kRun) {
    const size_t count = run_length<V>(i, n);
    typename V::F x[4];
    load_bytes<V>(src + 4 * i, count, x);
    add_weighted<V>(x, factor, dst + i, count);
  }
}

template <class V>
void float32_sum_kernel(const Float32Sum& sum, size_t begin, size_t end, float* dst) {
  const typename V::F factor = V::set(sum.weight);
  for (size_t i = begin; i < end; i += kRun) {
    const size_t count = run_length<V>(i, end);
    typename V::F total[4] = {V::set(0.0f), V::set(0.0f), V::set(0.0f), V::set(0.0f)};
    for (size_t s = 0; s < sum.count; ++s) {
      typename V::F x[4];
      load_bytes<V>(sum.sources[s] + 4 * i, count, x);
      for (int j = 0; j < 4; ++j) total[j] = V::add(total[j], V::mul(x[j], factor));
    }
    store_run<V>(dst + i, count, total);
  }
}

template <class V, Half kKind>
inline void store_half(uint8_t* dst, typename V::F x) {
  if constexpr (kKind == Half::kFloat16) {
    const typename V::F limit = V::set(65504.0f);
    V::store_float16(dst, V::max(V::min(x, limit), V::set(-65504.0f)));
  } else {
    const typename V::F limit = V::float_of_bits(V::iset(0x7f7f0000u));
    const typename V::F bounded = V::max(V::min(x, limit), V::float_of_bits(V::iset(0xff7f0000u)));
    const typename V::I bits = V::bits_of(bounded);
    const typename V::I odd = V::iand(V::template ishr<16>(bits), V::iset(1));
    V::store_high_halves(dst, V::iadd(V::iadd(bits, V::iset(0x7fff)), odd));
  }
}

template <class V, Half kKind>
inline typename V::F load_half(const uint8_t* src) {
  if constexpr (kKind == Half::kFloat16) {
    return V::load_float16(src);
  } else {
    return V::float_of_bits(V::load_high_halves(src));
  }
}

template <class V, Half kKind>
bool encode_half(const float* x, size_t n, uint8_t* dst) {
  typename V::I largest[4] = {V::iset(0), V::iset(0), V::iset(0), V::iset(0)};
  for (size_t i = 0; i < n; i += kRun) {
    const size_t count = run_length<V>(i, n);
    typename V::F run[4];
    load_run<V>(x + i, count, run);
    uint8_t tail[2 * kRun];
    uint8_t* out = count == kRun ? dst + 2 * i : tail;
    for (int j = 0; j < 4; ++j) {
      largest[j] = V::imax(largest[j], V::magnitude(run[j]));
      store_half<V, kKind>(out + 32 * j, run[j]);
    }
    if (count != kRun) std::memcpy(dst + 2 * i, tail, 2 * count);
  }
  return largest_lane<V>(largest) < kInfinityBits;
}

template <class V, Half kKind>
inline void load_half_run(const uint8_t* src, size_t count, typename V::F (&x)[4]) {
  uint8_t tail[2 * kRun] = {};
  if (count != kRun) {
    std::memcpy(tail, src, 2 * count);
    src = tail;
  }
  for (int j = 0; j < 4; ++j) x[j] = load_half<V, kKind>(src + 32 * j);
}

template <class V, Half kKind>
void decode_half(const uint8_t* src, size_t n, float* dst) {
  for (size_t i = 0; i < n; i += kRun) {
    const size_t count = run_length<V>(i, n);
    typename V::F x[4];
    load_half_run<V, kKind>(src + 2 * i, count, x);
    store_run<V>(dst + i, count, x);
  }
}

template <class V, Half kKind>
void add_half(const uint8_t* src, size_t n, float weight, float* dst) {
  const typename V::F factor = V::set(weight);
  for (size_t i = 0; i < n; i += kRun) {
    const size_t count = run_length<V>(i, n);
    typename V::F x[4];
    load_half_run<V, kKind>(src + 2 * i, count, x);
    add_weighted<V>(x, factor, dst + i, count);
  }
}

template <class V>
bool half_encode_kernel(Half kind, const float* x, size_t n, uint8_t* dst) {
  return kind == Half::kFloat16 ? encode_half<V, Half::kFloat16>(x, n, dst)
                                : encode_half<V, Half::kBFloat16>(x, n, dst);
}

template <class V>
void half_decode_kernel(Half kind, const uint8_t* src, size_t n, float* dst) {
  kind == Half::kFloat16 ? decode_half<V, Half::kFloat16>(src, n, dst) : decode_half<V, Half::kBFloat16>(src, n, dst);
}

template <class V>
void half_add_kernel(Half kind, const uint8_t* src, size_t n, float weight, float* dst) {
  kind == Half::kFloat16 ? add_half<V, Half::kFloat16>(src, n, weight, dst)
                         : add_half<V, Half::kBFloat16>(src, n, weight, dst);
}

}  // namespace thinwire
