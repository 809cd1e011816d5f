// Elias-delta codes against slow, obvious loops: strings of '0' and '1'.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "kernels.h"
#include "streams.h"
#include "tools.h"

namespace thinwire::test {
namespace {

using Codes = std::vector<int8_t>;

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

Codes random_codes(Random& random, size_t n, double density, int max_level) {
  Codes codes(n);
  for (auto& code : codes) {
    if (!random.chance(density)) continue;
    const int level = 1 + static_cast<int>(random.below(static_cast<uint64_t>(max_level)));
    code = static_cast<int8_t>(random.chance(0.5) ? level : -level);
  }
  return codes;
}

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
void elias_unaligned_streams() {
  Random random(11);
  const EliasStream elias = encode_elias(random_codes(random, 500, 0.3, 20));
  for (size_t offset = 0; offset < 9; ++offset) {
    Bytes around(offset + elias.bytes.size() + 9, 0xff);
    std::copy(elias.bytes.begin(), elias.bytes.end(), around.begin() + static_cast<long>(offset));
    CHECK(!elias_decode(around.data() + offset, elias.bytes.size(), elias.count, 20, 500, nullptr, nullptr));
  }
}

}  // namespace

Suite elias_suite() {
  return {"test_elias",
          {{"Elias-delta known words", elias_delta_known_words},
           {"Elias every size of number", elias_every_size_of_number},
           {"Elias-delta is prefix-free", elias_delta_is_prefix_free},
           {"Elias round trips", elias_round_trips},
           {"Elias long gaps", elias_long_gaps},
           {"Elias bound is tight", elias_bound_is_tight},
           {"Elias refuses", elias_refuses},
           {"Elias every damage", elias_every_damage},
           {"Elias random bytes", elias_random_bytes},
           {"Elias unaligned streams", elias_unaligned_streams}}};
}

}  // namespace thinwire::test
