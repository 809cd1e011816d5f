// The largest of every chunk as codes of a few bits, while feedback is applied in the same pass.
#pragma once

#include <cstring>

#include "kernels/chunk_select.h"
#include "levels.h"

namespace thinwire {

struct LevelMeans {
  float low, high;
  size_t count_high;
};

// Mean magnitudes of what was taken: below `split`, and from there on.
template <class V>
inline LevelMeans means_around(const Chunk<V>& chunk, float split) {
  const typename V::I limit = V::iset(float_bits(split));
  typename V::F low = V::set(0.0f), high = low;
  size_t count = 0;
  for (size_t i = 0; i < chunk.count; i += 16) {
    const typename V::F x = V::abs(V::load(chunk.value + i));
    const typename V::M above = V::at_least(x, limit);
    low = V::add(low, V::clear(above, x));
    high = V::add(high, V::choose(above, x, V::set(0.0f)));
    count += static_cast<size_t>(__builtin_popcount(V::bits(above)));
  }
  float lanes[2][16];
  V::store(lanes[0], low);
  V::store(lanes[1], high);
  double sum[2] = {0.0, 0.0};
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 2; ++j) sum[j] += static_cast<double>(lanes[j][i]);
  }
  const double below = static_cast<double>(chunk.count - count), above = static_cast<double>(count);
  return {static_cast<float>(sum[0] / below), static_cast<float>(sum[1] / above), count};
}

// Two levels by Lloyd's iteration, which begins at the mean and is near its end after three rounds.
template <class V>
inline uint16_t two_levels(const Chunk<V>& chunk) {
  // Not from zero, which pads the last register.
  const float mean = means_around<V>(chunk, float_from_bits(chunk.least)).high;
  float split = mean;
  LevelMeans means{};
  for (int round = 0; round < 3; ++round) {
    means = means_around<V>(chunk, split);
    if (means.count_high == 0 || means.count_high == chunk.count) return levels_for(mean, mean);
    split = means.low * 0.5f + means.high * 0.5f;
  }
  return levels_for(means.low, means.high);
}

template <class V>
inline uint16_t levels_of(const Chunk<V>& chunk, uint32_t top) {
  if (top == 1) return two_levels<V>(chunk);
  return levels_for(float_from_bits(chunk.least), float_from_bits(chunk.largest));
}

constexpr uint32_t kMostTop = 7;

// Where the level with number j + 1 begins. The least of what was taken has the lowest level and the largest the highest,
// so that no other levels could mean the same.
static inline void find_bounds(uint16_t levels, uint32_t top, uint32_t least, uint32_t largest, uint32_t* bounds) {
  for (uint32_t j = 0; j < top; ++j) {
    const float middle = level_of(levels, j, top) * 0.5f + level_of(levels, j + 1, top) * 0.5f;
    const uint32_t bits = float_bits(middle);
    bounds[j] = bits <= least ? least + 1 : bits > largest ? largest : bits;
  }
}

// Twice the number of the level, plus one where the element is negative, of sixteen elements.
template <class V>
inline void code_lanes(typename V::F x, const uint32_t* bounds, size_t count, uint32_t* code) {
  typename V::I number = V::iset(0);
  for (size_t j = 0; j < count; ++j) number = V::add_one(V::at_least(x, V::iset(bounds[j])), number);
  V::istore(code, V::add_one(V::negative(x), V::iadd(number, number)));
}

// Writes the codes of what was taken, and takes what they stand for off the values.
template <class V, class Values>
inline void code_values(const Values& values, uint16_t levels, uint32_t top, Chunk<V>& chunk, uint8_t* codes) {
  uint32_t bounds[kMostTop];
  float sent[2 * (kMostTop + 1)];
  const size_t count = span_of(levels) == 0 ? 0 : top;
  find_bounds(levels, top, chunk.least, chunk.largest, bounds);
  for (uint32_t number = 0; number <= top; ++number) {
    sent[2 * number] = level_of(levels, number, top);
    sent[2 * number + 1] = -sent[2 * number];
  }
  for (size_t i = 0; i < chunk.count; i += 16) {
    uint32_t code[16];
    code_lanes<V>(V::load(chunk.value + i), bounds, count, code);
    const size_t lanes = chunk.count - i < 16 ? chunk.count - i : 16;
    for (size_t j = 0; j < lanes; ++j) {
      if (i + j < kChunk / kRun) fetch_ahead(values, chunk, 2, i + j);
      codes[i + j] = static_cast<uint8_t>(code[j]);
      values.replace(chunk.begin + chunk.index[i + j], chunk.value[i + j] - sent[code[j]]);
    }
  }
}

template <class V, class Values>
inline void encode_chunk(const Values& values, const ChunkJob& job, uint32_t& guess, Chunk<V>& chunk) {
  const size_t number = chunk.begin / kChunk;
  select_largest<V>(values, chunk_kept(chunk.numel(), job.ratio), guess, chunk);
  job.count[number] = static_cast<uint32_t>(chunk.count);
  if (chunk.count == 0) return;
  if (chunk.largest >= kInfinityBits) {
    job.count[number] = kNotFinite;
    return;
  }
  const uint16_t levels = levels_of<V>(chunk, job.top);
  job.levels[number] = levels;
  code_values<V>(values, levels, job.top, chunk, job.code + number * job.most);
  uint32_t* index = job.index + number * job.most;
  for (size_t i = 0; i < chunk.count; ++i) index[i] = static_cast<uint32_t>(chunk.begin) + chunk.index[i];
}

// `begin` is a multiple of kGrain, which is one of kChunk.
template <class V, class Values>
void encode_chunks(const Values& values, const ChunkJob& job, size_t begin, size_t end) {
  uint32_t guess = kLeastNormal;
  Chunk<V> chunk;
  double sum = 0.0;
  for (chunk.begin = begin; chunk.begin < end; chunk.begin = chunk.end) {
    chunk.end = end - chunk.begin < kChunk ? end : chunk.begin + kChunk;
    QuickSquares<V> squares;
    fill_chunk<V>(values, chunk, squares);
    encode_chunk<V>(values, job, guess, chunk);
    sum = chunk.begin % kGrain == 0 ? squares.total() : sum + squares.total();
    values.note(chunk.begin / kGrain, sum);
  }
}

template <class V>
void chunk_encode_kernel(const float* x, const ChunkJob& job, size_t begin, size_t end) {
  encode_chunks<V>(PlainValues<V>{x}, job, begin, end);
}

template <class V>
void chunk_step_kernel(const ResidualStep& step, const ChunkJob& job, size_t begin, size_t end) {
  encode_chunks<V>(ResidualValues<V>(step, end - begin), job, begin, end);
}

}  // namespace thinwire
