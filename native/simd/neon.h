// Sixteen floats in four NEON registers. simd/scalar.h says what each function means.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace thinwire {

struct Neon {
  struct F {
    float32x4_t part[4];
  };
  struct I {
    uint32x4_t part[4];
  };
  using M = I;  // all ones or all zeros in each lane
  struct B {
    int8x16_t part[4];
  };
  struct D {
    float64x2_t part[8];
  };

  static F load(const float* p) {
    return each([p](int i) { return vld1q_f32(p + 4 * i); });
  }
  static void store(float* p, F x) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.part[i]);
  }
  static void stream(float* p, F x) { store(p, x); }
  static void end_streams() {}
  static F set(float x) {
    return each([x](int) { return vdupq_n_f32(x); });
  }
  static F add(F a, F b) {
    return each([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
  }
  static F div(F a, F b) {
    return each([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
  }
  static F sqrt(F x) {
    return each([&](int i) { return vsqrtq_f32(x.part[i]); });
  }
  // Not vminq and vmaxq: those differ from a comparison for zeros of both signs and for nan.
  static F min(F a, F b) { return choose(less(a, b), a, b); }
  static F max(F a, F b) { return choose(less(b, a), a, b); }
  static F abs(F x) {
    return each([&](int i) { return vabsq_f32(x.part[i]); });
  }

  static M negative(F x) {
    return ieach([&](int i) { return vcltzq_f32(x.part[i]); });
  }
  static M nonzero(F x) {
    return ieach([&](int i) { return vmvnq_u32(vceqzq_f32(x.part[i])); });
  }
  static M less(F a, F b) {
    return ieach([&](int i) { return vcltq_f32(a.part[i], b.part[i]); });
  }
  static M at_least(F x, I threshold) {
    const I bits = magnitude(x);
    return ieach([&](int i) { return vcgeq_u32(bits.part[i], threshold.part[i]); });
  }
  static M either(M a, M b) { return ior(a, b); }
  static M from_bits(uint32_t bits) {
    const I lanes = lane_bits();
    return ieach([&](int i) { return vtstq_u32(vdupq_n_u32(bits), lanes.part[i]); });
  }
  static uint32_t bits(M m) {
    const I set = iand(m, lane_bits());
    return vaddvq_u32(vorrq_u32(vorrq_u32(set.part[0], set.part[1]), vorrq_u32(set.part[2], set.part[3])));
  }
  static F choose(M m, F yes, F no) {
    return each([&](int i) { return vbslq_f32(m.part[i], yes.part[i], no.part[i]); });
  }
  static F clear(M m, F x) {
    return each([&](int i) { return vreinterpretq_f32_u32(vbicq_u32(bits_of(x).part[i], m.part[i])); });
  }
  static F negate_where(M m, F x) { return float_of_bits(ixor(bits_of(x), iand(m, iset(0x80000000u)))); }
  static void compress(M m, F x, float* p) {
    float lanes[16];
    store(lanes, x);
    for (uint32_t left = bits(m); left != 0; left &= left - 1) *p++ = lanes[__builtin_ctz(left)];
  }
  static void compress_index(M m, uint32_t base, uint32_t* p) {
    for (uint32_t left = bits(m); left != 0; left &= left - 1) {
      *p++ = base + static_cast<uint32_t>(__builtin_ctz(left));
    }
  }

  static void icompress(M m, I a, uint32_t* p) {
    uint32_t lanes[16];
    istore(lanes, a);
    for (uint32_t left = bits(m); left != 0; left &= left - 1) *p++ = lanes[__builtin_ctz(left)];
  }

  static I iload(const uint32_t* p) {
    return ieach([p](int i) { return vld1q_u32(p + 4 * i); });
  }
  static I iset(uint32_t x) {
    return ieach([x](int) { return vdupq_n_u32(x); });
  }
  static I iota() {
    static constexpr uint32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return iload(lanes);
  }
  static I iadd(I a, I b) {
    return ieach([&](int i) { return vaddq_u32(a.part[i], b.part[i]); });
  }
  static I isub(I a, I b) {
    return ieach([&](int i) { return vsubq_u32(a.part[i], b.part[i]); });
  }
  static I imul(I a, I b) {
    return ieach([&](int i) { return vmulq_u32(a.part[i], b.part[i]); });
  }
  static I ixor(I a, I b) {
    return ieach([&](int i) { return veorq_u32(a.part[i], b.part[i]); });
  }
  static I iand(I a, I b) {
    return ieach([&](int i) { return vandq_u32(a.part[i], b.part[i]); });
  }
  static I ior(I a, I b) {
    return ieach([&](int i) { return vorrq_u32(a.part[i], b.part[i]); });
  }
  static I imax(I a, I b) {
    return ieach([&](int i) { return vreinterpretq_u32_s32(vmaxq_s32(signed_of(a.part[i]), signed_of(b.part[i]))); });
  }
  template <int kCount>
  static I ishr(I a) {
    return ieach([&](int i) { return vshrq_n_u32(a.part[i], kCount); });
  }
  template <int kCount>
  static I ishl(I a) {
    return ieach([&](int i) { return vshlq_n_u32(a.part[i], kCount); });
  }
  static I ichoose(M m, I yes, I no) {
    return ieach([&](int i) { return vbslq_u32(m.part[i], yes.part[i], no.part[i]); });
  }
  static I add_one(M m, I a) { return isub(a, m); }
  static M iless(I a, I b) {
    return ieach([&](int i) { return vcltq_s32(signed_of(a.part[i]), signed_of(b.part[i])); });
  }
  static I bits_of(F x) {
    return ieach([&](int i) { return vreinterpretq_u32_f32(x.part[i]); });
  }
  static F float_of_bits(I a) {
    return each([&](int i) { return vreinterpretq_f32_u32(a.part[i]); });
  }
  static I magnitude(F x) { return bits_of(abs(x)); }
  static F to_float(I a) {
    return each([&](int i) { return vcvtq_f32_s32(signed_of(a.part[i])); });
  }
  static I floor_to_int(F x) {
    return ieach([&](int i) { return vreinterpretq_u32_s32(vcvtmq_s32_f32(x.part[i])); });
  }
  static void istore(uint32_t* p, I a) {
    for (int i = 0; i < 4; ++i) vst1q_u32(p + 4 * i, a.part[i]);
  }
  static I rotate_half(I a) {
    return ieach([&](int i) { return vreinterpretq_u32_u16(vrev32q_u16(halves(a.part[i]))); });
  }
  static I ishl_by(I a, unsigned count) {
    return ieach([&](int i) { return vshlq_u32(a.part[i], vdupq_n_s32(static_cast<int>(count))); });
  }

  static B pack(const I (&a)[4]) {
    return {{low_bytes(a[0]), low_bytes(a[1]), low_bytes(a[2]), low_bytes(a[3])}};
  }
  template <int kQuarter>
  static I unpack(B x) {
    const int16x8_t low = vmovl_s8(vget_low_s8(x.part[kQuarter]));
    const int16x8_t high = vmovl_high_s8(x.part[kQuarter]);
    return {{vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(low))), vreinterpretq_u32_s32(vmovl_high_s16(low)),
             vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(high))), vreinterpretq_u32_s32(vmovl_high_s16(high))}};
  }
  static B no_bytes() {
    return beach([](int) { return vdupq_n_s8(0); });
  }
  // Eight bytes give eight bits, each of its own weight: three rounds of adding neighbours leave one byte.
  static uint64_t top_bits(B x) {
    const B set = beach([&](int i) { return vandq_s8(vshrq_n_s8(x.part[i], 7), byte_bits()); });
    const int8x16_t pairs = vpaddq_s8(vpaddq_s8(set.part[0], set.part[1]), vpaddq_s8(set.part[2], set.part[3]));
    return vgetq_lane_u64(vreinterpretq_u64_s8(vpaddq_s8(pairs, pairs)), 0);
  }
  static B twice(B x) {
    return beach([&](int i) { return vaddq_s8(x.part[i], x.part[i]); });
  }
  static B add_where(B x, uint64_t bytes, int8_t value) {
    return beach([&](int i) { return vaddq_s8(x.part[i], vandq_s8(spread(bytes, i), vdupq_n_s8(value))); });
  }
  static void bstore(int8_t* p, B x) {
    for (int i = 0; i < 4; ++i) vst1q_s8(p + 16 * i, x.part[i]);
  }

  static D dzero() {
    const float64x2_t zero = vdupq_n_f64(0.0);
    return {{zero, zero, zero, zero, zero, zero, zero, zero}};
  }
  static D add_squares(D sum, F x) {
    for (int i = 0; i < 4; ++i) {
      const float64x2_t low = vcvt_f64_f32(vget_low_f32(x.part[i]));
      const float64x2_t high = vcvt_high_f64_f32(x.part[i]);
      sum.part[2 * i] = vaddq_f64(sum.part[2 * i], vmulq_f64(low, low));
      sum.part[2 * i + 1] = vaddq_f64(sum.part[2 * i + 1], vmulq_f64(high, high));
    }
    return sum;
  }
  static void dstore(double* p, D x) {
    for (int i = 0; i < 8; ++i) vst1q_f64(p + 2 * i, x.part[i]);
  }

  static void store_float16(uint8_t* p, F x) {
    for (int i = 0; i < 4; ++i) vst1_u8(p + 8 * i, vreinterpret_u8_f16(vcvt_f16_f32(x.part[i])));
  }
  static F load_float16(const uint8_t* p) {
    return each([p](int i) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i))); });
  }
  static void store_high_halves(uint8_t* p, I a) {
    vst1q_u8(p, vreinterpretq_u8_u16(vuzp2q_u16(halves(a.part[0]), halves(a.part[1]))));
    vst1q_u8(p + 16, vreinterpretq_u8_u16(vuzp2q_u16(halves(a.part[2]), halves(a.part[3]))));
  }
  static I load_high_halves(const uint8_t* p) {
    const uint16x8_t zero = vdupq_n_u16(0);
    const uint16x8_t low = vreinterpretq_u16_u8(vld1q_u8(p));
    const uint16x8_t high = vreinterpretq_u16_u8(vld1q_u8(p + 16));
    return {{vreinterpretq_u32_u16(vzip1q_u16(zero, low)), vreinterpretq_u32_u16(vzip2q_u16(zero, low)),
             vreinterpretq_u32_u16(vzip1q_u16(zero, high)), vreinterpretq_u32_u16(vzip2q_u16(zero, high))}};
  }

 private:
  static int32x4_t signed_of(uint32x4_t x) { return vreinterpretq_s32_u32(x); }
  static uint16x8_t halves(uint32x4_t x) { return vreinterpretq_u16_u32(x); }
  // Lane i has bit i.
  static I lane_bits() {
    static constexpr uint32_t lanes[16] = {1,   2,   4,    8,    16,   32,   64,    128,
                                           256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
    return iload(lanes);
  }
  // Byte i has bit i modulo 8.
  static int8x16_t byte_bits() { return vreinterpretq_s8_u64(vdupq_n_u64(0x8040201008040201u)); }
  static int8x16_t low_bytes(I a) {
    const uint16x8_t low = vuzp1q_u16(halves(a.part[0]), halves(a.part[1]));
    const uint16x8_t high = vuzp1q_u16(halves(a.part[2]), halves(a.part[3]));
    return vuzp1q_s8(vreinterpretq_s8_u16(low), vreinterpretq_s8_u16(high));
  }
  // Sixteen of 64 bits as bytes, all ones or all zeros.
  static int8x16_t spread(uint64_t bits, int quarter) {
    const uint16x8_t word = vdupq_n_u16(static_cast<uint16_t>(bits >> (16 * quarter)));
    const uint8x16_t byte_of = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    const int8x16_t bytes = vreinterpretq_s8_u8(vqtbl1q_u8(vreinterpretq_u8_u16(word), byte_of));
    return vreinterpretq_s8_u8(vtstq_s8(bytes, byte_bits()));
  }
  // Written out, not looped over: indices that are constants keep the parts in registers.
  template <class Function>
  static F each(Function f) {
    return {{f(0), f(1), f(2), f(3)}};
  }
  template <class Function>
  static I ieach(Function f) {
    return {{f(0), f(1), f(2), f(3)}};
  }
  template <class Function>
  static B beach(Function f) {
    return {{f(0), f(1), f(2), f(3)}};
  }
};

}  // namespace thinwire
