// Every native operation of Thinwire. This header is the whole API and its documentation.
//
// Rules that hold for all of them:
//   * Raw buffers with explicit sizes; any alignment; n may be 0 and need not be a multiple of anything.
//     The caller owns every buffer. No Python, no torch, no exceptions.
//   * Results are the same bits for every instruction set and every number of threads: sums run in a
//     fixed order over fixed blocks, randomness is a function of (seed, position), and no
//     multiplication is fused with an addition.
//   * A `..._encode` returns the bytes it wrote, or 0 if the input holds an inf or a nan. The payload buffer
//     must have room for the matching `..._max_nbytes`.
//   * A `..._check` reads hostile bytes and never touches one outside [payload, payload + nbytes). It returns
//     a Fault, which is false when the payload is one that the encoder can have written.
//     `..._decode`, `..._add` and `..._sum` are only for payloads that passed their check.
//   * `..._add` does dst[i] += weight * decoded[i], with one rounding for the product and one for the sum.
//   * Factors of steps (gains, momentum, weights) are finite: zeros fill the last run, and must stay zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire {

// Why a payload was refused: `what` (null when it was not), and where numbers say more, what was found and expected.
struct Fault {
  const char* what = nullptr;
  uint64_t found = 0;
  uint64_t expected = 0;
  explicit operator bool() const { return what != nullptr; }
};

// Elements per run: the unit of the zero map of 1-bit payloads and of the bit planes of dithering.
constexpr size_t kRun = 64;
// Elements per grain: the unit in which sums are formed, so that they do not depend on threads.
constexpr size_t kGrain = 65536;
// The largest tensor: indices fit into 31 bits.
constexpr size_t kMaxNumel = 0x7fffffff;

// What is done to a gradient and to a residual before they are added: wanted = keep * residual + gain * gradient.
struct Gains {
  float gain = 1.0f;
  float keep = 1.0f;
};

// A momentum that travels with the gradient: wanted = keep * residual + (factor * momentum + gain * gradient). As floats or,
// to the same result, as sign runs (sign.cc), which are a twentieth of the memory to read. Both null: none.
struct Carried {
  const float* momentum = nullptr;
  float factor = 0.0f;
  const uint8_t* runs = nullptr;
};

// State that a step reads `from` one place and writes `to` another, or to the same. Where they differ, the old state is
// still there afterwards: a step can be undone, or its result be thrown away, without a copy.
struct Advance {
  const float* from;
  float* to;
};

// A payload that passed its check.
struct Payload {
  const uint8_t* data;
  size_t nbytes;
};
// Elements of a tensor in ascending order; the others are zero.
struct SparseList {
  const uint32_t* index;
  const float* value;
  size_t count;
};

// reduce.cc: one number from a tensor

// Whether no element is inf or nan.
bool all_finite(const float* x, size_t n);
// Sum of magnitudes and of squares. Finite whenever every element is.
double sum_abs(const float* x, size_t n);
double sum_squares(const float* x, size_t n);
// `quick`, which was summed in floats, or where those overflowed the sum of squares.
double exact_squares(double quick, const float* x, size_t n);
// The largest magnitude; inf or nan if there is one.
float max_abs(const float* x, size_t n);

// dense.cc: 32 and 16 bits per element

enum class Half { kFloat16, kBFloat16 };

// Little-endian float32, 4 n bytes: whatever the bits are, they are numbers.
Fault float32_check(const uint8_t* payload, size_t nbytes, size_t n);
// dst[i] = 0, past the caches if there is much of it.
void clear(float* dst, size_t n);
// dst[i] += weight * src[i], src being little-endian float32 of any alignment.
void float32_add(const uint8_t* src, size_t n, float weight, float* dst);
// dst[i] = weight * src[0][i] + weight * src[1][i] + ..., added to zero in this order. dst may be one of the sources.
void float32_sum(const uint8_t* const* src, size_t count, size_t n, float weight, float* dst);

// Round to nearest even; what would overflow becomes the largest finite number, so that the error can be fed back.
// Returns false if x holds an inf or a nan. dst has 2 n bytes.
bool half_encode(Half kind, const float* x, size_t n, uint8_t* dst);
Fault half_check(Half kind, const uint8_t* payload, size_t nbytes, size_t n);
void half_decode(Half kind, const uint8_t* payload, size_t n, float* dst);
void half_add(Half kind, const uint8_t* payload, size_t n, float weight, float* dst);

// sign.cc: one bit per element
//
// Payload: block u32, zero_runs u32, scales f32[], signs, and if zero_runs > 0 the zero map. docs/wire-format.md has
// the rest. `block` is 0 (one scale) or a multiple of kRun below n. A run with no non-zero element decodes to
// zeros and does not count in the mean, so coordinates that never have a gradient never move.

enum class SignScale { kL1, kL2 };

// Scales are `stretch` times the mean: what is sent then is larger than what was wanted, and large elements arrive sooner.
struct SignScaling {
  SignScale mean;
  float stretch;
  constexpr SignScaling(SignScale of, float times = 1.0f) : mean(of), stretch(times) {}  // NOLINT: a plain mean is one
};

// The block that the payload says: 0 where one block covers everything.
constexpr size_t sign_block(size_t n, size_t block) { return block >= n ? 0 : block; }
// How many scales there are.
constexpr size_t sign_scales(size_t n, size_t block) {
  return n == 0 ? 0 : (sign_block(n, block) == 0 ? 1 : (n + block - 1) / block);
}
size_t onebit_max_nbytes(size_t n, size_t block);
size_t onebit_encode(const float* x, size_t n, SignScaling scaling, size_t block, uint8_t* payload);
Fault onebit_check(const uint8_t* payload, size_t nbytes, size_t n);
void onebit_decode(const uint8_t* payload, size_t n, float* dst);
void onebit_add(const uint8_t* payload, size_t n, float weight, float* dst);
// dst[i] = weight * decoded[0][i] + weight * decoded[1][i] + ..., added to zero in this order, in one pass.
void onebit_sum(const uint8_t* const* payloads, size_t count, size_t n, float weight, float* dst);

// Error feedback and encoding in one pass, with a lazy residual: `wanted` holds what was wanted last time and
// `scales` the scales that were sent for it (all zeros: `wanted` is itself the residual), which together are
// the residual. Afterwards they hold this step's. `squares` becomes the sum of squares of the gradient: where that is not
// finite, or very large, the state that was written is spoilt. Returns 0 if it is not finite. The momentum, if there is
// one, overlaps nothing that is written; it has no part in `squares`, but where it is not finite the state is spoilt too
// and 0 is returned.
size_t onebit_step(const float* gradient, size_t n, Gains gains, SignScaling scaling, size_t block, Advance wanted,
                   Advance scales, uint8_t* payload, double& squares, Carried carried = {});
// The same with gradient = weight * (sum of `count` checked payloads, in order): a server's whole work on a piece.
size_t onebit_sum_step(const uint8_t* const* payloads, size_t count, float weight, size_t n, float keep,
                       SignScaling scaling, size_t block, Advance wanted, Advance scales, uint8_t* payload);
// wanted <- the residual that (wanted, scales) stand for.
void onebit_settle(float* wanted, size_t n, size_t block, const float* scales);

// A tensor in which every run has one magnitude can be written as sign runs: for each run 64 sign bits, low bit first, and
// the magnitude, f32. They hold every bit of the floats, those of -0.0 and of a nan too. Sign bits past the last element
// mean nothing. They never leave the process.
constexpr size_t kSignRun = 12;
constexpr size_t sign_runs_nbytes(size_t n) { return (n / kRun + (n % kRun != 0)) * kSignRun; }
// Whether `runs` are the bits of x in a sample of runs: all if there are at most 64, else so many, evenly spaced.
bool sign_runs_agree(const uint8_t* runs, const float* x, size_t n);

// topk.cc: the k largest magnitudes
//
// All write at most k (index, value) pairs in ascending index order and return how many. Exactly the k largest
// magnitudes, the lower index first among equals; zeros are never taken, so there may be fewer. `index`
// and `value` have room for k. 1 <= k <= n.

enum class Select { kSampled, kRadix };  // the same result: how it is found, not what

// A gradient that is read once. With `clear` it is zeros afterwards: where it is in the caches anyway, that is almost
// free, and a mean of few elements can be written there.
struct Spent {
  float* data;
  bool clear;
};

size_t topk(const float* x, size_t n, size_t k, Select select, uint32_t* index, float* value);

// wanted = keep * residual + gain * gradient, its top k, and the rest left in `residual`, in one pass. `squares` becomes
// the sum of squares of the gradient: where that is not finite, or very large, the state that was written is spoilt. Of a
// gradient that was cleared it is inf as soon as floats cannot hold it.
size_t residual_topk(Spent gradient, size_t n, size_t k, Select select, Gains gains, Advance residual, uint32_t* index,
                     float* value, double& squares);

// The same with a gradient that is a list, gain and keep being 1: what a server does to the sum of lists. Most of the
// residual is only read, so it changes in place. `before` has room for the list, and becomes what the residual was there:
// to undo the step, put the values that were taken back, and then those.
size_t residual_topk_of_list(SparseList gradient, size_t n, size_t k, Select select, float* residual, float* before,
                             uint32_t* index, float* value);

struct MomentumStep {
  float momentum;
  bool nesterov;
  bool mask;  // clear the velocity of what was taken
};
// velocity and residual of Deep Gradient Compression advanced, and the top k taken, in one pass.
size_t dgc_topk(Spent gradient, size_t n, size_t k, Select select, Gains gains, MomentumStep step, Advance velocity,
                Advance residual, uint32_t* index, float* value, double& squares);

// The magnitude that about `ratio` of x reaches, judged by a sample, as float bits. For tests and benchmarks.
uint32_t sampled_threshold(const float* x, size_t n, double ratio, uint64_t seed);

// sparse.cc: payloads of (index, value) lists
//
// Payload: count u32, index coding u8, value coding u8, exponent i16, values, index stream.

enum class Values : uint8_t { kFloat32 = 0, kFloat16 = 1, kInt8 = 2 };

size_t sparse_max_nbytes(size_t n, size_t count, Values values);
// Write a sorted list of non-zero values. `value` is overwritten by what the receiver will decode.
size_t sparse_encode(const uint32_t* index, float* value, size_t count, size_t n, Values values, uint8_t* payload);
Fault sparse_check(const uint8_t* payload, size_t nbytes, size_t n);
// How many entries a checked payload holds, and the entries.
size_t sparse_count(const uint8_t* payload, size_t nbytes);
void sparse_unpack(const uint8_t* payload, size_t nbytes, size_t n, uint32_t* index, float* value);

// lists.cc: (index, value) lists, from tensors, into tensors, and added up

// Every non-zero element: (index, value) pairs, at most `capacity`; returns how many there are in x.
size_t nonzero(const float* x, size_t n, uint32_t* index, float* value, size_t capacity);
// dst[index[i]] += weight * value[i]; every index is below the size of dst.
void scatter_add(const uint32_t* index, const float* value, size_t count, float weight, float* dst);
// dst[index[i]] = value[i].
void scatter(const uint32_t* index, const float* value, size_t count, float* dst);
// The sum of sorted lists as one sorted list, each sum formed in the order of the lists and multiplied by
// weight first. Sums that are zero are left out. Room for the total count; returns the number written.
size_t sparse_merge(const SparseList* lists, size_t count, float weight, uint32_t* index, float* value);

// sparse_steps.cc: tensors to payloads of lists and back, the list between them being scratch memory of the thread

// How the k largest of n elements become a payload, k <= n: in at most sparse_max_nbytes(n, k, values) bytes.
struct TopKCoding {
  size_t k;
  Select select;
  Values values;
};
size_t topk_encode(const float* x, size_t n, TopKCoding coding, uint8_t* payload);

// residual_topk and dgc_topk with their payload. What the coding of the values lost goes back to the residual.
struct ResidualTopK {
  Spent gradient;
  Advance residual;
  Gains gains;
  TopKCoding coding;
};
struct DgcTopK {
  ResidualTopK rest;
  Advance velocity;
  MomentumStep momentum;
};
size_t residual_topk_encode(const ResidualTopK& step, size_t n, uint8_t* payload, double& squares);
size_t dgc_topk_encode(const DgcTopK& step, size_t n, uint8_t* payload, double& squares);

// Room for any list of float32 values of n elements, however many they are.
size_t list_max_nbytes(size_t n);
// Every non-zero element, and the weighted sum of payloads, in at most list_max_nbytes(n) bytes.
size_t nonzero_encode(const float* x, size_t n, uint8_t* payload);
size_t sparse_merge_encode(const Payload* payloads, size_t count, size_t n, float weight, uint8_t* payload);

class UndoLog;  // undo.h
// What a server does to a piece: residual_topk_of_list of the weighted sum of payloads, in place. Where the squares of that
// sum exceed `most_squares` it returns 0 and nothing has changed. What is overwritten is added to `log`, if there is one.
struct TopKSumStep {
  const Payload* payloads;
  size_t count;
  float weight;
  float* residual;
  TopKCoding coding;
  double most_squares;
  UndoLog* log;
};
size_t topk_sum_step_encode(const TopKSumStep& step, size_t n, uint8_t* payload);
void sparse_decode(Payload payload, size_t n, float* dst);
void sparse_add(Payload payload, size_t n, float weight, float* dst);
// dst[i] = weight * decoded[0][i] + weight * decoded[1][i] + ..., added to zero in this order.
void sparse_sum(const Payload* payloads, size_t count, size_t n, float weight, float* dst);

// chunk_topk.cc: the largest of every chunk, in two or four bits each
//
// Payload: entries u32, chunks u32, bits u8, Rice parameter u8, levels u16[chunks], codes, index stream.
// docs/wire-format.md has the rest. Of each chunk exactly the largest magnitudes are taken, the lower index first among
// equals; numbers below the smallest normal float count as zeros, and are never taken.

// Elements in a chunk; the last one may be shorter.
constexpr size_t kChunk = 4096;

// Of every chunk `ratio`, rounded up, each entry in `bits` bits: its sign, and 1 or 3 bits for its magnitude.
struct ChunkCoding {
  double ratio;
  unsigned bits;
};
size_t chunk_topk_max_nbytes(size_t n, ChunkCoding coding);
size_t chunk_topk_encode(const float* x, size_t n, ChunkCoding coding, uint8_t* payload);
// Error feedback and encoding in one pass: wanted = keep * residual + gain * gradient, and what is not sent of it is left in
// the residual. `squares` is that of residual_topk.
struct ChunkTopKStep {
  Spent gradient;
  Advance residual;
  Gains gains;
  ChunkCoding coding;
};
size_t chunk_topk_step(const ChunkTopKStep& step, size_t n, uint8_t* payload, double& squares);
Fault chunk_topk_check(const uint8_t* payload, size_t nbytes, size_t n);
void chunk_topk_decode(Payload payload, size_t n, float* dst);
void chunk_topk_add(Payload payload, size_t n, float weight, float* dst);
// dst[i] = weight * decoded[0][i] + weight * decoded[1][i] + ..., added to zero in this order.
void chunk_topk_sum(const Payload* payloads, size_t count, size_t n, float weight, float* dst);

// rice.cc and elias.cc: integers as bits
//
// Streams are written most significant bit first and padded with zero bits to a whole byte.

// Gaps of a sorted index list, in the paper's form: 16-bit little-endian gaps, with fillers. See docs/wire-format.md.
// The number of entries, fillers included.
size_t gap16_entries(const uint32_t* index, size_t count);

// Rice code of the gaps with parameter r: gap >> r zeros, a one, the r low bits.
struct RicePlan {
  unsigned parameter;
  uint64_t nbits;
};
// The parameter with the shortest stream.
RicePlan rice_plan(const uint32_t* index, size_t count);
// Room for `count` indices below n, or fewer.
size_t rice_max_nbytes(size_t n, size_t count);
// Writes (nbits + 7) / 8 bytes; returns that.
size_t rice_encode(const uint32_t* index, size_t count, unsigned parameter, uint8_t* dst);
// Reads exactly `count` indices below n from exactly nbytes bytes. `index` may be null to check only.
Fault rice_decode(const uint8_t* src, size_t nbytes, size_t count, unsigned parameter, size_t n, uint32_t* index);

// Elias-delta stream of non-zero codes: for each, the gap to the previous one (from 1), a sign bit, the level.
size_t elias_max_nbytes(size_t n, unsigned max_level);
unsigned elias_delta_nbits(uint32_t value);  // value >= 1
size_t elias_encode(const int8_t* codes, size_t n, uint8_t* dst, uint32_t* count);
// Reads exactly `count` codes with 1 <= |code| <= max_level from exactly nbytes bytes. index and code may be null.
Fault elias_decode(const uint8_t* src, size_t nbytes, size_t count, unsigned max_level, size_t n, uint32_t* index,
                   int8_t* code);

// dither.cc: a few random bits per element
//
// Payload: scale f32, bits u8, levels u8, norm u8, zero u8, then bit planes (max norm) or a count u32 and an
// Elias-delta stream (l2 norm). Unbiased.

enum class Levels : uint8_t { kLinear = 0, kNatural = 1 };
enum class Norm : uint8_t { kMax = 0, kL2 = 1 };
struct DitherSettings {
  unsigned bits;  // 1..8
  Levels levels;
  Norm norm;
};

size_t dither_max_nbytes(size_t n, DitherSettings settings);
size_t dither_encode(const float* x, size_t n, DitherSettings settings, uint64_t seed, uint8_t* payload);
Fault dither_check(const uint8_t* payload, size_t nbytes, size_t n);
void dither_decode(const uint8_t* payload, size_t nbytes, size_t n, float* dst);
void dither_add(const uint8_t* payload, size_t nbytes, size_t n, float weight, float* dst);

// sampling.cc: indices from a shared seed

// k different indices below n, every set equally likely for practical purposes; the same on every machine.
void random_indices(uint64_t seed, size_t n, size_t k, uint32_t* index);

// adam.cc: the step of Adam and AdamW in one pass over memory
//
// Every operation is rounded on its own, in the order written, so operations on whole tensors, one after the other, give
// the same bits. Tensors do not overlap unless it says so. An inf or a nan goes where arithmetic takes it.

struct AdamFactors {
  float decay;             // of the parameter, for AdamW: 1 - rate * weight decay
  float eps;
  float step_size;         // rate / (1 - beta1^t)
  float correction2_sqrt;  // sqrt(1 - beta2^t)
  float l2;                // of the parameter, added to the gradient, for Adam; 0 adds nothing at all
};

// Means that move by `weight`, which is 1 - beta, to what is new.
struct AdamMeans {
  float weight1;
  float beta2;
  float weight2;
};

struct AdamStep {
  float* param;
  const float* gradient;
  float* exp_avg;
  float* exp_avg_sq;
  AdamMeans means;
  AdamFactors factors;
};
// g = gradient + l2 * param
// exp_avg = exp_avg + (g - exp_avg) * weight1
// exp_avg_sq = exp_avg_sq * beta2 + (g * g) * weight2
// param = param * decay - step_size * (exp_avg / (sqrt(exp_avg_sq) * (1 / correction2_sqrt) + eps))
void adam_step(const AdamStep& step, size_t n);

struct AdamMomentumStep {
  float* param;
  const float* momentum;  // may be exp_avg
  float* exp_avg;
  const float* exp_avg_sq;
  AdamFactors factors;
  float floor;   // not negative
  size_t block;  // elements whose squares are compared: a multiple of kRun
  float limit;   // of the ratio; not negative, may be inf
  uint8_t* runs = nullptr;  // what exp_avg becomes, as sign runs (sign.cc), if it can be
};
// The same with a momentum that is already made, and squares that stay as they are; l2 includes the weight of what is new.
// exp_avg = momentum + l2 * param
// square = max(exp_avg_sq, floor * mean of exp_avg_sq in its block)
// ratio = exp_avg / (sqrt(square) * (1 / correction2_sqrt) + eps), at least -limit and at most limit; 0 where exp_avg_sq is 0
// param = param * decay - step_size * ratio
// Returns whether `runs` were asked for and hold exp_avg: with an l2 they never do. If not, what they hold means nothing.
bool adam_momentum_step(const AdamMomentumStep& step, size_t n);

// crc32c.cc: CRC32C (Castagnoli) of the bytes, continuing from `crc` (0 to begin)
uint32_t crc32c(const uint8_t* data, size_t nbytes, uint32_t crc);

}  // namespace thinwire
