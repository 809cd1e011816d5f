// Integers as bits: Rice codes for sorted indices, Elias-delta codes for sparse levels.
//
// The readers are strict. A stream has one meaning, and everything that the writer cannot have written (an
// index beyond the tensor, a stream that ends early, padding that is not zero, bytes left over) is refused.

#include <cstring>

#include "bits.h"
#include "kernels.h"

namespace thinwire {
namespace {

constexpr unsigned kMaxRiceParameter = 30;

// What a reader gives instead of a number. Both are larger than any number.
constexpr uint64_t kEndsEarly = ~uint64_t{0};
constexpr uint64_t kTooLarge = kEndsEarly - 1;

constexpr unsigned floor_log2(uint32_t value) { return 31 - static_cast<unsigned>(__builtin_clz(value)); }

// What is left of a stream after its last number must be padding: fewer than 8 bits, all zero.
Fault check_padding(const BitReader& in) {
  const uint64_t left = in.bits_left();
  if (left >= 8) return {"bytes after the bit stream", left / 8, 0};
  if (in.window() != 0) return {"padding bits of the bit stream are not zero"};
  return {};
}

// Rice

// Sums of gap >> r over a list, for the four parameters from `first`. 32 bits hold them, because the gaps of a
// list add up to less than its last index + 1.
struct Quotients {
  uint32_t sum[4];
};

Quotients quotient_sums(const uint32_t* index, size_t count, unsigned first) {
  uint32_t a = index[0] >> first;
  uint32_t b = index[0] >> (first + 1);
  uint32_t c = index[0] >> (first + 2);
  uint32_t d = index[0] >> (first + 3);
  for (size_t i = 1; i < count; ++i) {
    const uint32_t gap = index[i] - index[i - 1] - 1;
    a += gap >> first;
    b += gap >> (first + 1);
    c += gap >> (first + 2);
    d += gap >> (first + 3);
  }
  return {{a, b, c, d}};
}

// The shortest of four neighbouring parameters, the smallest among equals.
RicePlan best_of_four(const uint32_t* index, size_t count, unsigned first) {
  const Quotients quotients = quotient_sums(index, count, first);
  RicePlan best{first, ~uint64_t{0}};
  for (unsigned i = 0; i < 4; ++i) {
    const uint64_t nbits = quotients.sum[i] + (uint64_t{1} + first + i) * count;
    if (nbits < best.nbits) best = {first + i, nbits};
  }
  return best;
}

// First of the four parameters to try, around what is best where gaps are geometric: about log2(mean gap) - 1/2.
unsigned first_guess(const uint32_t* index, size_t count) {
  const uint64_t mean = (uint64_t{index[count - 1]} + 1 - count) / count;
  const unsigned log = mean == 0 ? 0 : floor_log2(static_cast<uint32_t>(mean));
  return log < 2 ? 0 : (log > 29 ? 27 : log - 2);
}

// First of the four parameters in the middle of [low, high].
unsigned middle_four(unsigned low, unsigned high) {
  if (high - low > 3) return low + (high - low - 3) / 2;
  return low < kMaxRiceParameter - 3 ? low : kMaxRiceParameter - 3;
}

void put_rice(BitWriter& out, uint32_t gap, unsigned parameter) {
  const uint32_t quotient = gap >> parameter;
  const uint64_t tail = (uint64_t{1} << parameter) | (gap & ((uint32_t{1} << parameter) - 1));
  if (quotient + uint64_t{1} + parameter <= 63) {
    out.put(tail, quotient + 1 + parameter);
  } else {
    out.put_zeros(quotient);
    out.put(tail, parameter + 1);
  }
}

// A gap whose code does not fit in the window: a long unary part, or the end of the stream.
uint64_t take_long_rice(BitReader& in, unsigned parameter) {
  uint64_t quotient = 0;
  while (in.leading_zeros() >= in.have()) {
    if (in.have() == 0) return kEndsEarly;
    quotient += in.have();
    in.skip(in.have());
    in.refill();
  }
  const unsigned zeros = in.leading_zeros();
  quotient += zeros;
  in.skip(zeros + 1);
  in.refill();
  if (in.have() < parameter) return kEndsEarly;
  if (quotient >> 32 != 0) return kTooLarge;  // before the shift can overflow
  return quotient << parameter | in.take(parameter);
}

uint64_t take_rice(BitReader& in, unsigned parameter) {
  in.refill();
  const unsigned zeros = in.leading_zeros();
  if (zeros + 1 + parameter > in.have()) return take_long_rice(in, parameter);
  in.skip(zeros + 1);
  return uint64_t{zeros} << parameter | in.take(parameter);
}

// Elias-delta

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

size_t gap16_entries(const uint32_t* index, size_t count) {
  size_t entries = count;
  uint32_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    entries += (index[i] - next) >> 16;  // a filler consumes 65536 positions, and a gap of 65535 needs none
    next = index[i] + 1;
  }
  return entries;
}

// The length is a convex function of r, so going downhill ends at the shortest. Proof: with f(r) = gap >> r, one
// gap takes f(r) + 1 + r bits, and f(r) - f(r + 1) = ceil(f(r) / 2), which falls with r because f does.
// Convexity also makes equals neighbours, so the smallest of them is where the first descent ends.
RicePlan rice_plan(const uint32_t* index, size_t count) {
  if (count == 0) return {0, 0};
  unsigned low = 0;
  unsigned high = kMaxRiceParameter;
  for (unsigned first = first_guess(index, count);; first = middle_four(low, high)) {
    const RicePlan best = best_of_four(index, count, first);
    if (best.parameter == first && first > low) {
      high = first;
    } else if (best.parameter == first + 3 && first + 3 < high) {
      low = first + 3;
    } else {
      return best;
    }
  }
}

size_t rice_encode(const uint32_t* index, size_t count, unsigned parameter, uint8_t* dst) {
  BitWriter out(dst);
  uint32_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    put_rice(out, index[i] - next, parameter);
    next = index[i] + 1;
  }
  return out.finish();
}

Fault rice_decode(const uint8_t* src, size_t nbytes, size_t count, unsigned parameter, size_t n, uint32_t* index) {
  if (parameter > kMaxRiceParameter) return {"Rice parameter (at most)", parameter, kMaxRiceParameter};
  if (count > n) return {"indices (at most numel)", count, n};
  BitReader in(src, nbytes);
  uint64_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t gap = take_rice(in, parameter);
    // next <= n, so the difference is no less than 0, and kEndsEarly and kTooLarge are beyond it.
    if (gap >= n - next) {
      if (gap == kEndsEarly) return {"indices before the stream ends", i, count};
      if (gap == kTooLarge) return {"a gap is beyond 32 bits"};
      return {"an index (below numel)", next + gap, n};
    }
    if (index != nullptr) index[i] = static_cast<uint32_t>(next + gap);
    next += gap + 1;
  }
  return check_padding(in);
}

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
