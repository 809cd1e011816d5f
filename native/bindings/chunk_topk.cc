#include "bindings/calls.h"
#include "bindings/families.h"

namespace thinwire {
namespace {

ChunkCoding coding_of(double ratio, unsigned bits) {
  require(ratio > 0.0 && ratio <= 1.0, "ratio is not above 0 and at most 1");
  require(bits == 2 || bits == 4, "bits are not 2 or 4");
  return {ratio, bits};
}

Written encode_to(Input x, double ratio, unsigned bits, nb::handle out) {
  const size_t n = numel(x);
  const ChunkCoding coding = coding_of(ratio, bits);
  return write_payload(out, chunk_topk_max_nbytes(n, coding),
                       [&](uint8_t* payload) { return chunk_topk_encode(x.data(), n, coding, payload); });
}

Stepped step_to(Output gradient, Input residual, Output residual_to, double ratio, unsigned bits, float gain, float keep,
                nb::handle out, bool clear) {
  const size_t n = numel(gradient);
  require_same(n, residual.size());
  require_same(n, residual_to.size());
  if (!finite_factors({gain, keep})) return {std::nullopt, kUnknown};
  const ChunkTopKStep step{{gradient.data(), clear},
                           {residual.data(), residual_to.data()},
                           {gain, keep},
                           coding_of(ratio, bits)};
  return write_step(out, chunk_topk_max_nbytes(n, step.coding), [&](uint8_t* payload, double& squares) {
    return chunk_topk_step(step, n, payload, squares);
  });
}

}  // namespace

void bind_chunk_topk(nb::module_& m) {
  m.def("chunk_topk_max_nbytes", [](size_t n, double ratio, unsigned bits) {
    return chunk_topk_max_nbytes(n, coding_of(ratio, bits));
  }, "numel"_a, "ratio"_a, "bits"_a);
  m.def("chunk_topk_encode", &encode_to, "x"_a.noconvert(), "ratio"_a, "bits"_a, "out"_a);
  m.def("chunk_topk_step", &step_to, "gradient"_a.noconvert(), "residual"_a.noconvert(), "residual_to"_a.noconvert(),
        "ratio"_a, "bits"_a, "gain"_a, "keep"_a, "out"_a, "clear"_a = false);
  m.def("chunk_topk_check", [](nb::handle payload, size_t n) { return check_payload(payload, n, chunk_topk_check); },
        "payload"_a, "numel"_a);
  m.def("chunk_topk_decode", [](nb::handle payload, Output out) {
    return read_payload(payload, out, chunk_topk_check,
                        [&](Payload read, size_t n) { chunk_topk_decode(read, n, out.data()); });
  }, "payload"_a, "out"_a.noconvert());
  m.def("chunk_topk_add", [](nb::handle payload, Output out, float weight) {
    return read_payload(payload, out, chunk_topk_check,
                        [&](Payload read, size_t n) { chunk_topk_add(read, n, weight, out.data()); });
  }, "payload"_a, "out"_a.noconvert(), "weight"_a);
  m.def("chunk_topk_sum", [](const Objects& payloads, float weight, Output out) {
    return read_payloads(payloads, out, chunk_topk_check, [&](const Payloads& all, size_t n) {
      chunk_topk_sum(all.data(), all.size(), n, weight, out.data());
    });
  }, "payloads"_a, "weight"_a, "out"_a.noconvert());
}

}  // namespace thinwire
