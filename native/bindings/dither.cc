#include "bindings/calls.h"
#include "bindings/families.h"

namespace thinwire {

void bind_dither(nb::module_& m) {
  nb::enum_<Levels>(m, "Levels").value("LINEAR", Levels::kLinear).value("NATURAL", Levels::kNatural);
  nb::enum_<Norm>(m, "Norm").value("MAX", Norm::kMax).value("L2", Norm::kL2);
  m.def("dither_max_nbytes", [](size_t n, unsigned bits, Levels levels, Norm norm) {
    return dither_max_nbytes(n, {bits, levels, norm});
  }, "numel"_a, "bits"_a, "levels"_a, "norm"_a);
  m.def("dither_encode", [](Input x, unsigned bits, Levels levels, Norm norm, uint64_t seed, nb::handle out) {
    const size_t n = numel(x);
    require(bits >= 1 && bits <= 8 && !(bits == 1 && norm == Norm::kL2), "bits out of range");
    const DitherSettings settings{bits, levels, norm};
    return write_payload(out, dither_max_nbytes(n, settings),
                         [&](uint8_t* payload) { return dither_encode(x.data(), n, settings, seed, payload); });
  }, "x"_a.noconvert(), "bits"_a, "levels"_a, "norm"_a, "seed"_a, "out"_a);
  m.def("dither_decode", [](nb::handle payload, Output out) {
    return read_payload(payload, out, dither_check,
                        [&](Payload read, size_t n) { dither_decode(read.data, read.nbytes, n, out.data()); });
  }, "payload"_a, "out"_a.noconvert());
  m.def("dither_add", [](nb::handle payload, Output out, float weight) {
    return read_payload(payload, out, dither_check,
                        [&](Payload read, size_t n) { dither_add(read.data, read.nbytes, n, weight, out.data()); });
  }, "payload"_a, "out"_a.noconvert(), "weight"_a);
}

}  // namespace thinwire
