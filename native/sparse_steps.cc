#include <algorithm>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "undo.h"

namespace thinwire {
namespace {

// A list in scratch memory.
struct Entries {
  explicit Entries(size_t capacity) : index(capacity), value(capacity) {}
  Scratch<uint32_t> index;
  Scratch<float> value;
  size_t count = 0;
  SparseList list() const { return {index.data(), value.data(), count}; }
};

size_t encode(Entries& entries, size_t n, Values values, uint8_t* payload) {
  return sparse_encode(entries.index.data(), entries.value.data(), entries.count, n, values, payload);
}

// Encodes what was taken out of `residual` and puts back what the coding of the values lost.
size_t encode_taken(Entries& taken, size_t n, Values values, float* residual, uint8_t* payload) {
  Scratch<float> wanted(taken.count);
  std::copy_n(taken.value.data(), taken.count, wanted.data());
  const size_t nbytes = encode(taken, n, values, payload);
  for (size_t i = 0; i < taken.count; ++i) wanted[i] -= taken.value[i];
  scatter(taken.index.data(), wanted.data(), taken.count, residual);
  return nbytes;
}

Entries unpack(Payload payload, size_t n) {
  const size_t count = sparse_count(payload.data, payload.nbytes);
  Entries entries(count);
  entries.count = count;
  sparse_unpack(payload.data, payload.nbytes, n, entries.index.data(), entries.value.data());
  return entries;
}

// The weighted sum of payloads.
Entries merge(const Payload* payloads, size_t count, size_t n, float weight) {
  std::vector<Entries> lists;
  std::vector<SparseList> views;
  size_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    lists.push_back(unpack(payloads[i], n));
    views.push_back(lists.back().list());
    total += lists.back().count;
  }
  Entries merged(total);
  merged.count = sparse_merge(views.data(), views.size(), weight, merged.index.data(), merged.value.data());
  return merged;
}

}  // namespace

size_t topk_encode(const float* x, size_t n, TopKCoding coding, uint8_t* payload) {
  Entries taken(coding.k);
  taken.count = topk(x, n, coding.k, coding.select, taken.index.data(), taken.value.data());
  return encode(taken, n, coding.values, payload);
}

size_t residual_topk_encode(const ResidualTopK& step, size_t n, uint8_t* payload, double& squares) {
  const auto& [gradient, residual, gains, coding] = step;
  Entries taken(coding.k);
  taken.count = residual_topk(gradient, n, coding.k, coding.select, gains, residual, taken.index.data(),
                              taken.value.data(), squares);
  return encode_taken(taken, n, coding.values, residual.to, payload);
}

size_t dgc_topk_encode(const DgcTopK& step, size_t n, uint8_t* payload, double& squares) {
  const auto& [gradient, residual, gains, coding] = step.rest;
  Entries taken(coding.k);
  taken.count = dgc_topk(gradient, n, coding.k, coding.select, gains, step.momentum, step.velocity, residual,
                         taken.index.data(), taken.value.data(), squares);
  return encode_taken(taken, n, coding.values, residual.to, payload);
}

// With parameter 0 a Rice stream has at most n bits, and the shortest is taken.
size_t list_max_nbytes(size_t n) { return sparse_max_nbytes(n, n, Values::kFloat32); }

size_t nonzero_encode(const float* x, size_t n, uint8_t* payload) {
  const size_t count = nonzero(x, n, nullptr, nullptr, 0);
  Entries entries(count);
  // Not more than were counted, even if another thread changes x meanwhile.
  entries.count = std::min(count, nonzero(x, n, entries.index.data(), entries.value.data(), count));
  return encode(entries, n, Values::kFloat32, payload);
}

size_t sparse_merge_encode(const Payload* payloads, size_t count, size_t n, float weight, uint8_t* payload) {
  Entries merged = merge(payloads, count, n, weight);
  return encode(merged, n, Values::kFloat32, payload);
}

size_t topk_sum_step_encode(const TopKSumStep& step, size_t n, uint8_t* payload) {
  const Entries gradient = merge(step.payloads, step.count, n, step.weight);
  if (!(sum_squares(gradient.value.data(), gradient.count) <= step.most_squares)) return 0;
  Entries taken(step.coding.k);
  Scratch<float> before(gradient.count);
  taken.count = residual_topk_of_list(gradient.list(), n, step.coding.k, step.coding.select, step.residual,
                                      before.data(), taken.index.data(), taken.value.data());
  if (step.log != nullptr) {
    step.log->note({gradient.index.data(), before.data(), gradient.count});
    step.log->note(taken.list());
  }
  return encode_taken(taken, n, step.coding.values, step.residual, payload);
}

void sparse_decode(Payload payload, size_t n, float* dst) {
  const Entries entries = unpack(payload, n);
  clear(dst, n);
  scatter(entries.index.data(), entries.value.data(), entries.count, dst);
}

void sparse_add(Payload payload, size_t n, float weight, float* dst) {
  const Entries entries = unpack(payload, n);
  scatter_add(entries.index.data(), entries.value.data(), entries.count, weight, dst);
}

void sparse_sum(const Payload* payloads, size_t count, size_t n, float weight, float* dst) {
  clear(dst, n);
  for (size_t i = 0; i < count; ++i) sparse_add(payloads[i], n, weight, dst);
}

}  // namespace thinwire
