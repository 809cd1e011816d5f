// CRC32C against a loop over bits, with every kind of table and instruction.

#include <string>

#include "cases.h"
#include "check.h"
#include "kernels.h"
#include "tools.h"

namespace thinwire::test {
namespace {

uint32_t slow_crc(const uint8_t* data, size_t nbytes, uint32_t crc) {
  crc = ~crc;
  for (size_t i = 0; i < nbytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  return ~crc;
}

Bytes random_bytes(Random& random, size_t nbytes) {
  Bytes bytes(nbytes);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random.next());
  return bytes;
}

void known_values() {
  under_every_instruction_set([] {
    const std::string digits = "123456789";
    CHECK_EQ(crc32c(reinterpret_cast<const uint8_t*>(digits.data()), 9, 0), 0xe3069283u);
    CHECK_EQ(crc32c(nullptr, 0, 0), 0u);
    CHECK_EQ(crc32c(nullptr, 0, 0x12345678u), 0x12345678u);
    // RFC 3720, B.4.
    const Bytes zeros(32, 0x00);
    const Bytes ones(32, 0xff);
    CHECK_EQ(crc32c(zeros.data(), 32, 0), 0x8a9136aau);
    CHECK_EQ(crc32c(ones.data(), 32, 0), 0x62a8ab43u);
  });
}

void every_short_length_and_alignment() {
  Random random(1);
  const Bytes bytes = random_bytes(random, 2000);
  under_every_instruction_set([&] {
    for (size_t nbytes = 0; nbytes < 1700; ++nbytes) {
      const size_t offset = nbytes % 9;
      CHECK_EQ(crc32c(bytes.data() + offset, nbytes, 0), slow_crc(bytes.data() + offset, nbytes, 0));
    }
  });
}

// Around the lengths at which the three streams begin and end.
void awkward_long_lengths() {
  Random random(2);
  under_every_instruction_set([&] {
    for (const size_t around : {768u, 1536u, 4096u, 12288u, 12288u + 768u, 24576u, 100000u}) {
      for (const size_t nbytes : {around - 1, around, around + 1, around + 7, around + 8}) {
        const Bytes bytes = random_bytes(random, nbytes);
        const auto buffer = exact_copy(bytes.data(), nbytes);
        const auto begin = static_cast<uint32_t>(random.next());
        CHECK_EQ(crc32c(buffer.get(), nbytes, begin), slow_crc(bytes.data(), nbytes, begin));
      }
    }
  });
}

void continues_where_it_stopped() {
  Random random(3);
  const Bytes bytes = random_bytes(random, 30000);
  under_every_instruction_set([&] {
    const uint32_t whole = crc32c(bytes.data(), bytes.size(), 0);
    for (size_t cut = 0; cut <= bytes.size(); cut += 1 + random.below(300)) {
      const uint32_t first = crc32c(bytes.data(), cut, 0);
      CHECK_EQ(crc32c(bytes.data() + cut, bytes.size() - cut, first), whole);
    }
  });
}

void every_bit_counts() {
  Bytes bytes(1000);
  under_every_instruction_set([&] {
    const uint32_t before = crc32c(bytes.data(), bytes.size(), 0);
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      bytes[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
      CHECK(crc32c(bytes.data(), bytes.size(), 0) != before);
      bytes[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    }
  });
}

}  // namespace

Suite crc32c_suite() {
  return {"test_crc32c",
          {{"known values", known_values},
           {"every short length and alignment", every_short_length_and_alignment},
           {"awkward long lengths", awkward_long_lengths},
           {"continues where it stopped", continues_where_it_stopped},
           {"every bit counts", every_bit_counts}}};
}

}  // namespace thinwire::test
