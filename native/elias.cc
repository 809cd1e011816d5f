// Sparse levels as bits: Elias-delta codes of the gaps between them, of their signs and of themselves.
//
// The reader is strict. A stream has one meaning, and everything that the writer cannot have written (an
// index beyond the tensor, a stream that ends early, padding that is not zero, bytes left over) is refused.

#include <cstring>

#include "bits.h"
#include "codes.h"
#include "kernels.h"

namespace thinwire {
namespace {

// The longest code word that a 32-bit number has begins with this many zeros.
constexpr unsigned kMaxEliasZeros = 5;

struct CodeWord {
  uint64_t bits;
  unsigned nbits;
};

constexpr CodeWord elias_delta(uint32_t value) {
  const unsigned log = floor_log2(value);
  // The leading zeros need no writing: they are the length beyond the highest bit.
  return {uint64_t{log + 1} << log | (value ^ (uint32_t{1} << log)), log + 2 * floor_log2(log + 1) + 1};
}

// The sign bit and the level of a code that is not 0.
constexpr CodeWord signed_level(int code) {
  const CodeWord level = elias_delta(static_cast<uint32_t>(code < 0 ? -code : code));
  return {(code < 0 ? uint64_t{1} << level.nbits : 0) | level.bits, level.nbits + 1};
}

// The same for every code, as a table: small enough for the first cache, and free of branches on random signs.
struct SignedLevels {
  uint16_t bits[256];
  uint8_t nbits[256];
};

constexpr SignedLevels make_signed_levels() {
  SignedLevels table{};
  for (int code = -128; code < 128; ++code) {
    if (code == 0) continue;
    const CodeWord word = signed_level(code);
    table.bits[code & 0xff] = static_cast<uint16_t>(word.bits);
    table.nbits[code & 0xff] = static_cast<uint8_t>(word.nbits);
  }
  return table;
}

constexpr SignedLevels kSignedLevels = make_signed_levels();

// What a sign and a level that begin with given bits are, where those bits are enough (levels up to 15).
constexpr unsigned kPeekBits = 9;
struct Peek {
  int8_t code[1 << kPeekBits];
  uint8_t nbits[1 << kPeekBits];  // 0 where the code is longer
};

constexpr Peek make_peek() {
  Peek peek{};
  for (int code = -15; code <= 15; ++code) {
    if (code == 0) continue;
    const CodeWord word = signed_level(code);
    const uint64_t first = word.bits << (kPeekBits - word.nbits);
    for (uint64_t i = first; i < first + (uint64_t{1} << (kPeekBits - word.nbits)); ++i) {
      peek.code[i] = static_cast<int8_t>(code);
      peek.nbits[i] = static_cast<uint8_t>(word.nbits);
    }
  }
  return peek;
}

constexpr Peek kPeek = make_peek();

// At most 42 + 15 bits: a 32-bit gap, and a sign with a level of at most 128.
void put_code(BitWriter& out, uint32_t gap, uint8_t code) {
  const CodeWord skipped = elias_delta(gap);
  const unsigned nbits = kSignedLevels.nbits[code];
  out.put(skipped.bits << nbits | kSignedLevels.bits[code], skipped.nbits + nbits);
}

// Bit i is set where bytes[i] is not zero, for kRun bytes.
uint64_t nonzero_mask(const uint8_t* bytes) {
  constexpr uint64_t kLow7 = 0x7f7f7f7f7f7f7f7fu;
  uint64_t mask = 0;
  for (unsigned i = 0; i < kRun; i += 8) {
    const uint64_t word = load<uint64_t>(bytes + i);
    const uint64_t flags = (((word & kLow7) + kLow7) | word) >> 7 & 0x0101010101010101u;
    mask |= (flags * 0x0102040810204080u) >> 56 << i;  // the multiplication brings the eight flags together
  }
  return mask;
}

// Where elias_encode is: the stream, and what the next gap counts from.
struct EliasState {
  BitWriter out;
  size_t next;  // one after the previous non-zero code
  uint32_t count;
};

// Appends the non-zero ones of the kRun codes at `bytes`, which begin at position `start`.
void put_run(EliasState& state, const uint8_t* bytes, size_t start) {
  for (uint64_t left = nonzero_mask(bytes); left != 0; left &= left - 1) {
    const auto i = static_cast<unsigned>(__builtin_ctzll(left));
    put_code(state.out, static_cast<uint32_t>(start + i + 1 - state.next), bytes[i]);
    state.next = start + i + 1;
    ++state.count;
  }
}

// A number from 1 to 2^32 - 1, or kEndsEarly, or kTooLarge. Needs a refilled window.
uint64_t take_elias_delta(BitReader& in) {
  const unsigned zeros = in.leading_zeros();
  if (zeros > kMaxEliasZeros) return in.have() > kMaxEliasZeros ? kTooLarge : kEndsEarly;
  const unsigned prefix = 2 * zeros + 1;
  const uint64_t window = in.window();
  const unsigned log = static_cast<unsigned>(window >> (64 - prefix)) - 1;
  if (prefix > in.have()) return kEndsEarly;
  if (log > 31) return kTooLarge;
  if (prefix + log > in.have()) return kEndsEarly;
  in.skip(prefix + log);
  return uint64_t{1} << log | (window << prefix) >> 1 >> (63 - log);
}

struct SignedLevel {
  bool negative;
  uint64_t level;  // or kEndsEarly, or kTooLarge
};

int8_t signed_code(SignedLevel read) {
  const int level = static_cast<int>(read.level);
  return static_cast<int8_t>(read.negative ? -level : level);
}

// A sign and a level that the table does not have, or that the stream does not hold all of.
SignedLevel take_long_level(BitReader& in) {
  in.refill();
  if (in.have() == 0) return {false, kEndsEarly};
  const bool negative = in.take(1) != 0;
  in.refill();
  return {negative, take_elias_delta(in)};
}

SignedLevel take_level(BitReader& in) {
  const uint64_t peeked = in.window() >> (64 - kPeekBits);
  const unsigned nbits = kPeek.nbits[peeked];
  if (nbits == 0 || nbits > in.have()) return take_long_level(in);
  in.skip(nbits);
  const int code = kPeek.code[peeked];
  return {code < 0, static_cast<uint64_t>(code < 0 ? -code : code)};
}

}  // namespace

unsigned elias_delta_nbits(uint32_t value) { return elias_delta(value).nbits; }

// No stream is longer than that of n codes of the highest level. Let v >= 1 be the bits of the longest level (no
// level below is longer). A code after a gap g takes at most e(g) + 1 + v bits and covers g elements; g codes
// with gap 1 take g (2 + v). The first is no more than the second: e(g) = N + 2 L + 1 <= 3 N + 1 <= 3 g - 2, as
// L <= N <= g - 1, and 3 g - 2 + 1 + v <= g (2 + v) is (g - 1) <= (g - 1) v.
size_t elias_max_nbytes(size_t n, unsigned max_level) {
  if (max_level == 0) return 0;
  const uint64_t nbits = n * (uint64_t{2} + elias_delta_nbits(max_level));
  return static_cast<size_t>((nbits + 7) / 8);
}

size_t elias_encode(const int8_t* codes, size_t n, uint8_t* dst, uint32_t* count) {
  EliasState state{BitWriter(dst), 0, 0};
  const auto* bytes = reinterpret_cast<const uint8_t*>(codes);
  const size_t whole = n / kRun * kRun;
  for (size_t i = 0; i < whole; i += kRun) put_run(state, bytes + i, i);
  if (whole < n) {
    uint8_t last[kRun] = {};
    std::memcpy(last, bytes + whole, n - whole);
    put_run(state, last, whole);
  }
  *count = state.count;
  return state.out.finish();
}

Fault elias_decode(const uint8_t* src, size_t nbytes, size_t count, unsigned max_level, size_t n, uint32_t* index,
                   int8_t* code) {
  if (count > n) return {"codes (at most numel)", count, n};
  BitReader in(src, nbytes);
  uint64_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    in.refill();
    const uint64_t gap = take_elias_delta(in);
    if (gap > n - next) {
      if (gap == kEndsEarly) return {"codes before the stream ends", i, count};
      if (gap == kTooLarge) return {"a gap is beyond 32 bits"};
      return {"index of a code (below numel)", next + gap - 1, n};
    }
    const SignedLevel read = take_level(in);
    if (read.level > max_level || read.level > (read.negative ? 128u : 127u)) {
      if (read.level == kEndsEarly) return {"codes before the stream ends", i, count};
      if (read.level == kTooLarge) return {"a level is beyond 32 bits"};
      return {"level of a code (at most)", read.level, max_level < 127 ? max_level : 127};
    }
    next += gap;
    if (index != nullptr) index[i] = static_cast<uint32_t>(next - 1);
    if (code != nullptr) code[i] = signed_code(read);
  }
  return check_padding(in);
}

}  // namespace thinwire
