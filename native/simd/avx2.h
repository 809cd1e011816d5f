// Sixteen floats in two AVX2 registers. simd/scalar.h says what each function means.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace thinwire {

struct Avx2 {
  struct F {
    __m256 low, high;
  };
  struct I {
    __m256i low, high;
  };
  using M = F;  // all ones or all zeros in each lane
  struct B {
    __m256i low, high;
  };
  struct D {
    __m256d part[4];
  };

  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
  }
  static void stream(float* p, F x) {
    _mm256_stream_ps(p, x.low);
    _mm256_stream_ps(p + 8, x.high);
  }
  static void end_streams() { _mm_sfence(); }
  static F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static F sub(F a, F b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static F div(F a, F b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  static F sqrt(F x) { return {_mm256_sqrt_ps(x.low), _mm256_sqrt_ps(x.high)}; }
  static F min(F a, F b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
  static F max(F a, F b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  static F abs(F x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high)};
  }

  static M negative(F x) { return less(x, set(0.0f)); }
  static M nonzero(F x) {
    const __m256 zero = _mm256_setzero_ps();
    return {_mm256_cmp_ps(x.low, zero, _CMP_NEQ_UQ), _mm256_cmp_ps(x.high, zero, _CMP_NEQ_UQ)};
  }
  static M less(F a, F b) {
    return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
  }
  static M at_least(F x, I threshold) { return negated(iless(magnitude(x), threshold)); }
  static M either(M a, M b) { return {_mm256_or_ps(a.low, b.low), _mm256_or_ps(a.high, b.high)}; }
  static M from_bits(uint32_t bits) {
    const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i low = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lanes);
    const __m256i high = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits >> 8)), lanes);
    return as_mask({_mm256_cmpeq_epi32(low, lanes), _mm256_cmpeq_epi32(high, lanes)});
  }
  static uint32_t bits(M m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(m.low)) | static_cast<uint32_t>(_mm256_movemask_ps(m.high)) << 8;
  }
  static F choose(M m, F yes, F no) {
    return {_mm256_blendv_ps(no.low, yes.low, m.low), _mm256_blendv_ps(no.high, yes.high, m.high)};
  }
  static F clear(M m, F x) { return {_mm256_andnot_ps(m.low, x.low), _mm256_andnot_ps(m.high, x.high)}; }
  static F negate_where(M m, F x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_xor_ps(x.low, _mm256_and_ps(m.low, sign)), _mm256_xor_ps(x.high, _mm256_and_ps(m.high, sign))};
  }
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
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }
  static I iset(uint32_t x) {
    return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
  }
  static I iota() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
  }
  static I iadd(I a, I b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
  static I isub(I a, I b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
  static I imul(I a, I b) { return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)}; }
  static I ixor(I a, I b) { return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)}; }
  static I iand(I a, I b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
  static I ior(I a, I b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
  static I imax(I a, I b) { return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)}; }
  template <int kCount>
  static I ishr(I a) { return {_mm256_srli_epi32(a.low, kCount), _mm256_srli_epi32(a.high, kCount)}; }
  template <int kCount>
  static I ishl(I a) { return {_mm256_slli_epi32(a.low, kCount), _mm256_slli_epi32(a.high, kCount)}; }
  static I ichoose(M m, I yes, I no) { return bits_of(choose(m, float_of_bits(yes), float_of_bits(no))); }
  static I add_one(M m, I a) { return isub(a, bits_of(m)); }
  static M iless(I a, I b) {
    return as_mask({_mm256_cmpgt_epi32(b.low, a.low), _mm256_cmpgt_epi32(b.high, a.high)});
  }
  static I bits_of(F x) { return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)}; }
  static F float_of_bits(I a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }
  static I magnitude(F x) { return iand(bits_of(x), iset(0x7fffffffu)); }
  static F to_float(I a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
  static I floor_to_int(F x) {
    return {_mm256_cvttps_epi32(_mm256_floor_ps(x.low)), _mm256_cvttps_epi32(_mm256_floor_ps(x.high))};
  }
  static void istore(uint32_t* p, I a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.high);
  }
  static I rotate_half(I a) { return ior(ishl<16>(a), ishr<16>(a)); }
  static I ishl_by(I a, unsigned count) {
    const __m128i by = _mm_cvtsi32_si128(static_cast<int>(count));
    return {_mm256_sll_epi32(a.low, by), _mm256_sll_epi32(a.high, by)};
  }

  static B pack(const I (&a)[4]) { return {pack_half(a[0], a[1]), pack_half(a[2], a[3])}; }
  template <int kQuarter>
  static I unpack(B x) {
    const __m128i bytes = _mm256_extracti128_si256(kQuarter < 2 ? x.low : x.high, kQuarter % 2);
    return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
  }
  static B no_bytes() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static uint64_t top_bits(B x) {
    const auto high = static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(x.high)));
    return static_cast<uint32_t>(_mm256_movemask_epi8(x.low)) | high << 32;
  }
  static B twice(B x) { return {_mm256_add_epi8(x.low, x.low), _mm256_add_epi8(x.high, x.high)}; }
  static B add_where(B x, uint64_t bytes, int8_t value) {
    const __m256i addend = _mm256_set1_epi8(value);
    const __m256i low = _mm256_and_si256(spread(static_cast<uint32_t>(bytes)), addend);
    const __m256i high = _mm256_and_si256(spread(static_cast<uint32_t>(bytes >> 32)), addend);
    return {_mm256_add_epi8(x.low, low), _mm256_add_epi8(x.high, high)};
  }
  static void bstore(int8_t* p, B x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), x.high);
  }

  static D dzero() {
    const __m256d zero = _mm256_setzero_pd();
    return {{zero, zero, zero, zero}};
  }
  static D add_squares(D sum, F x) {
    const __m128 quarter[4] = {_mm256_castps256_ps128(x.low), _mm256_extractf128_ps(x.low, 1),
                               _mm256_castps256_ps128(x.high), _mm256_extractf128_ps(x.high, 1)};
    for (int i = 0; i < 4; ++i) {
      const __m256d wide = _mm256_cvtps_pd(quarter[i]);
      sum.part[i] = _mm256_add_pd(sum.part[i], _mm256_mul_pd(wide, wide));
    }
    return sum;
  }
  static void dstore(double* p, D x) {
    for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, x.part[i]);
  }

  static void store_float16(uint8_t* p, F x) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.low, kNearest));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16), _mm256_cvtps_ph(x.high, kNearest));
  }
  static F load_float16(const uint8_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
  }
  static void store_high_halves(uint8_t* p, I a) {
    const __m256i low = _mm256_srli_epi32(a.low, 16);
    const __m256i high = _mm256_srli_epi32(a.high, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
  }
  static I load_high_halves(const uint8_t* p) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16));
    return ishl<16>({_mm256_cvtepu16_epi32(low), _mm256_cvtepu16_epi32(high)});
  }

 private:
  static M as_mask(I a) { return float_of_bits(a); }
  static M negated(M m) {
    const __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    return {_mm256_xor_ps(m.low, ones), _mm256_xor_ps(m.high, ones)};
  }
  // The 32 lanes of two registers as bytes. Packing works within halves of a register, hence the permutations.
  static __m256i pack_half(I a, I b) {
    const __m256i first = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xd8);
    const __m256i second = _mm256_permute4x64_epi64(_mm256_packs_epi32(b.low, b.high), 0xd8);
    return _mm256_permute4x64_epi64(_mm256_packs_epi16(first, second), 0xd8);
  }
  // Bit i as byte i, all ones or all zeros.
  static __m256i spread(uint32_t bits) {
    const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201u));
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), byte_of);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of);
  }
};

}  // namespace thinwire
