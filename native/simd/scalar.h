// Sixteen floats as a plain array: the portable version, and the meaning of the others.
//
// Every kernel is written once, over a type like this one, and compiled for each. What the functions compute is
// IEEE arithmetic, lane by lane, so all versions give the same bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "bytes.h"
#include "simd/float16.h"

namespace thinwire {

struct Scalar {
  struct F {
    float lane[16];
  };
  struct I {
    uint32_t lane[16];
  };
  using M = uint32_t;  // bit i is lane i
  struct B {
    int8_t byte[64];
  };
  struct D {
    double lane[16];
  };

  static F load(const float* p) {
    return each([p](int i) { return p[i]; });
  }
  static void store(float* p, const F& x) {
    for (int i = 0; i < 16; ++i) p[i] = x.lane[i];
  }
  // To memory that is not read again soon: past the caches, where there is an instruction for it. p is a multiple of 64.
  static void stream(float* p, const F& x) { store(p, x); }
  // After the last of them, or another thread might not see them.
  static void end_streams() {}
  static F set(float x) {
    return each([x](int) { return x; });
  }
  static F add(const F& a, const F& b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static F sub(const F& a, const F& b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F mul(const F& a, const F& b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F div(const F& a, const F& b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static F sqrt(const F& x) {
    return each([&](int i) { return std::sqrt(x.lane[i]); });
  }
  static F min(const F& a, const F& b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static F max(const F& a, const F& b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static F abs(const F& x) {
    return each([&](int i) { return float_from_bits(magnitude_bits(x.lane[i])); });
  }

  // x < 0: -0.0 is not negative.
  static M negative(const F& x) {
    return test([&](int i) { return x.lane[i] < 0.0f; });
  }
  static M nonzero(const F& x) {
    return test([&](int i) { return !(x.lane[i] == 0.0f); });
  }
  static M less(const F& a, const F& b) {
    return test([&](int i) { return a.lane[i] < b.lane[i]; });
  }
  // The bits of |x| are at least the threshold.
  static M at_least(const F& x, const I& threshold) {
    return test([&](int i) { return magnitude_bits(x.lane[i]) >= threshold.lane[i]; });
  }
  static M either(M a, M b) { return a | b; }
  static M from_bits(uint32_t bits) { return bits & 0xffffu; }
  static uint32_t bits(M m) { return m; }
  static F choose(M m, const F& yes, const F& no) {
    return each([&](int i) { return m >> i & 1 ? yes.lane[i] : no.lane[i]; });
  }
  static F clear(M m, const F& x) {
    return each([&](int i) { return m >> i & 1 ? 0.0f : x.lane[i]; });
  }
  static F negate_where(M m, const F& x) {
    return each([&](int i) { return float_from_bits(float_bits(x.lane[i]) ^ (m << (31 - i) & 0x80000000u)); });
  }
  // Write the chosen lanes next to each other. May write all sixteen places.
  static void compress(M m, const F& x, float* p) {
    for (; m != 0; m &= m - 1) *p++ = x.lane[__builtin_ctz(m)];
  }
  // The same with base + lane number.
  static void compress_index(M m, uint32_t base, uint32_t* p) {
    for (; m != 0; m &= m - 1) *p++ = base + static_cast<uint32_t>(__builtin_ctz(m));
  }

  static void icompress(M m, const I& a, uint32_t* p) {
    for (; m != 0; m &= m - 1) *p++ = a.lane[__builtin_ctz(m)];
  }

  static I iload(const uint32_t* p) {
    return ieach([p](int i) { return p[i]; });
  }
  static I iset(uint32_t x) {
    return ieach([x](int) { return x; });
  }
  static I iota() {
    return ieach([](int i) { return static_cast<uint32_t>(i); });
  }
  static I iadd(const I& a, const I& b) {
    return ieach([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static I isub(const I& a, const I& b) {
    return ieach([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static I imul(const I& a, const I& b) {
    return ieach([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static I ixor(const I& a, const I& b) {
    return ieach([&](int i) { return a.lane[i] ^ b.lane[i]; });
  }
  static I iand(const I& a, const I& b) {
    return ieach([&](int i) { return a.lane[i] & b.lane[i]; });
  }
  static I ior(const I& a, const I& b) {
    return ieach([&](int i) { return a.lane[i] | b.lane[i]; });
  }
  // Signed, as is iless.
  static I imax(const I& a, const I& b) {
    return ieach([&](int i) { return signed_of(a.lane[i]) > signed_of(b.lane[i]) ? a.lane[i] : b.lane[i]; });
  }
  static M iless(const I& a, const I& b) {
    return test([&](int i) { return signed_of(a.lane[i]) < signed_of(b.lane[i]); });
  }
  template <int kCount>
  static I ishr(const I& a) {
    return ieach([&](int i) { return a.lane[i] >> kCount; });
  }
  template <int kCount>
  static I ishl(const I& a) {
    return ieach([&](int i) { return a.lane[i] << kCount; });
  }
  static I ichoose(M m, const I& yes, const I& no) {
    return ieach([&](int i) { return m >> i & 1 ? yes.lane[i] : no.lane[i]; });
  }
  static I add_one(M m, const I& a) {
    return ieach([&](int i) { return a.lane[i] + (m >> i & 1); });
  }
  static I bits_of(const F& x) {
    return ieach([&](int i) { return float_bits(x.lane[i]); });
  }
  static F float_of_bits(const I& a) {
    return each([&](int i) { return float_from_bits(a.lane[i]); });
  }
  static I magnitude(const F& x) {
    return ieach([&](int i) { return magnitude_bits(x.lane[i]); });
  }
  // From signed integers that a float holds exactly, and to the one at or below.
  static F to_float(const I& a) {
    return each([&](int i) { return static_cast<float>(signed_of(a.lane[i])); });
  }
  static I floor_to_int(const F& x) {
    return ieach([&](int i) { return static_cast<uint32_t>(static_cast<int32_t>(std::floor(x.lane[i]))); });
  }
  static void istore(uint32_t* p, const I& a) {
    for (int i = 0; i < 16; ++i) p[i] = a.lane[i];
  }
  static I rotate_half(const I& a) {
    return ieach([&](int i) { return a.lane[i] << 16 | a.lane[i] >> 16; });
  }
  static I ishl_by(const I& a, unsigned count) {
    return ieach([&](int i) { return a.lane[i] << count; });
  }

  // 64 signed integers in [-128, 127] as bytes, and a quarter of them back.
  static B pack(const I (&a)[4]) {
    return beach([&](int i) { return signed_of(a[i / 16].lane[i % 16]); });
  }
  template <int kQuarter>
  static I unpack(const B& x) {
    return ieach([&](int i) { return static_cast<uint32_t>(x.byte[16 * kQuarter + i]); });
  }
  static B no_bytes() { return B{}; }
  // The sign bits of the bytes.
  static uint64_t top_bits(const B& x) {
    uint64_t bits = 0;
    for (int i = 0; i < 64; ++i) bits |= static_cast<uint64_t>(x.byte[i] < 0) << i;
    return bits;
  }
  static B twice(const B& x) {
    return beach([&](int i) { return 2 * x.byte[i]; });
  }
  static B add_where(const B& x, uint64_t bytes, int8_t value) {
    return beach([&](int i) { return x.byte[i] + (bytes >> i & 1 ? value : 0); });
  }
  static void bstore(int8_t* p, const B& x) { std::memcpy(p, x.byte, 64); }

  static D dzero() { return D{}; }
  // The square of a float is exact in double.
  static D add_squares(D sum, const F& x) {
    for (int i = 0; i < 16; ++i) sum.lane[i] += static_cast<double>(x.lane[i]) * static_cast<double>(x.lane[i]);
    return sum;
  }
  static void dstore(double* p, const D& x) {
    for (int i = 0; i < 16; ++i) p[i] = x.lane[i];
  }

  static void store_float16(uint8_t* p, const F& x) {
    for (int i = 0; i < 16; ++i) thinwire::store(p + 2 * i, to_float16(x.lane[i]));
  }
  static F load_float16(const uint8_t* p) {
    return each([p](int i) { return from_float16(thinwire::load<uint16_t>(p + 2 * i)); });
  }
  // The upper 16 bits of every lane, and the way back.
  static void store_high_halves(uint8_t* p, const I& a) {
    for (int i = 0; i < 16; ++i) thinwire::store(p + 2 * i, static_cast<uint16_t>(a.lane[i] >> 16));
  }
  static I load_high_halves(const uint8_t* p) {
    return ieach([p](int i) { return static_cast<uint32_t>(thinwire::load<uint16_t>(p + 2 * i)) << 16; });
  }

 private:
  static int32_t signed_of(uint32_t x) { return static_cast<int32_t>(x); }
  template <class Function>
  static F each(Function f) {
    F out;
    for (int i = 0; i < 16; ++i) out.lane[i] = f(i);
    return out;
  }
  template <class Function>
  static I ieach(Function f) {
    I out;
    for (int i = 0; i < 16; ++i) out.lane[i] = f(i);
    return out;
  }
  template <class Function>
  static B beach(Function f) {
    B out;
    for (int i = 0; i < 64; ++i) out.byte[i] = static_cast<int8_t>(f(i));
    return out;
  }
  template <class Function>
  static M test(Function f) {
    M out = 0;
    for (int i = 0; i < 16; ++i) out |= static_cast<M>(f(i)) << i;
    return out;
  }
};

}  // namespace thinwire
