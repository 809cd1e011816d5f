#include "bindings/calls.h"
#include "bindings/families.h"

namespace thinwire {
namespace {

void bind_writers(nb::module_& m) {
  m.def("sparse_max_nbytes", &sparse_max_nbytes, "numel"_a, "count"_a, "values"_a);
  m.def("nonzero_encode", [](Input x, nb::handle out) {
    const size_t n = numel(x);
    return write_payload(out, list_max_nbytes(n), [&](uint8_t* payload) { return nonzero_encode(x.data(), n, payload); });
  }, "x"_a.noconvert(), "out"_a);
  m.def("sparse_merge", [](const Objects& objects, size_t n, float weight, nb::handle out) {
    require(n <= kMaxNumel, "more than 2^31 - 1 elements");
    const Payloads pushes(objects, n, sparse_check);
    return write_payload(out, list_max_nbytes(n), [&](uint8_t* payload) {
      return sparse_merge_encode(pushes.data(), pushes.size(), n, weight, payload);
    });
  }, "payloads"_a, "numel"_a, "weight"_a, "out"_a);
}

void bind_readers(nb::module_& m) {
  m.def("sparse_check", [](nb::handle payload, size_t n) { return check_payload(payload, n, sparse_check); },
        "payload"_a, "numel"_a);
  m.def("sparse_decode", [](nb::handle payload, Output out) {
    return read_payload(payload, out, sparse_check, [&](Payload read, size_t n) { sparse_decode(read, n, out.data()); });
  }, "payload"_a, "out"_a.noconvert());
  m.def("sparse_add", [](nb::handle payload, Output out, float weight) {
    return read_payload(payload, out, sparse_check,
                        [&](Payload read, size_t n) { sparse_add(read, n, weight, out.data()); });
  }, "payload"_a, "out"_a.noconvert(), "weight"_a);
  m.def("sparse_sum", [](const Objects& payloads, float weight, Output out) {
    return read_payloads(payloads, out, sparse_check, [&](const Payloads& all, size_t n) {
      sparse_sum(all.data(), all.size(), n, weight, out.data());
    });
  }, "payloads"_a, "weight"_a, "out"_a.noconvert());
}

}  // namespace

void bind_sparse(nb::module_& m) {
  bind_writers(m);
  bind_readers(m);
  m.def("random_indices", [](uint64_t seed, size_t n, Indices out) {
    require(n <= kMaxNumel && out.size() <= n, "more indices than elements");
    Unlocked unlocked;
    random_indices(seed, n, out.size(), reinterpret_cast<uint32_t*>(out.data()));
  }, "seed"_a, "numel"_a, "out"_a.noconvert());
}

}  // namespace thinwire
