// The largest of every chunk: which elements are taken, what they become, and what is left.

#include <limits>

#include "cases.h"
#include "check.h"
#include "levels.h"
#include "table.h"

namespace thinwire::test {
namespace {

using Tensor = std::vector<float>;

constexpr ChunkCoding kCodings[] = {{1.0 / 64, 2}, {1.0 / 256, 4}, {0.3, 2}, {1.0, 4}};

Bytes encoded(const Tensor& x, ChunkCoding coding) {
  const size_t most = chunk_topk_max_nbytes(x.size(), coding);
  const auto payload = exact<uint8_t>(most);
  const size_t nbytes = chunk_topk_encode(x.data(), x.size(), coding, payload.get());
  CHECK(nbytes <= most);
  return Bytes(payload.get(), payload.get() + nbytes);
}

Tensor decoded(const Bytes& payload, size_t n) {
  CHECK(!chunk_topk_check(payload.data(), payload.size(), n));
  Unaligned out(Tensor(n, 7.0f));
  chunk_topk_decode({payload.data(), payload.size()}, n, out.data());
  return Tensor(out.data(), out.data() + n);
}

// Whether each element is among the largest of its chunk, the lower index first among equals.
std::vector<bool> largest(const Tensor& x, double ratio) {
  std::vector<bool> taken(x.size());
  for (size_t begin = 0; begin < x.size(); begin += kChunk) {
    const size_t count = std::min(kChunk, x.size() - begin);
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; ++i) order[i] = begin + i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return magnitude_bits(x[a]) > magnitude_bits(x[b]); });
    order.resize(chunk_kept(count, ratio));
    for (const size_t i : order) taken[i] = magnitude_bits(x[i]) >= kLeastNormal;
  }
  return taken;
}

void check_taken(const Tensor& x, const Tensor& sent, double ratio) {
  const std::vector<bool> taken = largest(x, ratio);
  for (size_t i = 0; i < x.size(); ++i) {
    CHECK_EQ(sent[i] != 0.0f, static_cast<bool>(taken[i]));
    if (taken[i]) CHECK_EQ(sent[i] < 0.0f, x[i] < 0.0f);
  }
}

void the_largest_of_each_chunk_are_taken() {
  for (const size_t n : awkward_sizes()) {
    const Tensor x = gradient(n, n);
    for (const ChunkCoding coding : kCodings) check_taken(x, decoded(encoded(x, coding), n), coding.ratio);
  }
}

void ties_go_to_the_lower_index() {
  for (const float value : {1.0f, -0x1p-126f, 0x1p-130f, std::numeric_limits<float>::max()}) {
    const Tensor x(kChunk + 100, value);
    for (const ChunkCoding coding : kCodings) check_taken(x, decoded(encoded(x, coding), x.size()), coding.ratio);
  }
}

void every_setting_gives_the_same_bytes() {
  const size_t n = 5 * kGrain + 4099;
  const Tensor x = gradient(n, 3);
  for (const ChunkCoding coding : kCodings) {
    choose_kernels("scalar");
    const Bytes expected = encoded(x, coding);
    under_every_setting([&] { CHECK(encoded(x, coding) == expected); });
  }
}

// wanted = keep * residual + gain * gradient is what is sent and what is left, to the bit.
void check_step(size_t n, ChunkCoding coding) {
  const Tensor g = gradient(n, n), before = gradient(n, n + 1);
  Tensor wanted(n), left(n), spent = g;
  for (size_t i = 0; i < n; ++i) wanted[i] = before[i] * 1.25f + g[i] * 0.5f;
  const auto payload = exact<uint8_t>(chunk_topk_max_nbytes(n, coding));
  double squares = 0.0;
  const size_t nbytes = chunk_topk_step({{spent.data(), true}, {before.data(), left.data()}, {0.5f, 1.25f}, coding}, n,
                                        payload.get(), squares);
  const Bytes written(payload.get(), payload.get() + nbytes);
  CHECK(written == encoded(wanted, coding));
  const Tensor sent = decoded(written, n);
  for (size_t i = 0; i < n; ++i) CHECK_EQ(left[i], wanted[i] - sent[i]);
  CHECK(near(squares, sum_squares(g.data(), n)));
  CHECK(spent == Tensor(n));
}

void steps_keep_what_is_not_sent() {
  for (const size_t n : {size_t{1}, size_t{65}, size_t{4099}, size_t{140003}}) {
    for (const ChunkCoding coding : kCodings) under_every_instruction_set([&] { check_step(n, coding); });
  }
}

void what_is_not_finite_is_refused() {
  for (const float poison : {std::numeric_limits<float>::infinity(), -std::nanf("")}) {
    for (const size_t poisoned : {size_t{1}, size_t{5000}}) {
      Tensor x = gradient(5000, 1);
      std::fill_n(x.begin() + 4000, std::min<size_t>(poisoned, 1000), poison);
      for (const ChunkCoding coding : kCodings) {
        under_every_instruction_set([&] { CHECK(encoded(x, coding).empty()); });
      }
    }
  }
}

void damaged_headers_are_named() {
  const Tensor x = gradient(5000, 1);
  const Bytes payload = encoded(x, {1.0 / 64, 2});
  const auto refused = [&](size_t place, uint8_t value) {
    Bytes damaged = payload;
    damaged[place] = value;
    return static_cast<bool>(chunk_topk_check(damaged.data(), damaged.size(), x.size()));
  };
  CHECK(refused(0, static_cast<uint8_t>(payload[0] + 1)));  // entries
  CHECK(refused(4, 1));                                     // chunks
  CHECK(refused(4, 3));
  CHECK(refused(8, 3));   // bits
  CHECK(refused(9, 31));  // Rice parameter
  CHECK(refused(9, static_cast<uint8_t>(payload[9] + 1)));
  CHECK(refused(11, 0xff));  // levels: above 2^100
  CHECK(refused(payload.size() - 1, static_cast<uint8_t>(payload.back() ^ 1)));
  for (size_t nbytes = 0; nbytes < payload.size(); ++nbytes) {
    CHECK(chunk_topk_check(exact_copy(payload.data(), nbytes).get(), nbytes, x.size()));
  }
}

void levels_are_the_nearest() {
  CHECK_EQ(level_of(levels_for(1.0f, 3.0f), 0, 1), 1.0f);
  CHECK_EQ(level_of(levels_for(1.0f, 3.0f), 1, 1), 3.0f);
  CHECK_EQ(level_of(levels_for(1.0f, 1.0f), 1, 1), 1.0f);
  CHECK_EQ(level_of(levels_for(0x1p120f, std::numeric_limits<float>::infinity()), 7, 7), 0x1p100f);
  CHECK_EQ(level_of(levels_for(1.0f, 0x1p90f), 7, 7), 0x1.8p9f);  // as far as levels of one chunk reach
}

}  // namespace

Suite chunk_topk_suite() {
  return {"test_chunk_topk",
          {{"the_largest_of_each_chunk_are_taken", the_largest_of_each_chunk_are_taken},
           {"ties_go_to_the_lower_index", ties_go_to_the_lower_index},
           {"every_setting_gives_the_same_bytes", every_setting_gives_the_same_bytes},
           {"steps_keep_what_is_not_sent", steps_keep_what_is_not_sent},
           {"what_is_not_finite_is_refused", what_is_not_finite_is_refused},
           {"damaged_headers_are_named", damaged_headers_are_named},
           {"levels_are_the_nearest", levels_are_the_nearest}}};
}

}  // namespace thinwire::test
