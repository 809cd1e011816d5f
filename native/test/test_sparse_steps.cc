// Steps that end in a payload of a list, and sums of such payloads, against the same done densely, piece by piece.

#include <limits>

#include "cases.h"
#include "check.h"
#include "undo.h"

namespace thinwire::test {
namespace {

using Tensor = std::vector<float>;

constexpr Values kCodings[] = {Values::kFloat32, Values::kFloat16, Values::kInt8};
constexpr Gains kGains{0.5f, 1.25f};
constexpr double kNoLimit = std::numeric_limits<double>::max();

// Runs write(payload) in a buffer without slack. Empty where it wrote nothing.
template <class Write>
Bytes written(size_t most_nbytes, Write write) {
  const auto payload = exact<uint8_t>(most_nbytes);
  const size_t nbytes = write(payload.get());
  CHECK(nbytes <= most_nbytes);
  return Bytes(payload.get(), payload.get() + nbytes);
}

Payload view(const Bytes& payload) { return {payload.data(), payload.size()}; }

Tensor decoded(const Bytes& payload, size_t n) {
  CHECK(!sparse_check(payload.data(), payload.size(), n));
  Unaligned out(Tensor(n, 7.0f));
  sparse_decode(view(payload), n, out.data());
  return Tensor(out.data(), out.data() + n);
}

Bytes topk_payload(const Tensor& x, TopKCoding coding) {
  return written(sparse_max_nbytes(x.size(), coding.k, coding.values),
                 [&](uint8_t* payload) { return topk_encode(x.data(), x.size(), coding, payload); });
}

Bytes nonzero_payload(const Tensor& x) {
  return written(list_max_nbytes(x.size()), [&](uint8_t* payload) { return nonzero_encode(x.data(), x.size(), payload); });
}

bool same(const Tensor& a, const Tensor& b) { return a.size() == b.size() && same_bits(a.data(), b.data(), a.size()); }

// Equal as numbers: a payload does not say the sign of a zero.
bool equal(const Tensor& a, const Tensor& b) { return a == b; }

// Everything but the k largest is zero.
Tensor only_topk(const Tensor& x, size_t k) {
  std::vector<uint32_t> index(k);
  Tensor value(k), result(x.size());
  const size_t count = topk(x.data(), x.size(), k, Select::kRadix, index.data(), value.data());
  scatter(index.data(), value.data(), count, result.data());
  return result;
}

void topk_payloads_hold_the_largest() {
  for (const size_t n : {size_t{1}, size_t{65}, size_t{4099}, size_t{140003}}) {
    const Tensor x = gradient(n, n);
    const size_t k = n / 50 + 1;
    const Tensor expected = only_topk(x, k);
    under_every_instruction_set([&] {
      for (const Select select : {Select::kSampled, Select::kRadix}) {
        CHECK(equal(decoded(topk_payload(x, {k, select, Values::kFloat32}), n), expected));
      }
    });
  }
}

void nonzero_payloads_hold_everything() {
  for (const size_t n : awkward_sizes()) {
    const Tensor x = gradient(n, n + 3);
    CHECK(equal(decoded(nonzero_payload(x), n), x));
  }
}

// What was wanted is what was sent and what is left, whatever the coding of the values loses.
void check_nothing_is_lost(const Tensor& wanted, const Bytes& payload, const Tensor& left, size_t k) {
  const Tensor sent = decoded(payload, wanted.size()), largest = only_topk(wanted, k);
  for (size_t i = 0; i < wanted.size(); ++i) {
    CHECK_EQ(sent[i] != 0.0f, largest[i] != 0.0f);
    CHECK_EQ(left[i], wanted[i] - sent[i]);
  }
}

void residual_steps_keep_what_is_not_sent() {
  for (const size_t n : {size_t{1}, size_t{65}, size_t{4099}}) {
    const Tensor g = gradient(n, n), before = gradient(n, n + 1);
    const size_t k = n / 20 + 1;
    Tensor wanted(n);
    for (size_t i = 0; i < n; ++i) wanted[i] = before[i] * kGains.keep + g[i] * kGains.gain;
    for (const Values values : kCodings) {
      Tensor spent = g, after(n);
      double squares = 0.0;
      const ResidualTopK step{{spent.data(), true}, {before.data(), after.data()}, kGains, {k, Select::kSampled, values}};
      const Bytes payload = written(sparse_max_nbytes(n, k, values), [&](uint8_t* out) {
        return residual_topk_encode(step, n, out, squares);
      });
      check_nothing_is_lost(wanted, payload, after, k);
      CHECK(near(squares, sum_squares(g.data(), n)));
      CHECK(same(spent, Tensor(n)));
    }
  }
}

void dgc_steps_keep_what_is_not_sent_and_forget_its_velocity() {
  const size_t n = 4099, k = 100;
  const Tensor residual = gradient(n, 1), velocity = gradient(n, 2);
  Tensor g = gradient(n, 3), moved(n), wanted(n);
  for (size_t i = 0; i < n; ++i) {
    moved[i] = velocity[i] * 0.9f + g[i] * kGains.gain;
    wanted[i] = residual[i] * kGains.keep + moved[i];
  }
  for (const Values values : kCodings) {
    Tensor velocity_to(n), residual_to(n);
    double squares = 0.0;
    const ResidualTopK rest{
        {g.data(), false}, {residual.data(), residual_to.data()}, kGains, {k, Select::kRadix, values}};
    const DgcTopK step{rest, {velocity.data(), velocity_to.data()}, {0.9f, false, true}};
    const Bytes payload = written(sparse_max_nbytes(n, k, values), [&](uint8_t* out) {
      return dgc_topk_encode(step, n, out, squares);
    });
    check_nothing_is_lost(wanted, payload, residual_to, k);
    const Tensor sent = decoded(payload, n);
    for (size_t i = 0; i < n; ++i) CHECK_EQ(velocity_to[i], sent[i] != 0.0f ? 0.0f : moved[i]);
    CHECK(near(squares, sum_squares(g.data(), n)));
  }
}

// Three payloads of a tensor: two that share places, and one of nothing.
struct Pushes {
  size_t n;
  Bytes first = topk_payload(gradient(n, 5), {n / 10 + 1, Select::kRadix, Values::kFloat32});
  Bytes second = topk_payload(gradient(n, 6), {n / 10 + 1, Select::kRadix, Values::kInt8});
  Bytes nothing = nonzero_payload(Tensor(n));
  Payload views[3] = {view(first), view(second), view(nothing)};

  explicit Pushes(size_t numel) : n(numel) {}

  Tensor sum(float weight) const {
    const Tensor a = decoded(first, n), b = decoded(second, n);
    Tensor total(n);
    for (size_t i = 0; i < n; ++i) total[i] = a[i] * weight + b[i] * weight;
    return total;
  }
};

void sums_are_those_of_decoded_payloads() {
  for (const size_t n : {size_t{1}, size_t{65}, size_t{4099}, size_t{140003}}) {
    const Pushes pushes(n);
    const Tensor expected = pushes.sum(0.5f);
    Tensor sum(n, 3.0f), added(n);
    sparse_sum(pushes.views, 3, n, 0.5f, sum.data());
    CHECK(equal(sum, expected));
    for (const Payload& push : pushes.views) sparse_add(push, n, 0.5f, added.data());
    CHECK(equal(added, expected));
    const Bytes merged = written(list_max_nbytes(n), [&](uint8_t* payload) {
      return sparse_merge_encode(pushes.views, 3, n, 0.5f, payload);
    });
    CHECK(equal(decoded(merged, n), expected));
  }
}

void a_sum_of_opposites_is_an_empty_payload() {
  const size_t n = 1000;
  const Tensor x = gradient(n, 9);
  Tensor negative(n);
  for (size_t i = 0; i < n; ++i) negative[i] = -x[i];
  const Bytes plus = nonzero_payload(x), minus = nonzero_payload(negative);
  const Payload views[] = {view(plus), view(minus)};
  const Bytes merged = written(list_max_nbytes(n), [&](uint8_t* payload) {
    return sparse_merge_encode(views, 2, n, 1.0f, payload);
  });
  CHECK(merged == nonzero_payload(Tensor(n)));
}

Bytes sum_step(const Pushes& pushes, Values values, double most_squares, Tensor& residual, UndoLog* log) {
  const TopKCoding coding{pushes.n / 20 + 1, Select::kSampled, values};
  const TopKSumStep step{pushes.views, 3, 0.5f, residual.data(), coding, most_squares, log};
  return written(sparse_max_nbytes(pushes.n, coding.k, values),
                 [&](uint8_t* payload) { return topk_sum_step_encode(step, pushes.n, payload); });
}

void a_server_step_keeps_what_is_not_sent() {
  for (const size_t n : {size_t{65}, size_t{4099}, size_t{140003}}) {
    const Pushes pushes(n);
    const Tensor before = gradient(n, 8), sum = pushes.sum(0.5f);
    Tensor wanted(n);
    for (size_t i = 0; i < n; ++i) wanted[i] = before[i] + sum[i];
    for (const Values values : kCodings) {
      Tensor residual = before;
      const Bytes payload = sum_step(pushes, values, kNoLimit, residual, nullptr);
      check_nothing_is_lost(wanted, payload, residual, n / 20 + 1);
    }
  }
}

void a_sum_that_is_too_large_changes_nothing() {
  const Pushes pushes(4099);
  const Tensor before = gradient(pushes.n, 8), sum = pushes.sum(0.5f);
  const double squares = sum_squares(sum.data(), pushes.n);
  Tensor residual = before;
  UndoLog log;
  CHECK(sum_step(pushes, Values::kFloat32, 0.99 * squares, residual, &log).empty());
  CHECK(sum_step(pushes, Values::kFloat32, NAN, residual, &log).empty());
  CHECK(same(residual, before));
  Tensor other(pushes.n);
  CHECK(log.undo(other.data(), pushes.n));
  CHECK(same(other, Tensor(pushes.n)));
  CHECK(!sum_step(pushes, Values::kFloat32, 1.01 * squares, residual, &log).empty());
}

void server_steps_are_undone_to_the_bit() {
  for (const Values values : kCodings) {
    const Pushes pushes(4099);
    const Tensor before = gradient(pushes.n, 8);
    Tensor residual = before;
    UndoLog log;
    for (int step = 0; step < 3; ++step) CHECK(!sum_step(pushes, values, kNoLimit, residual, &log).empty());
    CHECK(!same(residual, before));
    CHECK(log.undo(residual.data(), pushes.n));
    CHECK(same(residual, before));
    residual.assign(pushes.n, 1.0f);
    CHECK(log.undo(residual.data(), pushes.n));  // nothing is left in the log
    CHECK(same(residual, Tensor(pushes.n, 1.0f)));
  }
}

void nothing_is_undone_in_a_tensor_without_those_places() {
  const uint32_t index[] = {1, 8};
  const float value[] = {5.0f, 6.0f};
  UndoLog log;
  log.note({index, value, 2});
  Tensor small(8, 1.0f), whole(9, 1.0f);
  CHECK(!log.undo(small.data(), small.size()));
  CHECK(same(small, Tensor(8, 1.0f)));
  CHECK(log.undo(whole.data(), whole.size()));
  CHECK(same(whole, {1, 5, 1, 1, 1, 1, 1, 1, 6}));
  log.note({index, value, 2});
  log.clear();
  CHECK(log.undo(small.data(), small.size()));
  CHECK(same(small, Tensor(8, 1.0f)));
}

void what_is_not_finite_has_no_payload() {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    Tensor x = gradient(1000, 4);
    x[500] = bad;
    CHECK(nonzero_payload(x).empty());
    CHECK(topk_payload(x, {10, Select::kSampled, Values::kFloat32}).empty());
  }
}

}  // namespace

Suite sparse_steps_suite() {
  return {"test_sparse_steps",
          {{"topk_payloads_hold_the_largest", topk_payloads_hold_the_largest},
           {"nonzero_payloads_hold_everything", nonzero_payloads_hold_everything},
           {"residual_steps_keep_what_is_not_sent", residual_steps_keep_what_is_not_sent},
           {"dgc_steps_keep_what_is_not_sent_and_forget_its_velocity",
            dgc_steps_keep_what_is_not_sent_and_forget_its_velocity},
           {"sums_are_those_of_decoded_payloads", sums_are_those_of_decoded_payloads},
           {"a_sum_of_opposites_is_an_empty_payload", a_sum_of_opposites_is_an_empty_payload},
           {"a_server_step_keeps_what_is_not_sent", a_server_step_keeps_what_is_not_sent},
           {"a_sum_that_is_too_large_changes_nothing", a_sum_that_is_too_large_changes_nothing},
           {"server_steps_are_undone_to_the_bit", server_steps_are_undone_to_the_bit},
           {"nothing_is_undone_in_a_tensor_without_those_places", nothing_is_undone_in_a_tensor_without_those_places},
           {"what_is_not_finite_has_no_payload", what_is_not_finite_has_no_payload}}};
}

}  // namespace thinwire::test
