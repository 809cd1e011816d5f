#include <algorithm>
#include <cmath>

#include "bytes.h"
#include "kernels.h"
#include "simd/float16.h"

namespace thinwire {
namespace {

constexpr size_t kHeader = 8;
constexpr size_t kScaleBlock = 256;     // int8 entries that share a scale
constexpr uint32_t kFullGap = 65535;    // the largest 16-bit gap, and that of a filler
constexpr uint16_t kHalfTop = 0x7800;   // 2^15: halves are scaled to lie below it
constexpr uint16_t kHalfLow = 0x7400;   // 2^14: and the largest not below this
constexpr int kMinExponent = -163, kMaxExponent = 113;

// The header's fields and the places of the two streams. `entries` counts fillers too.
struct Layout {
  size_t entries;
  unsigned index_coding;  // 0: 16-bit gaps; r + 1: Rice with parameter r
  Values values;
  int exponent;
  const uint8_t* value_bytes;
  const uint8_t* index_bytes;
  size_t index_nbytes;
};

size_t scale_count(size_t entries) { return (entries + kScaleBlock - 1) / kScaleBlock; }

size_t value_nbytes(Values values, size_t entries) {
  if (values == Values::kFloat32) return 4 * entries;
  if (values == Values::kFloat16) return 2 * entries;
  return 4 * scale_count(entries) + entries;
}

Layout layout_of(const uint8_t* payload, size_t nbytes) {
  Layout layout{};
  layout.entries = load<uint32_t>(payload);
  layout.index_coding = payload[4];
  layout.values = static_cast<Values>(payload[5]);
  layout.exponent = load<int16_t>(payload + 6);
  layout.value_bytes = payload + kHeader;
  const size_t used = kHeader + value_nbytes(layout.values, layout.entries);
  layout.index_bytes = payload + used;
  layout.index_nbytes = nbytes - used;
  return layout;
}

float largest(const float* value, size_t count) {
  float top = 0.0f;
  for (size_t i = 0; i < count; ++i) top = std::max(top, std::fabs(value[i]));
  return top;
}

// A power of two times a half: products of a 11-bit number and a power of two are exact in double.
float half_value(uint16_t half, int exponent) {
  return static_cast<float>(std::ldexp(static_cast<double>(from_float16(half)), exponent));
}

// The half nearest to value / 2^exponent, but never zero and never 2^15.
uint16_t nonzero_half(float value, int exponent) {
  const auto scaled = static_cast<float>(std::ldexp(static_cast<double>(value), -exponent));
  const uint16_t half = to_float16(scaled);
  const uint16_t magnitude = std::clamp<uint16_t>(half & 0x7fff, 1, kHalfTop - 1);
  return static_cast<uint16_t>((half & 0x8000) | magnitude);
}

int shared_exponent(const float* value, size_t count) {
  if (count == 0) return 0;
  int exponent = 0;
  std::frexp(largest(value, count), &exponent);  // largest = f * 2^exponent, f in [1/2, 1)
  return exponent - 15;
}

float int8_value(int code, float scale) {
  return static_cast<float>(static_cast<double>(code) * static_cast<double>(scale) / 127.0);
}

int8_t nonzero_int8(float value, float scale) {
  const double code = std::nearbyint(static_cast<double>(value) / static_cast<double>(scale) * 127.0);
  if (code == 0.0) return value < 0.0f ? -1 : 1;
  return static_cast<int8_t>(code);
}

// Writes values in their coding and replaces each by what it decodes to.
void write_float16(float* value, size_t count, int exponent, uint8_t* dst) {
  for (size_t i = 0; i < count; ++i) {
    const uint16_t half = nonzero_half(value[i], exponent);
    store(dst + 2 * i, half);
    value[i] = half_value(half, exponent);
  }
}

void write_int8(float* value, size_t count, uint8_t* dst) {
  uint8_t* codes = dst + 4 * scale_count(count);
  for (size_t block = 0; block < count; block += kScaleBlock) {
    const size_t end = std::min(count, block + kScaleBlock);
    const float scale = largest(value + block, end - block);
    store(dst + 4 * (block / kScaleBlock), scale);
    for (size_t i = block; i < end; ++i) {
      const int8_t code = nonzero_int8(value[i], scale);
      codes[i] = static_cast<uint8_t>(code);
      value[i] = int8_value(code, scale);
    }
  }
}

void write_values(float* value, size_t count, Values values, int exponent, uint8_t* dst) {
  if (values == Values::kFloat32) std::copy_n(reinterpret_cast<const uint8_t*>(value), 4 * count, dst);
  if (values == Values::kFloat16) write_float16(value, count, exponent, dst);
  if (values == Values::kInt8) write_int8(value, count, dst);
}

// Gaps and values of the paper's format, fillers included. The values stand at `dst` already, without fillers, and are
// moved to their places from the back so that nothing is overwritten before it was moved.
void write_gap16(const uint32_t* index, size_t count, size_t entries, size_t width, uint8_t* dst) {
  uint8_t* gaps = dst + width * entries;
  size_t place = entries;
  for (size_t i = count; i-- > 0;) {
    uint32_t gap = i == 0 ? index[0] : index[i] - index[i - 1] - 1;
    const uint32_t fillers = gap / (kFullGap + 1);
    gap -= fillers * (kFullGap + 1);
    --place;
    std::copy_backward(dst + width * i, dst + width * (i + 1), dst + width * (place + 1));
    store(gaps + 2 * place, static_cast<uint16_t>(gap));
    for (uint32_t f = 0; f < fillers; ++f) {
      --place;
      std::fill_n(dst + width * place, width, uint8_t{0});
      store(gaps + 2 * place, static_cast<uint16_t>(kFullGap));
    }
  }
}

bool all_finite_nonzero(const float* value, size_t count) {
  return std::all_of(value, value + count, [](float x) {
    const uint32_t magnitude = magnitude_bits(x);
    return magnitude != 0 && magnitude < kInfinityBits;
  });
}

bool value_is_zero(const Layout& layout, size_t i) {
  if (layout.values == Values::kFloat32) return (load<uint32_t>(layout.value_bytes + 4 * i) & 0x7fffffffu) == 0;
  if (layout.values == Values::kFloat16) return (load<uint16_t>(layout.value_bytes + 2 * i) & 0x7fffu) == 0;
  return layout.value_bytes[4 * scale_count(layout.entries) + i] == 0;
}

bool is_filler(const Layout& layout, size_t i) {
  return layout.index_coding == 0 && load<uint16_t>(layout.index_bytes + 2 * i) == kFullGap && value_is_zero(layout, i);
}

Fault check_header(const uint8_t* payload, size_t nbytes, size_t n) {
  if (nbytes < kHeader) return {"nbytes (at least the header)", nbytes, kHeader};
  if (load<uint32_t>(payload) > n) return {"entries (at most numel)", load<uint32_t>(payload), n};
  if (payload[4] > 31) return {"index coding (at most)", payload[4], 31};
  if (payload[5] > 2) return {"value coding (at most)", payload[5], 2};
  const Values values = static_cast<Values>(payload[5]);
  if (values == Values::kInt8 && payload[4] == 0) return {"int8 values have 16-bit gaps"};
  const size_t used = kHeader + value_nbytes(values, load<uint32_t>(payload));
  if (nbytes < used) return {"nbytes (at least header and values)", nbytes, used};
  return {};
}

Fault check_float32(const Layout& layout) {
  for (size_t i = 0; i < layout.entries; ++i) {
    if ((load<uint32_t>(layout.value_bytes + 4 * i) & 0x7fffffffu) >= kInfinityBits) return {"a value is inf or nan"};
  }
  return {};
}

Fault check_float16(const Layout& layout) {
  uint16_t top = 0;
  for (size_t i = 0; i < layout.entries; ++i) {
    top = std::max<uint16_t>(top, load<uint16_t>(layout.value_bytes + 2 * i) & 0x7fffu);
  }
  if (layout.entries == 0 ? layout.exponent != 0 : (layout.exponent < kMinExponent || layout.exponent > kMaxExponent)) {
    return {"the exponent is out of range"};
  }
  if (layout.entries > 0 && (top < kHalfLow || top >= kHalfTop)) return {"the exponent does not fit the values"};
  return {};
}

Fault check_int8(const Layout& layout) {
  const uint8_t* codes = layout.value_bytes + 4 * scale_count(layout.entries);
  for (size_t block = 0; block < layout.entries; block += kScaleBlock) {
    const uint32_t scale = load<uint32_t>(layout.value_bytes + 4 * (block / kScaleBlock));
    if (scale == 0 || scale >= kInfinityBits) return {"a scale is not a positive finite number"};
    int top = 0;
    for (size_t i = block; i < std::min(layout.entries, block + kScaleBlock); ++i) {
      top = std::max(top, std::abs(static_cast<int>(static_cast<int8_t>(codes[i]))));
    }
    if (top != 127) return {"largest code of a block", static_cast<uint64_t>(top), 127};
  }
  return {};
}

Fault check_values(const Layout& layout) {
  if (layout.values != Values::kFloat16 && layout.exponent != 0) return {"there is an exponent without float16 values"};
  if (layout.values == Values::kFloat32) return check_float32(layout);
  return layout.values == Values::kFloat16 ? check_float16(layout) : check_int8(layout);
}

Fault check_gap16(const Layout& layout, size_t n) {
  if (layout.index_nbytes != 2 * layout.entries) return {"nbytes of gaps", layout.index_nbytes, 2 * layout.entries};
  uint64_t position = 0;
  for (size_t i = 0; i < layout.entries; ++i) position += load<uint16_t>(layout.index_bytes + 2 * i) + uint64_t{1};
  if (position > n) return {"end of the last entry (at most numel)", position, n};
  if (layout.entries > 0 && is_filler(layout, layout.entries - 1)) return {"the last entry is a filler"};
  return {};
}

// A gap shortened by one filler too few would be another encoding of the same list; so would a zero that is no filler.
Fault check_entries(const Layout& layout) {
  for (size_t i = 0; i < layout.entries; ++i) {
    if (value_is_zero(layout, i) && !is_filler(layout, i)) return {"a value is zero"};
    const bool minus_zero = layout.values == Values::kFloat32 && load<uint32_t>(layout.value_bytes + 4 * i) == 0x80000000u;
    const bool minus_half = layout.values == Values::kFloat16 && load<uint16_t>(layout.value_bytes + 2 * i) == 0x8000u;
    if (minus_zero || minus_half) return {"a filler is minus zero"};
  }
  return {};
}

float read_value(const Layout& layout, size_t i) {
  if (layout.values == Values::kFloat32) return load<float>(layout.value_bytes + 4 * i);
  if (layout.values == Values::kFloat16) return half_value(load<uint16_t>(layout.value_bytes + 2 * i), layout.exponent);
  const auto code = static_cast<int8_t>(layout.value_bytes[4 * scale_count(layout.entries) + i]);
  return int8_value(code, load<float>(layout.value_bytes + 4 * (i / kScaleBlock)));
}

void unpack_gap16(const Layout& layout, uint32_t* index, float* value) {
  uint32_t position = 0;
  size_t count = 0;
  for (size_t i = 0; i < layout.entries; ++i) {
    position += load<uint16_t>(layout.index_bytes + 2 * i) + 1u;
    if (is_filler(layout, i)) continue;
    index[count] = position - 1;
    value[count++] = read_value(layout, i);
  }
}

}  // namespace

size_t sparse_max_nbytes(size_t n, size_t count, Values values) {
  return kHeader + value_nbytes(values, count) + rice_max_nbytes(n, count);
}

size_t sparse_encode(const uint32_t* index, float* value, size_t count, size_t, Values values, uint8_t* payload) {
  if (!all_finite_nonzero(value, count)) return 0;
  const size_t width = values == Values::kFloat32 ? 4 : 2;
  const RicePlan rice = rice_plan(index, count);
  const size_t rice_nbytes = static_cast<size_t>((rice.nbits + 7) / 8);
  const size_t entries = values == Values::kInt8 ? count : gap16_entries(index, count);
  const bool gap16 = values != Values::kInt8 && 2 * entries + width * (entries - count) < rice_nbytes;
  const int exponent = values == Values::kFloat16 ? shared_exponent(value, count) : 0;

  store(payload, static_cast<uint32_t>(gap16 ? entries : count));
  payload[4] = static_cast<uint8_t>(gap16 ? 0 : rice.parameter + 1);
  payload[5] = static_cast<uint8_t>(values);
  store(payload + 6, static_cast<int16_t>(exponent));
  write_values(value, count, values, exponent, payload + kHeader);
  if (gap16) {
    write_gap16(index, count, entries, width, payload + kHeader);
    return kHeader + (width + 2) * entries;
  }
  const size_t used = kHeader + value_nbytes(values, count);
  return used + rice_encode(index, count, rice.parameter, payload + used);
}

Fault sparse_check(const uint8_t* payload, size_t nbytes, size_t n) {
  if (const Fault fault = check_header(payload, nbytes, n)) return fault;
  const Layout layout = layout_of(payload, nbytes);
  if (const Fault fault = check_values(layout)) return fault;
  if (layout.index_coding == 0) {
    if (const Fault fault = check_gap16(layout, n)) return fault;
  } else if (const Fault fault = rice_decode(layout.index_bytes, layout.index_nbytes, layout.entries,
                                             layout.index_coding - 1, n, nullptr)) {
    return fault;
  }
  return check_entries(layout);
}

size_t sparse_count(const uint8_t* payload, size_t nbytes) {
  const Layout layout = layout_of(payload, nbytes);
  size_t fillers = 0;
  for (size_t i = 0; i < layout.entries; ++i) fillers += static_cast<size_t>(is_filler(layout, i));
  return layout.entries - fillers;
}

void sparse_unpack(const uint8_t* payload, size_t nbytes, size_t n, uint32_t* index, float* value) {
  const Layout layout = layout_of(payload, nbytes);
  if (layout.index_coding == 0) return unpack_gap16(layout, index, value);
  rice_decode(layout.index_bytes, layout.index_nbytes, layout.entries, layout.index_coding - 1, n, index);
  for (size_t i = 0; i < layout.entries; ++i) value[i] = read_value(layout, i);
}

}  // namespace thinwire
