// Gaps and Rice codes against slow, obvious loops: strings of '0' and '1'.

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

using Indices = std::vector<uint32_t>;

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

Indices from_gaps(const std::vector<uint64_t>& gaps) {
  Indices index;
  uint64_t next = 0;
  for (const uint64_t gap : gaps) {
    index.push_back(static_cast<uint32_t>(next + gap));
    next += gap + 1;
  }
  return index;
}

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

// A correct stream at every alignment, with other bytes around it that must not matter.
void rice_unaligned_streams() {
  Random random(11);
  const Indices index = random_index(random, 5000, 100, false);
  const Bytes rice = to_bytes(slow_rice(index, 5));
  for (size_t offset = 0; offset < 9; ++offset) {
    Bytes around(offset + rice.size() + 9, 0xff);
    std::copy(rice.begin(), rice.end(), around.begin() + static_cast<long>(offset));
    CHECK(!rice_decode(around.data() + offset, rice.size(), index.size(), 5, 5000, nullptr));
    Bytes out(offset + rice.size());
    CHECK_EQ(rice_encode(index.data(), index.size(), 5, out.data() + offset), rice.size());
    CHECK(std::equal(rice.begin(), rice.end(), out.begin() + static_cast<long>(offset)));
  }
}

}  // namespace

Suite rice_suite() {
  return {"test_rice",
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
           {"Rice unaligned streams", rice_unaligned_streams}}};
}

}  // namespace thinwire::test
