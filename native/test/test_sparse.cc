// Lists of (index, value): their payloads, sums and places.

#include <map>

#include "bytes.h"
#include "cases.h"
#include "check.h"

namespace thinwire::test {
namespace {

struct List {
  std::vector<uint32_t> index;
  std::vector<float> value;
};

List list_with_gaps(const std::vector<uint32_t>& gaps, uint64_t seed) {
  Random random(seed);
  List list;
  uint32_t next = 0;
  for (const uint32_t gap : gaps) {
    list.index.push_back(next + gap);
    list.value.push_back(static_cast<float>((random.unit() + 0.01) * (random.chance(0.5) ? -1 : 1)));
    next += gap + 1;
  }
  return list;
}

// Writes into buffers without slack and reads back; checks that the writer said what the reader sees.
void round_trip(List list, size_t n, Values values, double tolerance) {
  const List original = list;
  const size_t count = list.index.size();
  const auto payload = exact<uint8_t>(sparse_max_nbytes(n, count, values));
  const size_t nbytes = sparse_encode(list.index.data(), list.value.data(), count, n, values, payload.get());
  CHECK(nbytes <= sparse_max_nbytes(n, count, values));
  const auto tight = exact_copy(payload.get(), nbytes);
  const Fault fault = sparse_check(tight.get(), nbytes, n);
  CHECK(!fault);
  if (fault) return;
  CHECK_EQ(sparse_count(tight.get(), nbytes), count);
  List read{std::vector<uint32_t>(count), std::vector<float>(count)};
  sparse_unpack(tight.get(), nbytes, n, read.index.data(), read.value.data());
  CHECK(read.index == original.index);
  CHECK(read.value == list.value);
  float top = 0.0f;
  for (const float x : original.value) top = std::max(top, std::fabs(x));
  for (size_t i = 0; i < count; ++i) {
    CHECK(read.value[i] != 0.0f);
    CHECK(std::fabs(static_cast<double>(read.value[i]) - static_cast<double>(original.value[i])) <= tolerance * static_cast<double>(top));
  }
  for (size_t cut = 0; cut < nbytes; cut += 1 + nbytes / 97) CHECK(sparse_check(exact_copy(tight.get(), cut).get(), cut, n));
}

// Relative to the largest: half a unit in the last place, or half a step of int8, of which a tiny value gets a whole one.
void round_trip_in_all_codings(const List& list, size_t n) {
  round_trip(list, n, Values::kFloat32, 0.0);
  round_trip(list, n, Values::kFloat16, 0x1p-11);
  round_trip(list, n, Values::kInt8, 1.0 / 127);
}

void every_shape_of_gaps() {
  round_trip_in_all_codings({}, 0);
  round_trip_in_all_codings({}, 100);
  for (const uint32_t gap : {0u, 1u, 65535u, 65536u, 131071u, 131072u, 200000u}) {
    round_trip_in_all_codings(list_with_gaps({gap}, gap), gap + 1);
    round_trip_in_all_codings(list_with_gaps({gap, 0, gap, gap}, gap), 4 * gap + 100);
  }
  Random random(7);
  std::vector<uint32_t> gaps;
  for (int i = 0; i < 5000; ++i) gaps.push_back(random.chance(0.002) ? 70000 : static_cast<uint32_t>(random.below(3)));
  round_trip_in_all_codings(list_with_gaps(gaps, 8), 2000000);
}

// What `Nonzero` and sums of lists count on: they know only n before they write.
void the_room_of_all_elements_is_enough_for_any_list() {
  Random random(11);
  for (const size_t n : {size_t{1}, size_t{7}, size_t{64}, size_t{1000}, size_t{140000}}) {
    const size_t room = sparse_max_nbytes(n, n, Values::kFloat32);
    for (const double share : {0.0, 0.001, 0.1, 0.24, 0.26, 0.49, 0.51, 0.9, 0.999, 1.0}) {
      List list;
      for (uint32_t i = 0; i < n; ++i) {
        if (!random.chance(share)) continue;
        list.index.push_back(i);
        list.value.push_back(1.0f);
      }
      const auto payload = exact<uint8_t>(room);
      const size_t count = list.index.size();
      CHECK(sparse_encode(list.index.data(), list.value.data(), count, n, Values::kFloat32, payload.get()) <= room);
    }
  }
}

// Ever wider apart, so that 16-bit gaps with their fillers are the shorter coding.
void sixteen_bit_gaps_are_chosen_where_they_are_shorter() {
  std::vector<uint32_t> gaps(400, 60000);
  for (size_t i = 0; i < gaps.size(); i += 50) gaps[i] = 100000;
  List list = list_with_gaps(gaps, 3);
  const size_t n = list.index.back() + 1;
  const auto payload = exact<uint8_t>(sparse_max_nbytes(n, gaps.size(), Values::kFloat32));
  const size_t nbytes = sparse_encode(list.index.data(), list.value.data(), gaps.size(), n, Values::kFloat32, payload.get());
  CHECK_EQ(payload[4], 0);
  CHECK_EQ(load<uint32_t>(payload.get()), 408u);
  CHECK_EQ(nbytes, size_t{8 + 6 * 408});
  round_trip_in_all_codings(list, n);
}

void extreme_values() {
  for (const float top : {1e-45f, 1e-38f, 1e-30f, 1.0f, 3.4e38f}) {
    List list = list_with_gaps(std::vector<uint32_t>(600, 3), 5);
    for (size_t i = 0; i < list.value.size(); ++i) list.value[i] = i % 3 == 0 ? top : -top * 0.999f;
    round_trip_in_all_codings(list, 10000);
    list.value[0] = 1e-45f;  // next to it, anything is large; it must not become zero where it can be told
    if (top < 1e-37f) round_trip_in_all_codings(list, 10000);
  }
}

void zeros_and_non_finite_values_are_not_encoded() {
  for (const float bad : {0.0f, -0.0f, INFINITY, -INFINITY, NAN}) {
    List list = list_with_gaps({1, 2, 3}, 1);
    list.value[1] = bad;
    const auto payload = exact<uint8_t>(sparse_max_nbytes(100, 3, Values::kFloat32));
    CHECK_EQ(sparse_encode(list.index.data(), list.value.data(), 3, 100, Values::kFloat32, payload.get()), size_t{0});
  }
}

void merging_adds_in_order() {
  const List lists[] = {list_with_gaps({1, 0, 5, 2}, 1), list_with_gaps({0, 0, 0, 9, 1}, 2), list_with_gaps({}, 3),
                        list_with_gaps({1, 7}, 4)};
  std::vector<SparseList> views;
  std::map<uint32_t, float> expected;
  size_t total = 0;
  for (const List& list : lists) {
    views.push_back({list.index.data(), list.value.data(), list.index.size()});
    for (size_t i = 0; i < list.index.size(); ++i) expected[list.index[i]] += list.value[i] * 0.25f;
    total += list.index.size();
  }
  const auto index = exact<uint32_t>(total);
  const auto value = exact<float>(total);
  const size_t count = sparse_merge(views.data(), views.size(), 0.25f, index.get(), value.get());
  CHECK_EQ(count, expected.size());
  size_t at = 0;
  for (const auto& [i, x] : expected) {
    CHECK_EQ(index[at], i);
    CHECK_EQ(value[at++], x);
  }
}

void scattering() {
  const List list = list_with_gaps({3, 0, 40, 2}, 9);
  std::vector<float> dst(60, 1.0f);
  scatter_add(list.index.data(), list.value.data(), 4, 0.5f, dst.data());
  for (size_t i = 0; i < 4; ++i) CHECK_EQ(dst[list.index[i]], 1.0f + list.value[i] * 0.5f);
  scatter(list.index.data(), list.value.data(), 4, dst.data());
  for (size_t i = 0; i < 4; ++i) CHECK_EQ(dst[list.index[i]], list.value[i]);
  CHECK_EQ(dst[0], 1.0f);
}

}  // namespace

Suite sparse_suite() {
  return {"test_sparse",
          {{"every_shape_of_gaps", every_shape_of_gaps},
           {"the_room_of_all_elements_is_enough_for_any_list", the_room_of_all_elements_is_enough_for_any_list},
           {"sixteen_bit_gaps_are_chosen_where_they_are_shorter", sixteen_bit_gaps_are_chosen_where_they_are_shorter},
           {"extreme_values", extreme_values},
           {"zeros_and_non_finite_values_are_not_encoded", zeros_and_non_finite_values_are_not_encoded},
           {"merging_adds_in_order", merging_adds_in_order},
           {"scattering", scattering}}};
}

}  // namespace thinwire::test
