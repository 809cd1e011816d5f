// Integer codes against slow, obvious loops: strings of '0' and '1'.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "kernels.h"
#include "tools.h"

namespace thinwire::test {
namespace {

using Indices = std::vector<uint32_t>;
using Codes = std::vector<int8_t>;

// Slow twins

std::string low_bits(uint64_t value, unsigned nbits) {
  std::string text;
  for (unsigned i = nbits; i-- > 0;) text += (value >> i & 1) != 0 ? '1' : '0';
  return text;
}

Bytes to_bytes(const std::string& bits) {
  Bytes bytes((bits.size() + 7) / 8);
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bits[i] == '1') bytes[i / 8] = static_cast<uint8_t>(bytes[i / 8] | 0x80u >> i % 8);
  }
  return bytes;
}

std::vector<uint64_t> gaps_of(const Indices& index) {
  std::vector<uint64_t> gaps;
  for (size_t i = 0; i < index.size(); ++i) gaps.push_back(i == 0 ? index[0] : uint64_t{index[i]} - index[i - 1] - 1);
  return gaps;
}

std::string slow_rice(const Indices& index, unsigned parameter) {
  std::string bits;
  for (const uint64_t gap : gaps_of(index)) {
    bits += std::string(gap >> parameter, '0') + '1' + low_bits(gap, parameter);
  }
  return bits;
}

RicePlan slow_plan(const Indices& index) {
  RicePlan best{0, ~uint64_t{0}};
  for (unsigned parameter = 0; parameter <= 30; ++parameter) {
    uint64_t nbits = 0;
    for (const uint64_t gap : gaps_of(index)) nbits += (gap >> parameter) + 1 + parameter;
    if (nbits < best.nbits) best = {parameter, nbits};
  }
  return best;
}

std::string slow_elias_delta(uint64_t value) {
  unsigned log = 0;
  while (value >> (log + 1) != 0) ++log;
  unsigned log_of_log = 0;
  while ((log + 1) >> (log_of_log + 1) != 0) ++log_of_log;
  return std::string(log_of_log, '0') + low_bits(log + 1, log_of_log + 1) + low_bits(value, log);
}

std::string slow_elias(const Codes& codes) {
  std::string bits;
  uint64_t gap = 1;
  for (const int code : codes) {
    if (code == 0) {
      ++gap;
      continue;
    }
    const auto level = static_cast<uint64_t>(code < 0 ? -code : code);
    bits += slow_elias_delta(gap) + (code < 0 ? '1' : '0') + slow_elias_delta(level);
    gap = 1;
  }
  return bits;
}

// Calls with buffers of the exact size

// Room for what a stream claims to hold. A stream that claims more than this test ever writes gets none, and must
// be refused without it.
constexpr size_t kMostRoom = 1 << 20;

template <class T>
std::unique_ptr<T[]> room_for(size_t count) {
  return count > kMostRoom ? nullptr : exact<T>(count);
}

bool same(const Fault& a, const Fault& b) {
  return a.what == b.what && a.found == b.found && a.expected == b.expected;
}

Bytes encode_rice(const Indices& index, unsigned parameter, size_t nbytes) {
  const auto list = exact_copy(index.data(), index.size());
  const auto stream = exact<uint8_t>(nbytes);
  CHECK_EQ(rice_encode(list.get(), index.size(), parameter, stream.get()), nbytes);
  return Bytes(stream.get(), stream.get() + nbytes);
}

Fault decode_rice(const Bytes& bytes, size_t count, unsigned parameter, size_t n, Indices* index) {
  const auto stream = exact_copy(bytes.data(), bytes.size());
  const auto list = room_for<uint32_t>(count);
  const Fault fault = rice_decode(stream.get(), bytes.size(), count, parameter, n, list.get());
  const Fault again = rice_decode(stream.get(), bytes.size(), count, parameter, n, nullptr);
  CHECK(same(fault, again));
  CHECK(fault || list != nullptr);
  if (!fault && list != nullptr) index->assign(list.get(), list.get() + count);
  return fault;
}

struct EliasStream {
  Bytes bytes;
  uint32_t count;
};

unsigned highest_level(const Codes& codes) {
  int highest = 0;
  for (const int code : codes) highest = std::max(highest, code < 0 ? -code : code);
  return static_cast<unsigned>(highest);
}

EliasStream encode_elias(const Codes& codes) {
  const auto input = exact_copy(codes.data(), codes.size());
  const auto stream = exact<uint8_t>(elias_max_nbytes(codes.size(), highest_level(codes)));
  uint32_t count = ~uint32_t{0};
  const size_t nbytes = elias_encode(input.get(), codes.size(), stream.get(), &count);
  return {Bytes(stream.get(), stream.get() + nbytes), count};
}

// The codes of a stream as a dense array.
Fault decode_elias(const Bytes& bytes, size_t count, unsigned max_level, size_t n, Codes* codes) {
  const auto stream = exact_copy(bytes.data(), bytes.size());
  const auto index = room_for<uint32_t>(count);
  const auto code = room_for<int8_t>(count);
  const Fault fault = elias_decode(stream.get(), bytes.size(), count, max_level, n, index.get(), code.get());
  const Fault again = elias_decode(stream.get(), bytes.size(), count, max_level, n, nullptr, nullptr);
  CHECK(same(fault, again));
  CHECK(fault || index != nullptr);
  if (fault || index == nullptr) return fault;
  codes->assign(n, 0);
  for (size_t i = 0; i < count; ++i) {
    CHECK(index[i] < n && (i == 0 || index[i] > index[i - 1]) && code[i] != 0);
    (*codes)[index[i]] = code[i];
  }
  return fault;
}

// Random lists

// Sorted indices below n: uniform, or clustered into runs without gaps, with rare huge gaps between.
Indices random_index(Random& random, size_t n, size_t count, bool clustered) {
  Indices index;
  uint64_t next = 0;
  const uint64_t mean = std::max<uint64_t>(1, n / std::max<size_t>(1, count));
  while (index.size() < count) {
    next += clustered ? (random.chance(0.02) ? random.below(50 * mean + 1) : 0) : random.below(2 * mean);
    if (next >= n) break;
    index.push_back(static_cast<uint32_t>(next++));
  }
  return index;
}

Codes random_codes(Random& random, size_t n, double density, int max_level) {
  Codes codes(n);
  for (auto& code : codes) {
    if (!random.chance(density)) continue;
    const int level = 1 + static_cast<int>(random.below(static_cast<uint64_t>(max_level)));
    code = static_cast<int8_t>(random.chance(0.5) ? level : -level);
  }
  return codes;
}

Indices from_gaps(const std::vector<uint64_t>& gaps) {
  Indices index;
  uint64_t next = 0;
  for (const uint64_t gap : gaps) {
    index.push_back(static_cast<uint32_t>(next + gap));
    next += gap + 1;
  }
  return index;
}

// Gap16

void gap16_fillers() {
  const std::vector<std::pair<uint32_t, size_t>> cases = {
      {0, 0}, {65535, 0}, {65536, 1}, {131071, 1}, {131072, 2}, {200000, 3}, {0xfffffffeu, 65535}};
  for (const auto& [gap, fillers] : cases) {
    const uint32_t index[] = {gap};
    CHECK_EQ(gap16_entries(index, 1), 1 + fillers);
  }
  CHECK_EQ(gap16_entries(nullptr, 0), size_t{0});
  const Indices index = from_gaps({3, 65535, 0, 65536, 131072, 1});
  CHECK_EQ(gap16_entries(index.data(), index.size()), size_t{6 + 1 + 2});
}

void gap16_against_a_loop() {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const Indices index = random_index(random, 1 + random.below(kWide), random.below(2000), i % 2 == 0);
    size_t entries = 0;
    for (uint64_t gap : gaps_of(index)) {
      for (; gap > 65535; gap -= 65536) ++entries;
      ++entries;
    }
    CHECK_EQ(gap16_entries(index.data(), index.size()), entries);
  }
}

// Rice

void check_plan(const Indices& index) {
  const auto list = exact_copy(index.data(), index.size());
  const RicePlan found = rice_plan(list.get(), index.size());
  const RicePlan expected = index.empty() ? RicePlan{0, 0} : slow_plan(index);
  CHECK_EQ(found.parameter, expected.parameter);
  CHECK_EQ(found.nbits, expected.nbits);
}

void rice_plan_is_the_shortest() {
  Random random(2);
  check_plan({});
  for (int i = 0; i < 4000; ++i) {
    const size_t n = 1 + random.below(uint64_t{1} << random.below(32));
    check_plan(random_index(random, n, 1 + random.below(std::min<size_t>(n, 300)), i % 2 == 0));
  }
}

void rice_plan_of_extreme_lists() {
  for (unsigned log = 0; log < 32; ++log) {
    const uint64_t gap = uint64_t{1} << log;
    for (const uint64_t near : {gap - 1, gap, gap + 1}) {
      check_plan(from_gaps({near}));
      if (near < kWide / 2) check_plan(from_gaps({near, 0}));
      // A run without gaps, one huge gap, and another run: the mean says nothing about the best parameter.
      for (const size_t run : {1u, 10u, 1000u, 50000u}) {
        std::vector<uint64_t> gaps(run, 0);
        gaps.push_back(near);
        gaps.insert(gaps.end(), run, 0);
        if (near + 2 * run < kWide) check_plan(from_gaps(gaps));
      }
    }
  }
  check_plan({0xfffffffeu});
  check_plan({0, 0xfffffffeu});
}

// Where two parameters are equally short, the smaller.
void rice_plan_of_equals() {
  check_plan(from_gaps({1, 1, 1, 1}));
  check_plan(from_gaps({2, 0}));
  for (uint64_t a = 0; a < 40; ++a) {
    for (uint64_t b = 0; b < 40; ++b) check_plan(from_gaps({a, b, 3 * a}));
  }
}

void check_rice(const Indices& index, unsigned parameter, size_t n) {
  const Bytes expected = to_bytes(slow_rice(index, parameter));
  const Bytes bytes = encode_rice(index, parameter, expected.size());
  CHECK(bytes == expected);
  Indices back;
  const Fault fault = decode_rice(bytes, index.size(), parameter, n, &back);
  CHECK(!fault);
  CHECK(back == index);
}

void rice_round_trips() {
  Random random(3);
  for (int i = 0; i < 3000; ++i) {
    const size_t n = 1 + random.below(uint64_t{1} << random.below(20));
    const Indices index = random_index(random, n, random.below(std::min<size_t>(n, 200) + 1), i % 2 == 0);
    check_rice(index, static_cast<unsigned>(random.below(31)), n);
    check_rice(index, rice_plan(index.data(), index.size()).parameter, n);
    // The last index may be the last element.
    if (!index.empty()) check_rice(index, 2, index.back() + size_t{1});
  }
}

// Unary parts around the 64 bits of the writer and the 56 of the reader, at every bit offset.
void rice_long_unary_parts() {
  for (unsigned offset = 0; offset < 64; ++offset) {
    for (const uint64_t gap : {54u, 55u, 56u, 57u, 61u, 62u, 63u, 64u, 65u, 125u, 126u, 127u, 128u, 200u, 5000u}) {
      for (const unsigned parameter : {0u, 1u}) {
        const Indices index = from_gaps({offset, gap << parameter, 0, gap << parameter});
        check_rice(index, parameter, index.back() + size_t{1});
      }
    }
  }
}

void rice_largest_indices() {
  for (const unsigned parameter : {15u, 24u, 29u, 30u}) {
    check_rice({0xfffffffeu}, parameter, kWide);
    check_rice({0, 0x7fffffffu, 0x80000000u, 0xfffffffdu, 0xfffffffeu}, parameter, kWide);
  }
}

void rice_refuses() {
  Indices index;
  const auto refused = [&](const std::string& bits, size_t count, unsigned parameter, size_t n) {
    return static_cast<bool>(decode_rice(to_bytes(bits), count, parameter, n, &index));
  };
  CHECK(!refused("", 0, 0, 0));
  CHECK(!refused("111", 3, 0, 3));
  CHECK(refused("111", 3, 0, 2));           // more indices than elements
  CHECK(refused("011", 2, 0, 2));           // an index equal to n
  CHECK(refused("110", 3, 0, 9));           // ends early
  CHECK(refused("111", 2, 0, 9));           // a padding bit that is set
  CHECK(refused("11100001", 3, 0, 9));      // the last padding bit
  CHECK(refused("11100000" "0", 3, 0, 9));  // a byte left over
  CHECK(refused("", 1, 0, 9));
  CHECK(refused("1", 0, 0, 9));
  CHECK(refused("1", 1, 31, 9));
  CHECK(refused("1" + std::string(29, '0'), 1, 30, 9) == false);  // 30 bits and 2 of padding
  CHECK(refused("1" + std::string(23, '0'), 1, 30, 9));           // the low bits are not all there
  CHECK(refused(std::string(5000, '0'), 1, 0, 9));
  CHECK(refused(std::string(5000, '0') + "1", 1, 30, kWide));  // 5000 << 30 is beyond 32 bits
  CHECK(refused("1", kWide, 0, kWide));
}

// A stream cut anywhere, grown by a byte, or with any bit changed is refused or decodes to something else.
void rice_every_damage() {
  Random random(4);
  for (int i = 0; i < 40; ++i) {
    const size_t n = 1 + random.below(3000);
    const Indices index = random_index(random, n, 1 + random.below(100), i % 2 == 0);
    if (index.empty()) continue;
    const unsigned parameter = rice_plan(index.data(), index.size()).parameter;
    const Bytes bytes = to_bytes(slow_rice(index, parameter));
    Indices back;
    for (size_t nbytes = 0; nbytes < bytes.size(); ++nbytes) {
      const Bytes cut(bytes.begin(), bytes.begin() + static_cast<long>(nbytes));
      CHECK(decode_rice(cut, index.size(), parameter, n, &back));
    }
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      Bytes damaged = bytes;
      damaged[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
      if (!decode_rice(damaged, index.size(), parameter, n, &back)) CHECK(back != index);
    }
    Bytes longer = bytes;
    longer.push_back(0);
    CHECK(decode_rice(longer, index.size(), parameter, n, &back));
  }
}

// What random bytes decode to, if they do, encodes to the same bytes: a list has one encoding.
void rice_random_bytes() {
  Random random(5);
  size_t accepted = 0;
  for (int i = 0; i < 200000; ++i) {
    Bytes bytes(random.below(40));
    for (auto& byte : bytes) byte = static_cast<uint8_t>(random.chance(0.3) ? 0 : random.next());
    const auto parameter = static_cast<unsigned>(random.below(33) * random.below(2));
    const size_t n = random.chance(0.5) ? kWide : random.below(500);
    size_t count = random.chance(0.1) ? random.next() >> random.below(64) : random.below(400);
    Indices index;
    Fault fault = decode_rice(bytes, count, parameter, n, &index);
    if (fault && fault.expected == count) {  // it ends early: try again with as many as there are
      count = fault.found;
      fault = decode_rice(bytes, count, parameter, n, &index);
    }
    if (fault) continue;
    ++accepted;
    CHECK(encode_rice(index, parameter, bytes.size()) == bytes);
  }
  CHECK(accepted > 1000);
}

// Elias-delta

void elias_delta_known_words() {
  CHECK_EQ(slow_elias_delta(1), "1");
  CHECK_EQ(slow_elias_delta(2), "0100");
  CHECK_EQ(slow_elias_delta(4), "01100");
  CHECK_EQ(slow_elias_delta(8), "00100000");
  CHECK_EQ(elias_delta_nbits(1), 1u);
  CHECK_EQ(elias_delta_nbits(2), 4u);
  CHECK_EQ(elias_delta_nbits(4), 5u);
  CHECK_EQ(elias_delta_nbits(8), 8u);
  CHECK_EQ(elias_delta_nbits(0xffffffffu), 42u);
}

// One number as the gap of a stream with a single code of level 1, read back from hand-made bits.
void check_elias_number(uint32_t value) {
  const std::string word = slow_elias_delta(value);
  CHECK_EQ(elias_delta_nbits(value), word.size());
  const Bytes bytes = to_bytes(word + "0" + "1");
  const auto stream = exact_copy(bytes.data(), bytes.size());
  uint32_t index = 0;
  int8_t code = 0;
  CHECK(!elias_decode(stream.get(), bytes.size(), 1, 1, value, &index, &code));
  CHECK_EQ(index, value - 1);
  CHECK_EQ(code, int8_t{1});
  CHECK(elias_decode(stream.get(), bytes.size(), 1, 1, value - size_t{1}, &index, &code));
}

void elias_every_size_of_number() {
  for (uint32_t value = 1; value < 3000; ++value) check_elias_number(value);
  for (unsigned log = 1; log < 32; ++log) {
    const uint32_t power = uint32_t{1} << log;
    for (const uint32_t value : {power - 1, power, power + 1}) check_elias_number(value);
  }
  Random random(6);
  for (int i = 0; i < 20000; ++i) {
    check_elias_number(static_cast<uint32_t>(1 + random.below((uint64_t{1} << (1 + random.below(32))) - 1)));
  }
}

void elias_delta_is_prefix_free() {
  std::vector<std::string> words;
  for (uint64_t value = 1; value < 5000; ++value) words.push_back(slow_elias_delta(value));
  for (unsigned log = 13; log < 32; ++log) {
    for (const uint64_t value : {(uint64_t{1} << log) - 1, uint64_t{1} << log, (uint64_t{1} << log) + 1}) {
      words.push_back(slow_elias_delta(value));
    }
  }
  // In sorted order a prefix comes right before a word that it begins.
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  for (size_t i = 0; i + 1 < words.size(); ++i) CHECK(words[i + 1].compare(0, words[i].size(), words[i]) != 0);
}

void check_elias(const Codes& codes) {
  const EliasStream stream = encode_elias(codes);
  CHECK(stream.bytes == to_bytes(slow_elias(codes)));
  CHECK_EQ(stream.count, codes.size() - static_cast<size_t>(std::count(codes.begin(), codes.end(), 0)));
  Codes back;
  const unsigned level = highest_level(codes);
  const Fault fault = decode_elias(stream.bytes, stream.count, level, codes.size(), &back);
  CHECK(!fault);
  CHECK(back == codes);
  if (level > 0) CHECK(decode_elias(stream.bytes, stream.count, level - 1, codes.size(), &back));
}

void elias_round_trips() {
  Random random(7);
  for (size_t n = 0; n < 700; ++n) {
    for (const double density : {0.0, 0.01, 0.2, 1.0}) {
      check_elias(random_codes(random, n, density, 1 + static_cast<int>(random.below(127))));
      check_elias(random_codes(random, n, density, 1 + static_cast<int>(random.below(4))));
    }
  }
  for (int level = 1; level <= 127; ++level) check_elias({static_cast<int8_t>(level), 0, static_cast<int8_t>(-level)});
  check_elias({-128, 0, -128});
}

void elias_long_gaps() {
  for (const size_t gap : {63u, 64u, 65u, 127u, 128u, 1000u, 65535u, 65536u, 300000u}) {
    Codes codes(2 * gap + 1);
    codes[gap] = -7;
    codes[2 * gap] = 127;
    check_elias(codes);
  }
}

// The bound holds, and is met by n codes of the highest level.
void elias_bound_is_tight() {
  Random random(8);
  CHECK_EQ(elias_max_nbytes(1000, 0), size_t{0});
  for (int i = 0; i < 3000; ++i) {
    const size_t n = random.below(100);
    const int level = 1 + static_cast<int>(random.below(127));
    const size_t bound = elias_max_nbytes(n, static_cast<unsigned>(level));
    Codes codes = random_codes(random, n, random.unit(), level);
    CHECK(to_bytes(slow_elias(codes)).size() <= bound);
    std::fill(codes.begin(), codes.end(), static_cast<int8_t>(level));
    CHECK_EQ(to_bytes(slow_elias(codes)).size(), bound);
  }
  // Every short list of zeros and ones, where a gap of 2 costs most.
  for (uint32_t set = 0; set < 4096; ++set) {
    Codes codes(12);
    for (size_t i = 0; i < 12; ++i) codes[i] = static_cast<int8_t>(set >> i & 1);
    CHECK(slow_elias(codes).size() <= 12 * 3);
  }
  CHECK_EQ(elias_max_nbytes(kWide, 127), (uint64_t{kWide} * 13 + 7) / 8);
}

void elias_refuses() {
  Codes codes;
  const auto refused = [&](const std::string& bits, size_t count, unsigned max_level, size_t n) {
    return static_cast<bool>(decode_elias(to_bytes(bits), count, max_level, n, &codes));
  };
  CHECK(!refused("", 0, 7, 0));
  CHECK(!refused("101" "111", 2, 7, 2));
  CHECK(refused("101" "111", 2, 7, 1));                 // more codes than elements
  CHECK(refused("0100" "0" "1" "1" "0" "1", 2, 7, 2));  // an index equal to n
  CHECK(refused("1" "0" "0100", 1, 1, 9));              // a level above the highest
  CHECK(refused("1" "0" "0100", 1, 0, 9));
  CHECK(refused("101" "11", 2, 7, 9));                  // the second level reads as padding
  CHECK(refused("101" "111", 1, 7, 9));                 // padding that is set
  CHECK(refused("101" "11100" "0", 2, 7, 9));           // a byte left over
  CHECK(refused("", 1, 7, 9));
  CHECK(refused(std::string(64, '0'), 1, 7, kWide));
  CHECK(refused("00000" "100001" + std::string(32, '0') + "01", 1, 7, kWide));  // a gap of 2^32
  CHECK(refused("1" "0" + slow_elias_delta(128), 1, 255, 9));                       // 128 is not an int8
  CHECK(!refused("1" "1" + slow_elias_delta(128), 1, 255, 9));                      // -128 is
  CHECK(refused("1" "1" + slow_elias_delta(129), 1, 255, 9));
  CHECK(refused("1" "1" + slow_elias_delta(0xffffffffu), 1, ~0u, 9));
  CHECK(refused("1", kWide, 7, kWide));
}

void elias_every_damage() {
  Random random(9);
  for (int i = 0; i < 40; ++i) {
    const size_t n = 1 + random.below(600);
    const Codes codes = random_codes(random, n, 0.1 + 0.5 * random.unit(), 1 + static_cast<int>(random.below(127)));
    const EliasStream stream = encode_elias(codes);
    Codes back;
    for (size_t nbytes = 0; nbytes < stream.bytes.size(); ++nbytes) {
      const Bytes cut(stream.bytes.begin(), stream.bytes.begin() + static_cast<long>(nbytes));
      CHECK(decode_elias(cut, stream.count, 127, n, &back));
    }
    for (size_t bit = 0; bit < 8 * stream.bytes.size(); ++bit) {
      Bytes damaged = stream.bytes;
      damaged[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
      if (!decode_elias(damaged, stream.count, 127, n, &back)) CHECK(back != codes);
    }
    Bytes longer = stream.bytes;
    longer.push_back(0);
    CHECK(decode_elias(longer, stream.count, 127, n, &back));
  }
}

void elias_random_bytes() {
  Random random(10);
  size_t accepted = 0;
  for (int i = 0; i < 200000; ++i) {
    Bytes bytes(random.below(30));
    for (auto& byte : bytes) byte = static_cast<uint8_t>(random.chance(0.2) ? 0 : random.next());
    const size_t n = random.below(2000);
    size_t count = random.chance(0.1) ? random.next() >> random.below(64) : random.below(100);
    Codes codes;
    Fault fault = decode_elias(bytes, count, 127, n, &codes);
    if (fault && fault.expected == count) {
      count = fault.found;
      fault = decode_elias(bytes, count, 127, n, &codes);
    }
    if (fault) continue;
    ++accepted;
    const EliasStream again = encode_elias(codes);
    CHECK(again.bytes == bytes && again.count == count);
  }
  CHECK(accepted > 1000);
}

// A correct stream at every alignment, with other bytes around it that must not matter.
void unaligned_streams() {
  Random random(11);
  const Codes codes = random_codes(random, 500, 0.3, 20);
  const EliasStream elias = encode_elias(codes);
  const Indices index = random_index(random, 5000, 100, false);
  const Bytes rice = to_bytes(slow_rice(index, 5));
  for (size_t offset = 0; offset < 9; ++offset) {
    Bytes around(offset + std::max(elias.bytes.size(), rice.size()) + 9, 0xff);
    std::copy(elias.bytes.begin(), elias.bytes.end(), around.begin() + static_cast<long>(offset));
    CHECK(!elias_decode(around.data() + offset, elias.bytes.size(), elias.count, 20, 500, nullptr, nullptr));
    std::copy(rice.begin(), rice.end(), around.begin() + static_cast<long>(offset));
    CHECK(!rice_decode(around.data() + offset, rice.size(), index.size(), 5, 5000, nullptr));
    Bytes out(offset + rice.size());
    CHECK_EQ(rice_encode(index.data(), index.size(), 5, out.data() + offset), rice.size());
    CHECK(std::equal(rice.begin(), rice.end(), out.begin() + static_cast<long>(offset)));
  }
}

}  // namespace

Suite coding_suite() {
  return {"test_coding",
          {{"gap16 fillers", gap16_fillers},
           {"gap16 against a loop", gap16_against_a_loop},
           {"rice_plan is the shortest", rice_plan_is_the_shortest},
           {"rice_plan of extreme lists", rice_plan_of_extreme_lists},
           {"rice_plan of equals", rice_plan_of_equals},
           {"Rice round trips", rice_round_trips},
           {"Rice long unary parts", rice_long_unary_parts},
           {"Rice largest indices", rice_largest_indices},
           {"Rice refuses", rice_refuses},
           {"Rice every damage", rice_every_damage},
           {"Rice random bytes", rice_random_bytes},
           {"Elias-delta known words", elias_delta_known_words},
           {"Elias every size of number", elias_every_size_of_number},
           {"Elias-delta is prefix-free", elias_delta_is_prefix_free},
           {"Elias round trips", elias_round_trips},
           {"Elias long gaps", elias_long_gaps},
           {"Elias bound is tight", elias_bound_is_tight},
           {"Elias refuses", elias_refuses},
           {"Elias every damage", elias_every_damage},
           {"Elias random bytes", elias_random_bytes},
           {"unaligned streams", unaligned_streams}}};
}

}  // namespace thinwire::test
