// Streams of bits, most significant bit first: what the integer codes of rice.cc and elias.cc are written in.
//
// Both classes are in an unnamed namespace for the reason that everything in bytes.h is `static`: each file that
// includes this has its own copy, compiled for its own instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bytes.h"

namespace thinwire {
namespace {

// Writes bits to a buffer that must be large enough. Never writes a byte beyond the one with the last bit.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* dst) : begin_(dst), next_(dst) {}

  // Appends the `nbits` low bits of value; the rest of value is zero. nbits <= 63.
  void put(uint64_t value, unsigned nbits) {
    const unsigned room = 64 - npending_;
    if (nbits < room) {
      pending_ = pending_ << nbits | value;
      npending_ += nbits;
      return;
    }
    // The word is full. room <= nbits <= 63, so no shift below reaches 64. What pending_ keeps above its
    // npending_ bits is shifted out before it is stored.
    const unsigned rest = nbits - room;
    store(next_, __builtin_bswap64(pending_ << room | value >> rest));
    next_ += 8;
    pending_ = value;
    npending_ = rest;
  }

  // Appends any number of zero bits.
  void put_zeros(uint64_t nbits) {
    for (; nbits > kLongest; nbits -= kLongest) put(0, kLongest);
    put(0, static_cast<unsigned>(nbits));
  }

  // Pads with zero bits to a whole byte and returns the number of bytes written in all.
  size_t finish() {
    for (; npending_ >= 8; npending_ -= 8) *next_++ = static_cast<uint8_t>(pending_ >> (npending_ - 8));
    if (npending_ > 0) *next_++ = static_cast<uint8_t>(pending_ << (8 - npending_));
    npending_ = 0;
    return static_cast<size_t>(next_ - begin_);
  }

 private:
  static constexpr unsigned kLongest = 63;

  uint8_t* begin_;
  uint8_t* next_;
  uint64_t pending_ = 0;   // its npending_ low bits are not stored yet
  unsigned npending_ = 0;  // at most 63
};

// Reads bits from exactly [src, src + nbytes), through a window on the next bits.
//
// The first unread bit is the top bit of window(). The window's first have() bits are sure; those after are
// zeros or what really follows.
class BitReader {
 public:
  BitReader(const uint8_t* src, size_t nbytes) : next_(src), end_(src + nbytes) {}

  // Makes have() at least 56, or all that is left.
  void refill() {
    if (end_ - next_ < 8) return refill_bytewise();
    // Only whole bytes count as taken. The bits of a byte that is not taken are or-ed in again next time.
    window_ |= __builtin_bswap64(load<uint64_t>(next_)) >> have_;
    next_ += (63 - have_) / 8;
    have_ |= 56;
  }

  uint64_t window() const { return window_; }
  unsigned have() const { return have_; }
  // Zero bits before the first one bit of the window; 64 if it has none.
  unsigned leading_zeros() const { return window_ == 0 ? 64 : static_cast<unsigned>(__builtin_clzll(window_)); }

  // Moves past nbits <= have() bits.
  void skip(unsigned nbits) {
    window_ <<= nbits;
    have_ -= nbits;
  }

  // Reads nbits <= have() bits as a number.
  uint64_t take(unsigned nbits) {
    const uint64_t value = window_ >> 1 >> (63 - nbits);  // two shifts, since nbits may be 0
    skip(nbits);
    return value;
  }

  uint64_t bits_left() const { return have_ + 8 * static_cast<uint64_t>(end_ - next_); }

 private:
  void refill_bytewise() {
    for (; have_ < 56 && next_ != end_; have_ += 8) window_ |= uint64_t{*next_++} << (56 - have_);
  }

  const uint8_t* next_;
  const uint8_t* end_;
  uint64_t window_ = 0;
  unsigned have_ = 0;  // at most 63
};

}  // namespace
}  // namespace thinwire
