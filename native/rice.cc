// Sorted indices as bits: 16-bit gaps counted, Rice codes written and read.
//
// The reader is strict. A stream has one meaning, and everything that the writer cannot have written (an
// index beyond the tensor, a stream that ends early, padding that is not zero, bytes left over) is refused.

#include "bits.h"
#include "codes.h"
#include "kernels.h"

namespace thinwire {
namespace {

constexpr unsigned kMaxRiceParameter = 30;

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

size_t rice_max_nbytes(size_t n, size_t count) {
  // With r = ceil(log2(n / count)) the quotients sum to at most n / 2^r <= count, so r + 2 bits per index do.
  const size_t per_index = count == 0 ? 0 : (n + count - 1) / count;
  unsigned r = 0;
  while ((size_t{1} << r) < per_index) ++r;
  return (count * (r + 2) + 7) / 8;
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

}  // namespace thinwire
