#include <algorithm>

#include "bytes.h"
#include "dispatch.h"
#include "grain_sums.h"
#include "kernels.h"
#include "levels.h"
#include "memory.h"
#include "pool.h"

namespace thinwire {
namespace {

constexpr size_t kHeader = 10;

size_t count_chunks(size_t n) { return n / kChunk + (n % kChunk != 0); }

size_t code_nbytes(size_t entries, unsigned bits) { return (entries * bits + 7) / 8; }

// The number of the highest level: one of the bits is the sign.
uint32_t top_of(unsigned bits) { return (1u << (bits - 1)) - 1; }

// The header's fields and the places of the three streams.
struct Layout {
  size_t entries, chunks;
  unsigned bits, parameter;
  const uint8_t* levels;
  const uint8_t* codes;
  const uint8_t* index_bytes;
  size_t index_nbytes;

  uint16_t levels_at(size_t chunk) const { return load<uint16_t>(levels + 2 * chunk); }
  unsigned code_at(size_t entry) const {
    const size_t place = entry * bits;
    return static_cast<unsigned>(codes[place / 8]) >> (place % 8) & ((1u << bits) - 1);
  }
};

size_t streams_begin(size_t entries, size_t chunks, unsigned bits) {
  return kHeader + 2 * chunks + code_nbytes(entries, bits);
}

Layout layout_of(const uint8_t* payload, size_t nbytes) {
  Layout layout{};
  layout.entries = load<uint32_t>(payload);
  layout.chunks = load<uint32_t>(payload + 4);
  layout.bits = payload[8];
  layout.parameter = payload[9];
  layout.levels = payload + kHeader;
  layout.codes = layout.levels + 2 * layout.chunks;
  const size_t used = streams_begin(layout.entries, layout.chunks, layout.bits);
  layout.index_bytes = payload + used;
  layout.index_nbytes = nbytes - used;
  return layout;
}

// Codes of one byte each as bits, the first in the lowest. `code` has zeros after the last, up to eight.
void pack_codes(const uint8_t* code, size_t entries, unsigned bits, uint8_t* dst) {
  const size_t in_byte = 8 / bits;
  for (size_t i = 0; i < entries; i += in_byte) {
    unsigned byte = 0;
    for (size_t j = 0; j < in_byte; ++j) byte |= static_cast<unsigned>(code[i + j]) << (bits * j);
    dst[i / in_byte] = static_cast<uint8_t>(byte);
  }
}

// What is taken of each chunk, and the payload of it all.
class Taken {
 public:
  Taken(size_t n, ChunkCoding coding)
      : n_(n),
        bits_(coding.bits),
        chunks_(count_chunks(n)),
        most_(chunk_kept(kChunk, coding.ratio)),
        index_(chunks_ * most_),
        code_(chunks_ * most_ + 8),
        levels_(chunks_),
        count_(chunks_) {
    job_ = {coding.ratio, top_of(bits_), most_, index_.data(), code_.data(), levels_.data(), count_.data()};
  }

  // encode(job, begin, end) writes lists, levels and counts of a range.
  template <class Encode>
  void run(Encode encode) {
    parallel(n_, kGrain, count_parts(n_, kGrain), [&](Range range) { encode(job_, range.begin, range.end); });
  }

  // The payload's size, or 0 if an element is not finite.
  size_t write(uint8_t* payload) {
    if (std::find(count_.data(), count_.data() + chunks_, kNotFinite) != count_.data() + chunks_) return 0;
    close_gaps();
    std::fill_n(code_.data() + entries_, 8, uint8_t{0});
    const RicePlan rice = rice_plan(index_.data(), entries_);
    store(payload, static_cast<uint32_t>(entries_));
    store(payload + 4, static_cast<uint32_t>(used_));
    payload[8] = static_cast<uint8_t>(bits_);
    payload[9] = static_cast<uint8_t>(rice.parameter);
    for (size_t c = 0; c < used_; ++c) store(payload + kHeader + 2 * c, levels_[c]);
    pack_codes(code_.data(), entries_, bits_, payload + kHeader + 2 * used_);
    const size_t used = streams_begin(entries_, used_, bits_);
    return used + rice_encode(index_.data(), entries_, rice.parameter, payload + used);
  }

 private:
  // Moves all lists next to each other, without chunks that have nothing.
  void close_gaps() {
    for (size_t c = 0; c < chunks_; ++c) {
      const size_t from = c * most_, count = count_[c];
      if (count == 0) continue;
      if (from != entries_) {
        std::copy_n(index_.data() + from, count, index_.data() + entries_);
        std::copy_n(code_.data() + from, count, code_.data() + entries_);
      }
      levels_[used_++] = levels_[c];
      entries_ += count;
    }
  }

  size_t n_;
  unsigned bits_;
  size_t chunks_, most_;
  Scratch<uint32_t> index_;
  Scratch<uint8_t> code_;
  Scratch<uint16_t> levels_;
  Scratch<uint32_t> count_;
  ChunkJob job_{};
  size_t entries_ = 0, used_ = 0;
};

Fault check_header(const uint8_t* payload, size_t nbytes, size_t n) {
  if (nbytes < kHeader) return {"nbytes (at least the header)", nbytes, kHeader};
  const size_t entries = load<uint32_t>(payload), chunks = load<uint32_t>(payload + 4);
  if (entries > n) return {"entries (at most numel)", entries, n};
  if (chunks > std::min(entries, count_chunks(n))) return {"chunks (at most)", chunks, std::min(entries, count_chunks(n))};
  if (payload[8] != 2 && payload[8] != 4) return {"bits of an entry are not 2 or 4"};
  const size_t used = streams_begin(entries, chunks, payload[8]);
  if (nbytes < used) return {"nbytes (at least header, levels and codes)", nbytes, used};
  return {};
}

Fault check_levels(const Layout& layout) {
  for (size_t c = 0; c < layout.chunks; ++c) {
    const uint32_t low = low_of(layout.levels_at(c));
    if (low < kLeastLevel) return {"a level is subnormal or zero"};
    if (low + span_width(span_of(layout.levels_at(c))) > kMostLevel) return {"a level is above 2^100"};
  }
  return {};
}

// The lowest and the highest of different levels are in use, so that no others could mean the same.
Fault check_use(const Layout& layout, size_t chunk, unsigned used) {
  const uint32_t top = top_of(layout.bits);
  if (span_of(layout.levels_at(chunk)) == 0) return used == 1 ? Fault{} : Fault{"a code without a level"};
  const unsigned ends = 1u | 1u << top;
  return (used & ends) == ends ? Fault{} : Fault{"an outer level is not in use"};
}

Fault check_chunks(const Layout& layout, const uint32_t* index) {
  size_t chunk = 0;
  for (size_t i = 0; i < layout.entries; ++chunk) {
    if (chunk == layout.chunks) return {"more chunks have entries than levels"};
    const uint32_t number = index[i] / kChunk;
    unsigned used = 0;
    for (; i < layout.entries && index[i] / kChunk == number; ++i) used |= 1u << (layout.code_at(i) >> 1);
    if (const Fault fault = check_use(layout, chunk, used)) return fault;
  }
  if (chunk != layout.chunks) return {"chunks with entries", chunk, layout.chunks};
  return {};
}

Fault check_index(const Layout& layout, size_t n) {
  Scratch<uint32_t> index(layout.entries);
  if (const Fault fault =
          rice_decode(layout.index_bytes, layout.index_nbytes, layout.entries, layout.parameter, n, index.data())) {
    return fault;
  }
  const unsigned shortest = rice_plan(index.data(), layout.entries).parameter;
  if (layout.parameter != shortest) return {"Rice parameter (the shortest)", layout.parameter, shortest};
  return check_chunks(layout, index.data());
}

// A payload that passed its check, as a list.
class Unpacked {
 public:
  Unpacked(Payload payload, size_t n) : Unpacked(layout_of(payload.data, payload.nbytes), n) {}
  SparseList list() const { return {index_.data(), value_.data(), index_.size()}; }

 private:
  Unpacked(const Layout& layout, size_t n) : index_(layout.entries), value_(layout.entries) {
    rice_decode(layout.index_bytes, layout.index_nbytes, layout.entries, layout.parameter, n, index_.data());
    size_t chunk = 0;
    for (size_t i = 0; i < layout.entries; ++chunk) i = unpack_chunk(layout, chunk, i);
  }

  // From this entry on to the end of its chunk, which is returned.
  size_t unpack_chunk(const Layout& layout, size_t chunk, size_t i) {
    const uint32_t top = top_of(layout.bits), number = index_[i] / kChunk;
    float values[16];
    for (uint32_t code = 0; code < 2 * (top + 1); ++code) {
      const float level = level_of(layout.levels_at(chunk), code >> 1, top);
      values[code] = (code & 1) != 0 ? -level : level;
    }
    for (; i < layout.entries && index_[i] / kChunk == number; ++i) value_[i] = values[layout.code_at(i)];
    return i;
  }

  Scratch<uint32_t> index_;
  Scratch<float> value_;
};

}  // namespace

size_t chunk_topk_max_nbytes(size_t n, ChunkCoding coding) {
  const size_t rest = n % kChunk;
  const size_t count = n / kChunk * chunk_kept(kChunk, coding.ratio) + chunk_kept(rest, coding.ratio);
  return kHeader + 2 * count_chunks(n) + code_nbytes(count, coding.bits) + rice_max_nbytes(n, count);
}

size_t chunk_topk_encode(const float* x, size_t n, ChunkCoding coding, uint8_t* payload) {
  Taken taken(n, coding);
  taken.run([x](const ChunkJob& job, size_t begin, size_t end) { kernels().chunk_encode(x, job, begin, end); });
  return taken.write(payload);
}

size_t chunk_topk_step(const ChunkTopKStep& step, size_t n, uint8_t* payload, double& squares) {
  GrainSums sums(n);
  Taken taken(n, step.coding);
  const ResidualStep residual{step.gradient, step.gains, step.residual, sums.data()};
  taken.run([&](const ChunkJob& job, size_t begin, size_t end) { kernels().chunk_step(residual, job, begin, end); });
  squares = squares_of(step.gradient, n, sums);
  return taken.write(payload);
}

Fault chunk_topk_check(const uint8_t* payload, size_t nbytes, size_t n) {
  if (const Fault fault = check_header(payload, nbytes, n)) return fault;
  const Layout layout = layout_of(payload, nbytes);
  if (const Fault fault = check_levels(layout)) return fault;
  const size_t unused = layout.entries * layout.bits % 8;
  if (unused != 0 && layout.codes[layout.entries * layout.bits / 8] >> unused != 0) {
    return {"padding bits of the codes are not zero"};
  }
  return check_index(layout, n);
}

void chunk_topk_decode(Payload payload, size_t n, float* dst) {
  const Unpacked unpacked(payload, n);
  clear(dst, n);
  const SparseList list = unpacked.list();
  scatter(list.index, list.value, list.count, dst);
}

void chunk_topk_add(Payload payload, size_t n, float weight, float* dst) {
  const Unpacked unpacked(payload, n);
  const SparseList list = unpacked.list();
  scatter_add(list.index, list.value, list.count, weight, dst);
}

void chunk_topk_sum(const Payload* payloads, size_t count, size_t n, float weight, float* dst) {
  clear(dst, n);
  for (size_t i = 0; i < count; ++i) chunk_topk_add(payloads[i], n, weight, dst);
}

}  // namespace thinwire
