#include "bindings/calls.h"
#include "bindings/families.h"

namespace thinwire {
namespace {

auto check_half(Half kind) {
  return [kind](const uint8_t* data, size_t nbytes, size_t n) { return half_check(kind, data, nbytes, n); };
}

template <class Result>
auto reduction(Result (*reduce)(const float*, size_t)) {
  return [reduce](Input x) {
    const size_t n = numel(x);
    Unlocked unlocked;
    return reduce(x.data(), n);
  };
}

void bind_float32(nb::module_& m) {
  m.def("float32_add", [](nb::handle payload, Output out, float weight) {
    return read_payload(payload, out, float32_check,
                        [&](Payload read, size_t n) { float32_add(read.data, n, weight, out.data()); });
  }, "payload"_a, "out"_a.noconvert(), "weight"_a);
  m.def("float32_sum", [](const Objects& payloads, float weight, Output out) {
    return read_payloads(payloads, out, float32_check, [&](const Payloads& all, size_t n) {
      float32_sum(all.starts().data(), all.size(), n, weight, out.data());
    });
  }, "payloads"_a, "weight"_a, "out"_a.noconvert());
}

void bind_half(nb::module_& m) {
  nb::enum_<Half>(m, "Half").value("FLOAT16", Half::kFloat16).value("BFLOAT16", Half::kBFloat16);
  m.def("half_encode", [](Half kind, Input x, nb::handle out) {
    const size_t n = numel(x);
    return write_payload(out, 2 * n, [&](uint8_t* payload) { return half_encode(kind, x.data(), n, payload) ? 2 * n : 0; });
  }, "kind"_a, "x"_a.noconvert(), "out"_a);
  m.def("half_decode", [](Half kind, nb::handle payload, Output out) {
    return read_payload(payload, out, check_half(kind),
                        [&](Payload read, size_t n) { half_decode(kind, read.data, n, out.data()); });
  }, "kind"_a, "payload"_a, "out"_a.noconvert());
  m.def("half_add", [](Half kind, nb::handle payload, Output out, float weight) {
    return read_payload(payload, out, check_half(kind),
                        [&](Payload read, size_t n) { half_add(kind, read.data, n, weight, out.data()); });
  }, "kind"_a, "payload"_a, "out"_a.noconvert(), "weight"_a);
}

}  // namespace

void bind_dense(nb::module_& m) {
  bind_float32(m);
  bind_half(m);
  m.def("all_finite", reduction(all_finite), "x"_a.noconvert());
  m.def("sum_abs", reduction(sum_abs), "x"_a.noconvert());
  m.def("sum_squares", reduction(sum_squares), "x"_a.noconvert());
  m.def("max_abs", reduction(max_abs), "x"_a.noconvert());
  m.def("crc32c", [](nb::handle data, uint32_t crc) {
    const Bytes bytes(data);
    Unlocked unlocked;
    return crc32c(bytes.data(), bytes.size(), crc);
  }, "data"_a, "crc"_a = 0);
}

}  // namespace thinwire
