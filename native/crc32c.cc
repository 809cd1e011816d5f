// CRC32C (Castagnoli, reflected): the processor's instruction where there is one, tables of 8 bytes elsewhere.

#include "bytes.h"
#include "dispatch.h"
#include "kernels.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

namespace thinwire {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // 0x1edc6f41 with its bits reversed

// Tables of 8 bytes

// entry[j][b]: what byte b does to the crc after j more bytes.
struct Slices {
  uint32_t entry[8][256];
};

constexpr Slices make_slices() {
  Slices slices{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    slices.entry[0][b] = crc;
  }
  for (uint32_t j = 1; j < 8; ++j) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t before = slices.entry[j - 1][b];
      slices.entry[j][b] = before >> 8 ^ slices.entry[0][before & 0xff];
    }
  }
  return slices;
}

constexpr Slices kSlices = make_slices();

uint32_t slice(uint64_t word) {
  uint32_t crc = 0;
  for (unsigned j = 0; j < 8; ++j) crc ^= kSlices.entry[7 - j][word >> (8 * j) & 0xff];
  return crc;
}

uint32_t portable_crc(const uint8_t* data, size_t nbytes, uint32_t crc) {
  for (; nbytes >= 8; data += 8, nbytes -= 8) crc = slice(load<uint64_t>(data) ^ crc);
  for (; nbytes > 0; ++data, --nbytes) crc = crc >> 8 ^ kSlices.entry[0][(crc ^ *data) & 0xff];
  return crc;
}

// The processor's instruction
//
// It has a latency of three cycles but one can start in each, so long data is read as three streams side by side.
// Their crcs are then joined: that of the bytes A B is that of A, moved on by as many zero bytes as B has,
// xor that of B.

#if defined(__x86_64__) || defined(__ARM_FEATURE_CRC32)

#if defined(__x86_64__)

// An attribute, since the rest of the library is compiled for any x86-64.
#define THINWIRE_CRC __attribute__((target("sse4.2")))

bool has_crc_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
THINWIRE_CRC inline uint32_t step8(uint32_t crc, const uint8_t* data) {
  return static_cast<uint32_t>(_mm_crc32_u64(crc, load<uint64_t>(data)));
}
THINWIRE_CRC inline uint32_t step1(uint32_t crc, uint8_t byte) { return _mm_crc32_u8(crc, byte); }

#else

#define THINWIRE_CRC

#if defined(__linux__)
bool has_crc_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
bool has_crc_instruction() { return true; }  // ARM machines with other systems are newer than the instruction
#endif
inline uint32_t step8(uint32_t crc, const uint8_t* data) { return __crc32cd(crc, load<uint64_t>(data)); }
inline uint32_t step1(uint32_t crc, uint8_t byte) { return __crc32cb(crc, byte); }

#endif

// The product of two polynomials modulo that of the crc. The top bit is the coefficient of x^0.
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if ((a & 0x80000000u) != 0) product ^= b;
    b = b >> 1 ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// entry[j][b]: what byte j of a crc, being b, becomes after a number of zero bytes.
struct Shift {
  uint32_t entry[4][256];
};

constexpr Shift make_shift(size_t nbytes) {
  uint32_t power = 0x80000000u;  // x^0
  for (size_t i = 0; i < nbytes; ++i) power = multiply(0x00800000u, power);  // times x^8
  Shift shift{};
  for (uint32_t j = 0; j < 4; ++j) {
    for (uint32_t b = 0; b < 256; ++b) shift.entry[j][b] = multiply(b << (8 * j), power);
  }
  return shift;
}

// Long streams for speed, short ones for what is left.
constexpr size_t kLongStream = 4096;
constexpr size_t kShortStream = 256;
constexpr Shift kLongShift = make_shift(kLongStream);
constexpr Shift kShortShift = make_shift(kShortStream);

uint32_t move_on(const Shift& shift, uint32_t crc) {
  return shift.entry[0][crc & 0xff] ^ shift.entry[1][crc >> 8 & 0xff] ^ shift.entry[2][crc >> 16 & 0xff] ^
         shift.entry[3][crc >> 24];
}

// The crc of 3 * kStream bytes.
template <size_t kStream>
THINWIRE_CRC uint32_t three_streams(const Shift& shift, const uint8_t* data, uint32_t crc) {
  uint32_t second = 0;
  uint32_t third = 0;
  for (const uint8_t* end = data + kStream; data < end; data += 8) {
    crc = step8(crc, data);
    second = step8(second, data + kStream);
    third = step8(third, data + 2 * kStream);
  }
  return move_on(shift, move_on(shift, crc) ^ second) ^ third;
}

THINWIRE_CRC uint32_t instruction_crc(const uint8_t* data, size_t nbytes, uint32_t crc) {
  for (; nbytes >= 3 * kLongStream; data += 3 * kLongStream, nbytes -= 3 * kLongStream) {
    crc = three_streams<kLongStream>(kLongShift, data, crc);
  }
  for (; nbytes >= 3 * kShortStream; data += 3 * kShortStream, nbytes -= 3 * kShortStream) {
    crc = three_streams<kShortStream>(kShortShift, data, crc);
  }
  for (; nbytes >= 8; data += 8, nbytes -= 8) crc = step8(crc, data);
  for (; nbytes > 0; ++data, --nbytes) crc = step1(crc, *data);
  return crc;
}

#undef THINWIRE_CRC

uint32_t fastest_crc(const uint8_t* data, size_t nbytes, uint32_t crc) {
  if (portable_only() || !has_crc_instruction()) return portable_crc(data, nbytes, crc);
  return instruction_crc(data, nbytes, crc);
}

#else

uint32_t fastest_crc(const uint8_t* data, size_t nbytes, uint32_t crc) { return portable_crc(data, nbytes, crc); }

#endif

}  // namespace

uint32_t crc32c(const uint8_t* data, size_t nbytes, uint32_t crc) { return ~fastest_crc(data, nbytes, ~crc); }

}  // namespace thinwire
