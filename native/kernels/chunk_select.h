// The largest magnitudes of a chunk, found where it lies in the L1 cache.
#pragma once

#include "kernels/collect.h"
#include "levels.h"
#include "table.h"

namespace thinwire {

constexpr uint32_t kBeyondAll = 0x80000000u;  // no magnitude reaches it, that of a nan included

// At most kBeyondAll: a step that overflowed to zero would be one for ever.
static inline uint32_t twice(uint32_t step) { return step < kBeyondAll ? 2 * step : step; }

// A chunk's values, where they are kept, and of those the largest.
template <class V>
struct Chunk {
  const float* x;
  alignas(64) float tops[kChunk / 4];  // magnitudes: in each of the 16 places of a run's quarters the largest of the four
  alignas(64) float value[kChunk + 16];
  uint32_t index[kChunk + 16];
  size_t begin, end, count;
  uint32_t least, largest;  // magnitudes of what is taken

  size_t numel() const { return end - begin; }
  size_t runs() const { return (numel() + kRun - 1) / kRun; }
};

template <class V, class Values>
inline void fill_chunk(const Values& values, Chunk<V>& chunk, QuickSquares<V>& squares) {
  chunk.x = values.kept(chunk.begin);
  for (size_t i = chunk.begin; i < chunk.end; i += kRun) {
    const size_t count = run_length<V>(i, chunk.end);
    typename Values::Run run;
    values.advance(i, count, run, squares);
    values.keep_near(i, count, run);
    const typename V::I low = V::imax(V::magnitude(run.x[0]), V::magnitude(run.x[1]));
    const typename V::I high = V::imax(V::magnitude(run.x[2]), V::magnitude(run.x[3]));
    V::store(chunk.tops + (i - chunk.begin) / 4, V::float_of_bits(V::imax(low, high)));
  }
}

// How many of n values, padded with zeros to whole registers, reach a threshold above zero.
template <class V>
inline size_t count_reaching(const float* x, size_t n, uint32_t threshold) {
  const typename V::I limit = V::iset(threshold);
  size_t count = 0;
  for (size_t i = 0; i < n; i += 16) {
    count += static_cast<size_t>(__builtin_popcount(V::bits(V::at_least(V::load(x + i), limit))));
  }
  return count;
}

// A limit that at least k of n values reach, and not many more if there is such a one; or the least of all. It is looked
// for around `guess`.
template <class V>
inline uint32_t find_limit(const float* x, size_t n, size_t k, uint32_t guess) {
  const size_t most = k + k / 8;
  uint32_t low = kLeastNormal, high = kBeyondAll, step = 1u << 19;
  uint32_t probe = guess;
  while (high > low) {
    const size_t found = count_reaching<V>(x, n, probe);
    if (found >= k && found <= most) return probe;
    (found < k ? high : low) = probe;
    if (high - low <= 1) break;
    const uint32_t middle = low + (high - low) / 2;
    if (found >= k) {
      probe = high == kBeyondAll && step < middle - low ? low + step : middle;
    } else {
      probe = low == kLeastNormal && step < high - middle ? high - step : middle;
    }
    step = twice(step);
  }
  return low;
}

// While one chunk is worked on in the caches, most of the next is fetched, in three quarters of 64 lines each: memory would
// be idle.
template <class V, class Values>
inline void fetch_ahead(const Values& values, const Chunk<V>& chunk, size_t quarter, size_t line) {
  values.prefetch(chunk.end + quarter * (kChunk / 4) + 16 * line);
}

// One run's mask of what reaches a limit.
template <class V>
inline uint64_t reaching_mask(const float* x, size_t length, typename V::I limit) {
  typename V::F run[4];
  load_run<V>(x, length, run);
  uint64_t mask = 0;
  for (int j = 0; j < 4; ++j) mask |= static_cast<uint64_t>(V::bits(V::at_least(run[j], limit))) << (16 * j);
  return mask;
}

// Everything that reaches the limit. Most runs have few of those, but not all have as many: four places are always written,
// because a wrong guess of a branch takes longer.
template <class V, class Values>
inline void gather_chunk(const Values& values, uint32_t limit, Chunk<V>& chunk) {
  constexpr uint64_t kStop = uint64_t{1} << 63;
  const typename V::I at = V::iset(limit);
  uint32_t* next = chunk.index;
  for (size_t i = 0; i < chunk.numel(); i += kRun) {
    fetch_ahead(values, chunk, 0, i / kRun);
    fetch_ahead(values, chunk, 1, i / kRun);
    uint64_t mask = reaching_mask<V>(chunk.x + i, run_length<V>(i, chunk.numel()), at);
    uint32_t* end = next + __builtin_popcountll(mask);
    do {
      for (int j = 0; j < 4; ++j) {
        next[j] = static_cast<uint32_t>(i) + static_cast<uint32_t>(__builtin_ctzll(mask | kStop));
        mask &= mask - 1;
      }
      next += 4;
    } while (__builtin_expect(mask != 0, 0));
    next = end;
  }
  chunk.count = static_cast<size_t>(next - chunk.index);
  for (size_t i = 0; i < chunk.count; ++i) chunk.value[i] = chunk.x[chunk.index[i]];
  V::store(chunk.value + chunk.count, V::set(0.0f));
}

// The k largest of what was gathered: everything from `above` on, and the first `ties` of those next below it.
struct ChunkCut {
  uint32_t above;
  size_t ties;
};

template <class V>
inline ChunkCut find_cut(const Chunk<V>& chunk, size_t k, uint32_t limit) {
  if (chunk.count <= k) return {limit, 0};
  uint32_t low = limit, high = kBeyondAll, step = 1u << 16;
  size_t above = 0;  // of those that reach `high`
  while (high - low > 1) {
    const uint32_t half = (high - low) / 2;
    const uint32_t middle = low + (high == kBeyondAll && step < half ? step : half);
    const size_t found = count_reaching<V>(chunk.value, chunk.count, middle);
    if (found == k) return {middle, 0};
    step = twice(step);
    if (found > k) {
      low = middle;
    } else {
      high = middle;
      above = found;
    }
  }
  return {high, k - above};
}

// Everything from a limit on.
template <class V>
inline void take_from(uint32_t limit, Chunk<V>& chunk) {
  const typename V::I at = V::iset(limit);
  size_t taken = 0;
  for (size_t i = 0; i < chunk.count; i += 16) {
    const typename V::F x = V::load(chunk.value + i);
    const typename V::I index = V::iload(chunk.index + i);
    const typename V::M mask = V::at_least(x, at);
    V::compress(mask, x, chunk.value + taken);
    V::icompress(mask, index, chunk.index + taken);
    taken += static_cast<size_t>(__builtin_popcount(V::bits(mask)));
  }
  chunk.count = taken;
}

template <class V>
inline void take_with_ties(ChunkCut cut, Chunk<V>& chunk) {
  size_t taken = 0;
  for (size_t i = 0; i < chunk.count; ++i) {
    const uint32_t magnitude = magnitude_bits(chunk.value[i]);
    const bool tie = magnitude + 1 == cut.above && cut.ties > 0;
    if (magnitude < cut.above && !tie) continue;
    cut.ties -= static_cast<size_t>(tie);
    chunk.value[taken] = chunk.value[i];
    chunk.index[taken++] = chunk.index[i];
  }
  chunk.count = taken;
}

template <class V>
inline void note_range(Chunk<V>& chunk) {
  constexpr uint32_t kAll = 0x7fffffffu;
  const typename V::I all = V::iset(kAll);
  typename V::I largest[4] = {V::iset(0), V::iset(0), V::iset(0), V::iset(0)};
  typename V::I least[4] = {V::iset(0), V::iset(0), V::iset(0), V::iset(0)};
  for (size_t i = 0; i < chunk.count; i += 16) {
    const typename V::I x = V::magnitude(V::load(chunk.value + i));
    largest[0] = V::imax(largest[0], x);
    // What pads the last register is zero, and no candidate.
    least[0] = V::imax(least[0], V::ichoose(V::iless(V::iset(0), x), V::isub(all, x), V::iset(0)));
  }
  chunk.largest = largest_lane<V>(largest);
  chunk.least = kAll - largest_lane<V>(least);
}

template <class V>
inline void take(ChunkCut cut, Chunk<V>& chunk) {
  if (cut.ties == 0) {
    take_from<V>(cut.above, chunk);
  } else {
    take_with_ties<V>(cut, chunk);
  }
  V::store(chunk.value + chunk.count, V::set(0.0f));
  note_range<V>(chunk);
}

// The largest of groups of four are known. Where k groups reach a limit so do k elements, and hardly more. For small k larger
// groups do, which are fewer.
template <class V>
inline uint32_t limit_by_tops(Chunk<V>& chunk, size_t k, uint32_t guess) {
  size_t tops = 16 * chunk.runs();
  if (tops == kChunk / 4 && 16 * k <= tops) {
    for (size_t i = 0; i < tops / 4; i += 16) {
      const typename V::I low = V::imax(V::bits_of(V::load(chunk.tops + i)), V::bits_of(V::load(chunk.tops + tops / 4 + i)));
      const typename V::I high = V::imax(V::bits_of(V::load(chunk.tops + tops / 2 + i)),
                                         V::bits_of(V::load(chunk.tops + 3 * tops / 4 + i)));
      V::store(chunk.tops + i, V::float_of_bits(V::imax(low, high)));
    }
    tops /= 4;
  }
  return k > tops ? kLeastNormal : find_limit<V>(chunk.tops, tops, k, guess);
}

// The largest k, or all that there are, into the chunk's lists. `guess` is the limit of the chunk before.
template <class V, class Values>
inline void select_largest(const Values& values, size_t k, uint32_t& guess, Chunk<V>& chunk) {
  guess = limit_by_tops<V>(chunk, k, guess);
  gather_chunk<V>(values, guess, chunk);
  take<V>(find_cut<V>(chunk, k, guess), chunk);
}

}  // namespace thinwire
