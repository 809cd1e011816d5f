// The inner loops, as one table per instruction set. Each works on one range of a tensor in one thread; cutting into
// ranges and putting the results together is done once for all sets, in the .cc files named in kernels.h.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "bytes.h"
#include "kernels.h"

namespace thinwire {

// The weighted sum of some tensors, each as bytes.
struct Float32Sum {
  const uint8_t* const* sources;
  size_t count;
  float weight;
};

// Where the parts of a 1-bit payload lie.
struct SignView {
  size_t block;  // 0: one scale
  const uint8_t* scales;
  const uint8_t* signs;
  const uint8_t* zero_map;  // null: no run is all zeros
};

static inline bool run_is_zero(const SignView& view, size_t i) {
  const size_t run = i / kRun;
  return view.zero_map != nullptr && (view.zero_map[run / 8] >> (run % 8) & 1) != 0;
}

// The scale of the run that starts at i; 0 where the run is all zeros.
static inline float run_scale(const SignView& view, size_t i) {
  if (run_is_zero(view, i)) return 0.0f;
  return load<float>(view.scales + 4 * (view.block == 0 ? 0 : i / view.block));
}

// One of the sign runs of a tensor.
struct SignRun {
  uint64_t signs;
  float magnitude;
};

// That of the run that starts at i.
static inline SignRun load_sign_run(const uint8_t* runs, size_t i) {
  const uint8_t* run = runs + i / kRun * kSignRun;
  return {load<uint64_t>(run), load<float>(run + 8)};
}

static inline void store_sign_run(uint8_t* runs, size_t i, SignRun run) {
  uint8_t* place = runs + i / kRun * kSignRun;
  store(place, run.signs);
  store(place + 8, run.magnitude);
}

// What encoding signs writes. Sums and live counts are per unit: a block, or a grain where there is one scale.
struct SignJob {
  size_t n;
  size_t unit;
  SignScale scale;
  uint8_t* signs;
  uint8_t* zero_map;
  double* sums;
  uint64_t* live;
  double* squares;  // of the gradient, in a step
};

struct SignStep {
  const float* gradient;
  Gains gains;
  Advance wanted;
  SignView last;  // only block and scales
  Carried carried;
};

// The weighted sum of some payloads.
struct SignSum {
  const SignView* payloads;
  size_t count;
  float weight;
};

struct SignSumStep {
  SignSum sum;
  float keep;
  Advance wanted;
  SignView last;
};

// Elements whose magnitude reached a threshold, in order. `overflow` says that the room was not enough and some
// were left where they were.
struct Found {
  uint32_t* index;
  float* value;
  float* velocity;  // their velocity before it was cleared; null where there is none
  size_t capacity;
  size_t count;
  bool overflow;
};

struct ResidualStep {
  Spent gradient;
  Gains gains;
  Advance residual;
  double* squares;  // of the gradient, for each grain
};

struct DgcStep {
  Spent gradient;
  Gains gains;
  MomentumStep step;
  Advance velocity;
  Advance residual;
  double* squares;
};

// How many are taken of a chunk of n elements.
static inline size_t chunk_kept(size_t n, double ratio) {
  const auto kept = static_cast<size_t>(std::ceil(ratio * static_cast<double>(n)));
  return kept < n ? kept : n;
}

// Where what is taken of the chunks of a tensor goes: each has room for `most` entries.
struct ChunkJob {
  double ratio;
  uint32_t top;    // the number of the highest level
  size_t most;     // how many are taken of a whole chunk
  uint32_t* index;
  uint8_t* code;     // the number of the level, twice, and 1 where the element is negative
  uint16_t* levels;  // of each chunk, as all below
  uint32_t* count;
};

// In place of the count of a chunk that has an inf or a nan.
constexpr uint32_t kNotFinite = 0xffffffffu;

struct DitherJob {
  float inverse;  // levels per unit of x: x * inverse is in [-levels, levels]
  float scale;
  unsigned bits;
  Levels levels;
  uint32_t key[2];
};

// [begin, end) are element positions; begin is a multiple of kRun (of the unit, for sign encoding).
struct Kernels {
  const char* name;

  uint32_t (*max_magnitude)(const float* x, size_t n);
  double (*sum)(const float* x, size_t n, SignScale power);  // n <= kGrain

  void (*clear)(float* dst, size_t n);
  void (*float32_add)(const uint8_t* src, size_t n, float weight, float* dst);
  void (*float32_sum)(const Float32Sum& sum, size_t begin, size_t end, float* dst);
  bool (*half_encode)(Half kind, const float* x, size_t n, uint8_t* dst);
  void (*half_decode)(Half kind, const uint8_t* src, size_t n, float* dst);
  void (*half_add)(Half kind, const uint8_t* src, size_t n, float weight, float* dst);

  void (*sign_encode)(const float* x, const SignJob& job, size_t begin, size_t end);
  void (*sign_step)(const SignStep& step, const SignJob& job, size_t begin, size_t end);
  void (*sign_sum_step)(const SignSumStep& step, const SignJob& job, size_t begin, size_t end);
  void (*sign_decode)(const SignView& view, size_t begin, size_t end, float* dst);
  void (*sign_add)(const SignView& view, size_t begin, size_t end, float weight, float* dst);
  void (*sign_sum)(const SignSum& sum, size_t begin, size_t end, float* dst);
  void (*sign_settle)(const SignView& last, size_t begin, size_t end, float* wanted);

  void (*collect)(const float* x, size_t begin, size_t end, uint32_t threshold, Found& found);
  void (*collect_residual)(const ResidualStep& step, size_t begin, size_t end, uint32_t threshold, Found& found);
  void (*collect_dgc)(const DgcStep& step, size_t begin, size_t end, uint32_t threshold, Found& found);

  void (*chunk_encode)(const float* x, const ChunkJob& job, size_t begin, size_t end);
  void (*chunk_step)(const ResidualStep& step, const ChunkJob& job, size_t begin, size_t end);

  void (*adam)(const AdamStep& step, size_t begin, size_t end);
  bool (*adam_momentum)(const AdamMomentumStep& step, size_t begin, size_t end);

  void (*dither_planes)(const float* x, const DitherJob& job, size_t begin, size_t end, uint8_t* planes);
  void (*dither_codes)(const float* x, const DitherJob& job, size_t begin, size_t end, int8_t* codes);
  void (*dither_decode)(const uint8_t* planes, const DitherJob& job, size_t begin, size_t end, float* dst);
  void (*dither_add)(const uint8_t* planes, const DitherJob& job, size_t begin, size_t end, float weight, float* dst);
};

}  // namespace thinwire
