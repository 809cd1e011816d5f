// Feeds damaged payloads to every reader of kernels.h.
//
//   thinwire_native_fuzz [cases] [seed] [file or folder ...]
//
// Each case is a payload that an encoder wrote, damaged or not, in a heap buffer of its exact size. A reader must
// refuse it or decode it to finite numbers inside the tensor; what was not damaged it may not refuse. Cases depend on
// nothing but the seed and their number. Files are replayed: the reader's number (1 byte), n (4 bytes), the payload.
//
// A case that fails is written to a file in the current folder, also when a sanitizer stops the program.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "bytes.h"
#include "kernels.h"
#include "test/tools.h"

// Where there is a sanitizer, it calls this back before it ends the program.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace thinwire::test {
namespace {

constexpr size_t kMaxElements = 3000;
// What is decoded and not only checked. Files can claim more elements than there is memory.
constexpr size_t kMaxDecoded = size_t{1} << 24;

// What a reader makes of a payload

// `refused` is the text of its fault; `broken` says which promise it did not keep. Both may be null.
struct Verdict {
  const char* refused = nullptr;
  const char* broken = nullptr;
};

bool finite(const float* x, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return false;
  }
  return true;
}

bool ascending(const uint32_t* index, size_t count, size_t n) {
  for (size_t i = 0; i < count; ++i) {
    if (index[i] >= n || (i > 0 && index[i] <= index[i - 1])) return false;
  }
  return true;
}

// decode(dst) and add(weight, dst) of a payload that passed its check.
template <class Decode, class Add>
Verdict decoded(size_t n, Decode decode, Add add) {
  if (n > kMaxDecoded) return {};
  const auto values = exact<float>(n);
  std::fill_n(values.get(), n, std::nanf(""));  // so that an element which is not written is seen
  decode(values.get());
  if (!finite(values.get(), n)) return {nullptr, "a decoded element is not finite"};
  const auto sum = exact<float>(n);
  add(1.0f, sum.get());
  const bool same = std::equal(values.get(), values.get() + n, sum.get());
  return {nullptr, same ? nullptr : "adding to zero is not decoding"};
}

Verdict read_half(Half kind, const uint8_t* payload, size_t nbytes, size_t n) {
  if (const Fault fault = half_check(kind, payload, nbytes, n)) return {fault.what};
  return decoded(
      n, [&](float* dst) { half_decode(kind, payload, n, dst); },
      [&](float weight, float* dst) { half_add(kind, payload, n, weight, dst); });
}

Verdict read_float16(const uint8_t* payload, size_t nbytes, size_t n) {
  return read_half(Half::kFloat16, payload, nbytes, n);
}

Verdict read_bfloat16(const uint8_t* payload, size_t nbytes, size_t n) {
  return read_half(Half::kBFloat16, payload, nbytes, n);
}

Verdict read_onebit(const uint8_t* payload, size_t nbytes, size_t n) {
  if (const Fault fault = onebit_check(payload, nbytes, n)) return {fault.what};
  return decoded(
      n, [&](float* dst) { onebit_decode(payload, n, dst); },
      [&](float weight, float* dst) { onebit_add(payload, n, weight, dst); });
}

Verdict read_dither(const uint8_t* payload, size_t nbytes, size_t n) {
  if (const Fault fault = dither_check(payload, nbytes, n)) return {fault.what};
  return decoded(
      n, [&](float* dst) { dither_decode(payload, nbytes, n, dst); },
      [&](float weight, float* dst) { dither_add(payload, nbytes, n, weight, dst); });
}

Verdict read_sparse(const uint8_t* payload, size_t nbytes, size_t n) {
  if (const Fault fault = sparse_check(payload, nbytes, n)) return {fault.what};
  const size_t count = sparse_count(payload, nbytes);
  if (count > n) return {nullptr, "more entries than elements"};
  if (count > kMaxDecoded) return {};
  const auto index = exact<uint32_t>(count);
  const auto value = exact<float>(count);
  sparse_unpack(payload, nbytes, n, index.get(), value.get());
  if (!ascending(index.get(), count, n)) return {nullptr, "indices are not ascending or not below n"};
  return {nullptr, finite(value.get(), count) ? nullptr : "a value is not finite"};
}

Verdict read_chunk_topk(const uint8_t* payload, size_t nbytes, size_t n) {
  if (const Fault fault = chunk_topk_check(payload, nbytes, n)) return {fault.what};
  const Payload read{payload, nbytes};
  return decoded(
      n, [&](float* dst) { chunk_topk_decode(read, n, dst); },
      [&](float weight, float* dst) { chunk_topk_add(read, n, weight, dst); });
}

// The integer codes have no header of their own; here it is a count (4 bytes) and a parameter (1 byte).
constexpr size_t kCodeHeader = 5;
constexpr const char* kNoHeader = "shorter than the header of the test";

Verdict read_rice(const uint8_t* payload, size_t nbytes, size_t n) {
  if (nbytes < kCodeHeader) return {kNoHeader};
  const size_t count = load<uint32_t>(payload);
  const uint8_t* stream = payload + kCodeHeader;
  const size_t left = nbytes - kCodeHeader;
  if (const Fault fault = rice_decode(stream, left, count, payload[4], n, nullptr)) return {fault.what};
  if (count > n) return {nullptr, "more indices than elements"};
  if (count > kMaxDecoded) return {};
  const auto index = exact<uint32_t>(count);
  if (rice_decode(stream, left, count, payload[4], n, index.get())) return {nullptr, "a second reading differs"};
  return {nullptr, ascending(index.get(), count, n) ? nullptr : "indices are not ascending or not below n"};
}

Verdict read_elias(const uint8_t* payload, size_t nbytes, size_t n) {
  if (nbytes < kCodeHeader) return {kNoHeader};
  const size_t count = load<uint32_t>(payload);
  const int max_level = payload[4];
  const uint8_t* stream = payload + kCodeHeader;
  const size_t left = nbytes - kCodeHeader;
  const auto level = static_cast<unsigned>(max_level);
  if (const Fault fault = elias_decode(stream, left, count, level, n, nullptr, nullptr)) return {fault.what};
  if (count > n) return {nullptr, "more codes than elements"};
  if (count > kMaxDecoded) return {};
  const auto index = exact<uint32_t>(count);
  const auto code = exact<int8_t>(count);
  const Fault again = elias_decode(stream, left, count, level, n, index.get(), code.get());
  if (again) return {nullptr, "a second reading differs"};
  if (!ascending(index.get(), count, n)) return {nullptr, "indices are not ascending or not below n"};
  for (size_t i = 0; i < count; ++i) {
    const int size = std::abs(int{code[i]});
    if (size == 0 || size > max_level) return {nullptr, "a code is zero or above the highest level"};
  }
  return {};
}

// Payloads that encoders wrote

// Finite floats of every size: mostly like gradients, with zeros, denormals and the largest among them.
float random_float(Random& random) {
  if (random.chance(0.02)) return float_from_bits(static_cast<uint32_t>(random.next()) & 0xff7fffffu);
  const double x = random.unit() + random.unit() + random.unit() - 1.5;
  return static_cast<float>(x * 0.01);
}

std::vector<float> random_floats(Random& random, size_t n) {
  const double density = random.chance(0.3) ? random.unit() : 1.0;
  std::vector<float> x(n);
  for (auto& value : x) value = random.chance(density) ? random_float(random) : 0.0f;
  // Whole runs of zeros, as in embeddings.
  if (n > 0 && random.chance(0.3)) {
    const size_t begin = random.below(n);
    std::fill_n(x.begin() + static_cast<long>(begin), random.below(n - begin + 1), 0.0f);
  }
  return x;
}

// Indices far apart. Half of the lists have gaps spread over all of 16 bits and very few above: only there are 16-bit
// gaps shorter than Rice codes, fillers included.
std::vector<uint32_t> wide_index(Random& random, size_t n) {
  const bool sixteen = random.chance(0.5);
  const uint64_t gap = uint64_t{1} << (sixteen ? 16 : 1 + random.below(20));
  const double larger = sixteen ? 0.002 : 0.05;
  const size_t count = random.below(400);
  std::vector<uint32_t> index;
  for (uint64_t next = random.below(gap); next < n && index.size() < count; next += 1 + random.below(gap)) {
    index.push_back(static_cast<uint32_t>(next));
    if (random.chance(larger)) next += random.below(4 * gap);
  }
  return index;
}

std::vector<uint32_t> random_index(Random& random, size_t n) {
  if (n > kMaxElements) return wide_index(random, n);
  const double density = std::pow(random.unit(), 3);
  std::vector<uint32_t> index;
  for (size_t i = 0; i < n; ++i) {
    if (random.chance(density)) index.push_back(static_cast<uint32_t>(i));
  }
  return index;
}

Bytes make_half(Half kind, Random& random, size_t n) {
  Bytes payload(2 * n);
  half_encode(kind, random_floats(random, n).data(), n, payload.data());
  return payload;
}

Bytes make_float16(Random& random, size_t n) { return make_half(Half::kFloat16, random, n); }
Bytes make_bfloat16(Random& random, size_t n) { return make_half(Half::kBFloat16, random, n); }

Bytes make_onebit(Random& random, size_t n) {
  const std::vector<float> x = random_floats(random, n);
  const size_t block = random.chance(0.5) ? 0 : kRun * (1 + random.below(10));
  const SignScale scale = random.chance(0.5) ? SignScale::kL1 : SignScale::kL2;
  Bytes payload(onebit_max_nbytes(n, block));
  payload.resize(onebit_encode(x.data(), n, scale, block, payload.data()));
  return payload;
}

Bytes make_dither(Random& random, size_t n) {
  const std::vector<float> x = random_floats(random, n);
  DitherSettings settings{};
  settings.norm = random.chance(0.5) ? Norm::kMax : Norm::kL2;
  settings.levels = random.chance(0.5) ? Levels::kLinear : Levels::kNatural;
  settings.bits = static_cast<unsigned>(settings.norm == Norm::kMax ? 1 + random.below(8) : 2 + random.below(7));
  Bytes payload(dither_max_nbytes(n, settings));
  payload.resize(dither_encode(x.data(), n, settings, random.next(), payload.data()));
  return payload;
}

Bytes make_sparse(Random& random, size_t n) {
  const std::vector<uint32_t> index = random_index(random, n);
  std::vector<float> value(index.size());
  for (auto& x : value) {
    x = random_float(random);
    if (x == 0.0f) x = 1.0f;
  }
  const auto values = static_cast<Values>(random.below(3));
  Bytes payload(sparse_max_nbytes(n, index.size(), values));
  payload.resize(sparse_encode(index.data(), value.data(), index.size(), n, values, payload.data()));
  return payload;
}

Bytes make_chunk_topk(Random& random, size_t n) {
  const std::vector<float> x = random_floats(random, n);
  const ChunkCoding coding{random.chance(0.5) ? 1.0 / 64 : 1.0 - 0.99 * random.unit(), random.chance(0.5) ? 2u : 4u};
  Bytes payload(chunk_topk_max_nbytes(n, coding));
  payload.resize(chunk_topk_encode(x.data(), n, coding, payload.data()));
  return payload;
}

Bytes with_header(size_t count, unsigned parameter, const uint8_t* stream, size_t nbytes) {
  Bytes payload(kCodeHeader + nbytes);
  store(payload.data(), static_cast<uint32_t>(count));
  payload[4] = static_cast<uint8_t>(parameter);
  std::copy_n(stream, nbytes, payload.data() + kCodeHeader);
  return payload;
}

Bytes make_rice(Random& random, size_t n) {
  const std::vector<uint32_t> index = random_index(random, n);
  const RicePlan plan = rice_plan(index.data(), index.size());
  Bytes stream(static_cast<size_t>((plan.nbits + 7) / 8));
  const size_t nbytes = rice_encode(index.data(), index.size(), plan.parameter, stream.data());
  return with_header(index.size(), plan.parameter, stream.data(), nbytes);
}

Bytes make_elias(Random& random, size_t n) {
  const auto max_level = static_cast<unsigned>(1 + random.below(127));
  std::vector<int8_t> codes(n);
  for (const uint32_t i : random_index(random, n)) {
    const int level = 1 + static_cast<int>(random.below(max_level));
    codes[i] = static_cast<int8_t>(random.chance(0.5) ? level : -level);
  }
  Bytes stream(elias_max_nbytes(n, max_level));
  uint32_t count = 0;
  const size_t nbytes = elias_encode(codes.data(), n, stream.data(), &count);
  return with_header(count, max_level, stream.data(), nbytes);
}

// Readers

struct Reader {
  const char* name;
  bool wide;  // its work does not grow with n
  Bytes (*make)(Random&, size_t n);
  Verdict (*read)(const uint8_t* payload, size_t nbytes, size_t n);
};

// A reader's number in a file is its place here: append only.
constexpr Reader kReaders[] = {
    {"float16", false, make_float16, read_float16},
    {"bfloat16", false, make_bfloat16, read_bfloat16},
    {"onebit", false, make_onebit, read_onebit},
    {"sparse", true, make_sparse, read_sparse},
    {"dither", false, make_dither, read_dither},
    {"rice", true, make_rice, read_rice},
    {"elias", false, make_elias, read_elias},
    {"chunk_topk", false, make_chunk_topk, read_chunk_topk},
};

struct Case {
  size_t reader = 0;
  size_t n = 0;
  Bytes payload;
  bool damaged = false;
};

// Damage

void flip_bits(Random& random, Bytes& bytes) {
  for (uint64_t flips = 1 + random.below(3); flips > 0 && !bytes.empty(); --flips) {
    bytes[random.below(bytes.size())] ^= static_cast<uint8_t>(1u << random.below(8));
  }
}

// Headers are where most of the meaning is, so half of all damage is done there.
size_t random_place(Random& random, size_t nbytes) {
  return random.below(random.chance(0.5) ? std::min<size_t>(nbytes, 12) : nbytes);
}

void set_byte(Random& random, Bytes& bytes) {
  constexpr uint8_t kBytes[] = {0x00, 0x01, 0x02, 0x1f, 0x20, 0x7f, 0x80, 0xff};
  if (bytes.empty()) return;
  const uint64_t choice = random.below(2 * std::size(kBytes));
  bytes[random_place(random, bytes.size())] =
      choice < std::size(kBytes) ? kBytes[choice] : static_cast<uint8_t>(random.next());
}

void truncate(Random& random, Bytes& bytes) { bytes.resize(random.below(bytes.size() + 1)); }

void extend(Random& random, Bytes& bytes) {
  const bool zeros = random.chance(0.5);
  for (uint64_t more = 1 + random.below(12); more > 0; --more) {
    bytes.push_back(zeros ? 0 : static_cast<uint8_t>(random.next()));
  }
}

void set_length(Random& random, size_t n, Bytes& bytes) {
  if (bytes.size() < 4) return;
  const auto numel = static_cast<uint32_t>(n);
  const uint32_t lengths[] = {0, 1, 64, 0x7fffffffu, 0x80000000u, 0xffffffffu, numel - 1, numel, numel + 1};
  const size_t place = random_place(random, bytes.size() - 3) / 4 * 4;
  store(bytes.data() + place, lengths[random.below(std::size(lengths))]);
}

void splice(Random& random, size_t reader, size_t n, Bytes& bytes) {
  const Bytes other = kReaders[reader].make(random, random.chance(0.5) ? n : random.below(kMaxElements + 1));
  bytes.resize(random.below(bytes.size() + 1));
  const size_t from = random.chance(0.5) ? std::min(bytes.size(), other.size()) : random.below(other.size() + 1);
  bytes.insert(bytes.end(), other.begin() + static_cast<long>(from), other.end());
}

// A tensor of another size than the sender's.
size_t other_size(Random& random, size_t n) {
  const size_t sizes[] = {0, n + 1, n == 0 ? 0 : n - 1, random.below(kMaxElements + 1)};
  return sizes[random.below(std::size(sizes))];
}

void damage(Random& random, Case& test) {
  const Bytes before = test.payload;
  const size_t n = test.n;
  switch (random.below(7)) {
    case 0: flip_bits(random, test.payload); break;
    case 1: set_byte(random, test.payload); break;
    case 2: truncate(random, test.payload); break;
    case 3: extend(random, test.payload); break;
    case 4: set_length(random, test.n, test.payload); break;
    case 5: splice(random, test.reader, test.n, test.payload); break;
    default: test.n = other_size(random, test.n); break;
  }
  test.damaged = test.damaged || test.n != n || test.payload != before;
}

// Small sizes more often than large: that is where the tails are.
size_t random_size(Random& random, bool wide) {
  if (wide && random.chance(0.3)) return 1 + random.below(kMaxNumel >> random.below(16));
  const size_t limits[] = {9, 70, 70, 300, kMaxElements + 1};
  return random.below(limits[random.below(std::size(limits))]);
}

Case random_case(uint64_t seed, uint64_t number) {
  Random mixed(seed);
  Random random(mixed.next() + number * 0xd1342543de82ef95u);
  Case test;
  test.reader = random.below(std::size(kReaders));
  test.n = random_size(random, kReaders[test.reader].wide);
  test.payload = kReaders[test.reader].make(random, test.n);
  for (uint64_t times = random.below(16); times > 0; times /= 4) damage(random, test);
  return test;
}

// Running

// The case that is being read, for the sanitizer's callback, which has no arguments.
const Case* g_current = nullptr;

std::string write_case(const Case& test) {
  Bytes file(5);
  file[0] = static_cast<uint8_t>(test.reader);
  store(file.data() + 1, static_cast<uint32_t>(test.n));
  file.insert(file.end(), test.payload.begin(), test.payload.end());
  char name[32];
  std::snprintf(name, sizeof name, "payload-%08x.bin", crc32c(file.data(), file.size(), 0));
  std::ofstream out(name, std::ios::binary);
  out.write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
  return std::filesystem::absolute(name).string();
}

void write_current_case() {
  if (g_current != nullptr) std::cerr << "the case is in " << write_case(*g_current) << std::endl;
}

struct Counts {
  uint64_t passed = 0;
  uint64_t failed = 0;
  std::map<std::string, uint64_t> outcomes[std::size(kReaders)];
};

const char* broken_promise(const Case& test, const Verdict& verdict) {
  if (verdict.broken != nullptr) return verdict.broken;
  return verdict.refused != nullptr && !test.damaged ? "an undamaged payload is refused" : nullptr;
}

void run(const Case& test, const std::string& origin, Counts& counts) {
  g_current = &test;
  const Reader& reader = kReaders[test.reader];
  const auto payload = exact_copy(test.payload.data(), test.payload.size());
  const Verdict verdict = reader.read(payload.get(), test.payload.size(), test.n);
  g_current = nullptr;
  ++counts.outcomes[test.reader][verdict.refused != nullptr ? verdict.refused : "accepted"];
  const char* broken = broken_promise(test, verdict);
  ++(broken == nullptr ? counts.passed : counts.failed);
  if (broken == nullptr) return;
  std::cout << reader.name << ", " << origin << ": " << broken;
  if (verdict.refused != nullptr) std::cout << " (" << verdict.refused << ')';
  std::cout << ", written to " << write_case(test) << std::endl;
}

bool replay(const std::filesystem::path& path, Counts& counts) {
  std::ifstream in(path, std::ios::binary);
  const Bytes file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (file.size() < 5 || file[0] >= std::size(kReaders)) {
    std::cerr << path << " is not a case" << std::endl;
    return false;
  }
  run({file[0], load<uint32_t>(file.data() + 1), Bytes(file.begin() + 5, file.end()), true}, path.string(), counts);
  return true;
}

bool replay_all(const std::filesystem::path& path, Counts& counts) {
  if (!std::filesystem::is_directory(path)) return replay(path, counts);
  bool all = true;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.is_regular_file()) all = replay(entry.path(), counts) && all;
  }
  return all;
}

void print(const Counts& counts) {
  for (size_t i = 0; i < std::size(kReaders); ++i) {
    uint64_t total = 0;
    for (const auto& outcome : counts.outcomes[i]) total += outcome.second;
    std::cout << kReaders[i].name << ": " << total << '\n';
    for (const auto& [text, count] : counts.outcomes[i]) std::cout << "  " << count << "  " << text << '\n';
  }
  std::cout << counts.passed << " passed, " << counts.failed << " failed" << std::endl;
}

struct Settings {
  uint64_t cases = 1000000;
  uint64_t seed = 0;
  std::vector<std::string> paths;
};

bool is_number(const char* text) { return *text != 0 && std::strspn(text, "0123456789") == std::strlen(text); }

Settings settings_of(int argc, char** argv) {
  Settings settings;
  int i = 1;
  if (i < argc && is_number(argv[i])) settings.cases = std::strtoull(argv[i++], nullptr, 10);
  if (i < argc && is_number(argv[i])) settings.seed = std::strtoull(argv[i++], nullptr, 10);
  settings.paths.assign(argv + i, argv + argc);
  if (argc > 1 && !is_number(argv[1])) settings.cases = 0;
  return settings;
}

int fuzz(const Settings& settings) {
  constexpr uint64_t kEnough = 10;  // failures, after which more say nothing new
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(write_current_case);
  Counts counts;
  bool readable = true;
  for (const std::string& path : settings.paths) readable = replay_all(path, counts) && readable;
  for (uint64_t i = 0; i < settings.cases && counts.failed < kEnough; ++i) {
    const Case test = random_case(settings.seed, i);
    run(test, "seed " + std::to_string(settings.seed) + " case " + std::to_string(i), counts);
  }
  print(counts);
  return readable && counts.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace thinwire::test

int main(int argc, char** argv) { return thinwire::test::fuzz(thinwire::test::settings_of(argc, argv)); }
