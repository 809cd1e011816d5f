// Sixteen floats in one AVX-512 register. simd/scalar.h says what each function means.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace thinwire {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  using M = __mmask16;
  using B = __m512i;
  struct D {
    __m512d low, high;
  };

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void stream(float* p, F x) { _mm512_stream_ps(p, x); }
  static void end_streams() { _mm_sfence(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F sqrt(F x) { return _mm512_sqrt_ps(x); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F abs(F x) { return _mm512_abs_ps(x); }

  static M negative(F x) { return _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ); }
  static M nonzero(F x) { return _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_UQ); }
  static M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static M at_least(F x, I threshold) { return _mm512_cmpge_epi32_mask(magnitude(x), threshold); }
  static M either(M a, M b) { return static_cast<M>(a | b); }
  static M from_bits(uint32_t bits) { return static_cast<M>(bits); }
  static uint32_t bits(M m) { return m; }
  static F choose(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  static F clear(M m, F x) { return _mm512_maskz_mov_ps(static_cast<M>(~m), x); }
  static F negate_where(M m, F x) {
    return _mm512_castsi512_ps(_mm512_mask_xor_epi32(bits_of(x), m, bits_of(x), iset(0x80000000u)));
  }
  static void compress(M m, F x, float* p) { _mm512_storeu_ps(p, _mm512_maskz_compress_ps(m, x)); }
  static void compress_index(M m, uint32_t base, uint32_t* p) {
    _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(m, iadd(iota(), iset(base))));
  }

  static void icompress(M m, I a, uint32_t* p) { _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(m, a)); }

  static I iload(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static I iset(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static I iota() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
  static I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
  static I isub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I imul(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static I ixor(I a, I b) { return _mm512_xor_si512(a, b); }
  static I iand(I a, I b) { return _mm512_and_si512(a, b); }
  static I ior(I a, I b) { return _mm512_or_si512(a, b); }
  static I imax(I a, I b) { return _mm512_max_epi32(a, b); }
  template <int kCount>
  static I ishr(I a) { return _mm512_srli_epi32(a, kCount); }
  template <int kCount>
  static I ishl(I a) { return _mm512_slli_epi32(a, kCount); }
  static I ichoose(M m, I yes, I no) { return _mm512_mask_blend_epi32(m, no, yes); }
  static I add_one(M m, I a) { return _mm512_mask_add_epi32(a, m, a, iset(1)); }
  static M iless(I a, I b) { return _mm512_cmplt_epi32_mask(a, b); }
  static I bits_of(F x) { return _mm512_castps_si512(x); }
  static F float_of_bits(I a) { return _mm512_castsi512_ps(a); }
  static I magnitude(F x) { return iand(bits_of(x), iset(0x7fffffffu)); }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I floor_to_int(F x) { return _mm512_cvt_roundps_epi32(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  static void istore(uint32_t* p, I a) { _mm512_storeu_si512(p, a); }
  static I rotate_half(I a) { return _mm512_rol_epi32(a, 16); }
  static I ishl_by(I a, unsigned count) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(static_cast<int>(count))); }

  static B pack(const I (&a)[4]) {
    const __m256i low = _mm256_set_m128i(_mm512_cvtepi32_epi8(a[1]), _mm512_cvtepi32_epi8(a[0]));
    const __m256i high = _mm256_set_m128i(_mm512_cvtepi32_epi8(a[3]), _mm512_cvtepi32_epi8(a[2]));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  template <int kQuarter>
  static I unpack(B x) { return _mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32(x, kQuarter)); }
  static B no_bytes() { return _mm512_setzero_si512(); }
  static uint64_t top_bits(B x) { return _mm512_movepi8_mask(x); }
  static B twice(B x) { return _mm512_add_epi8(x, x); }
  static B add_where(B x, uint64_t bytes, int8_t value) {
    return _mm512_mask_add_epi8(x, bytes, x, _mm512_set1_epi8(value));
  }
  static void bstore(int8_t* p, B x) { _mm512_storeu_si512(p, x); }

  static D dzero() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
  static D add_squares(D sum, F x) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    return {_mm512_add_pd(sum.low, _mm512_mul_pd(low, low)), _mm512_add_pd(sum.high, _mm512_mul_pd(high, high))};
  }
  static void dstore(double* p, D x) {
    _mm512_storeu_pd(p, x.low);
    _mm512_storeu_pd(p + 8, x.high);
  }

  static void store_float16(uint8_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static F load_float16(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void store_high_halves(uint8_t* p, I a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(ishr<16>(a)));
  }
  static I load_high_halves(const uint8_t* p) {
    return ishl<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  }
};

}  // namespace thinwire
