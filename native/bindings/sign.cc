#include "bindings/calls.h"
#include "bindings/families.h"

namespace thinwire {
namespace {

void require_block(size_t block) { require(block % kRun == 0, "block is not a multiple of 64"); }

void require_stretch(float stretch) { require(0.0f < stretch && stretch < 2.0f, "stretch is not between 0 and 2"); }

// The lazy residual of a tensor, before and after a step.
struct Lazy {
  const Input& wanted;
  const Output& wanted_to;
  const Input& scales;
  const Output& scales_to;

  void require_sizes(size_t n, size_t block) const {
    require_block(block);
    require_same(n, wanted.size());
    require_same(n, wanted_to.size());
    require_same(sign_scales(n, block), scales.size());
    require_same(sign_scales(n, block), scales_to.size());
  }
  Advance advance_wanted() const { return {wanted.data(), wanted_to.data()}; }
  Advance advance_scales() const { return {scales.data(), scales_to.data()}; }
};

Stepped step_to(Input gradient, Input wanted, Output wanted_to, Input scales, Output scales_to, SignScale scale,
                size_t block, float gain, float keep, nb::handle out, std::optional<Input> momentum, float factor,
                float stretch, std::optional<nb::object> runs) {
  const size_t n = numel(gradient);
  const Lazy lazy{wanted, wanted_to, scales, scales_to};
  lazy.require_sizes(n, block);
  require_stretch(stretch);
  if (momentum) require_same(n, momentum->size());
  if (!finite_factors({gain, keep, factor})) return {std::nullopt, kUnknown};
  Bytes sign_runs;
  if (runs) {
    sign_runs.view(*runs);
    require_same(sign_runs_nbytes(n), sign_runs.size());
  }
  const Carried carried{momentum ? momentum->data() : nullptr, factor, sign_runs.data()};
  return write_step(out, onebit_max_nbytes(n, block), [&](uint8_t* payload, double& squares) {
    return onebit_step(gradient.data(), n, {gain, keep}, {scale, stretch}, block, lazy.advance_wanted(),
                       lazy.advance_scales(), payload, squares, carried);
  });
}

Written sum_step_to(const Objects& objects, float weight, Input wanted, Output wanted_to, Input scales,
                    Output scales_to, SignScale scale, size_t block, float keep, nb::handle out, float stretch) {
  const size_t n = numel(wanted);
  const Lazy lazy{wanted, wanted_to, scales, scales_to};
  lazy.require_sizes(n, block);
  require_stretch(stretch);
  const Payloads pushes(objects, n, onebit_check);
  if (!finite_factors({weight, keep})) return std::nullopt;
  return write_payload(out, onebit_max_nbytes(n, block), [&](uint8_t* payload) {
    return onebit_sum_step(pushes.starts().data(), pushes.size(), weight, n, keep, {scale, stretch}, block,
                           lazy.advance_wanted(), lazy.advance_scales(), payload);
  });
}

void bind_payloads(nb::module_& m) {
  m.def("onebit_encode", [](Input x, SignScale scale, size_t block, nb::handle out, float stretch) {
    const size_t n = numel(x);
    require_block(block);
    require_stretch(stretch);
    return write_payload(out, onebit_max_nbytes(n, block),
                         [&](uint8_t* payload) { return onebit_encode(x.data(), n, {scale, stretch}, block, payload); });
  }, "x"_a.noconvert(), "scale"_a, "block"_a, "out"_a, "stretch"_a = 1.0f);
  m.def("onebit_check", [](nb::handle payload, size_t n) { return check_payload(payload, n, onebit_check); },
        "payload"_a, "numel"_a);
  m.def("onebit_decode", [](nb::handle payload, Output out) {
    return read_payload(payload, out, onebit_check,
                        [&](Payload read, size_t n) { onebit_decode(read.data, n, out.data()); });
  }, "payload"_a, "out"_a.noconvert());
  m.def("onebit_add", [](nb::handle payload, Output out, float weight) {
    return read_payload(payload, out, onebit_check,
                        [&](Payload read, size_t n) { onebit_add(read.data, n, weight, out.data()); });
  }, "payload"_a, "out"_a.noconvert(), "weight"_a);
  m.def("onebit_sum", [](const Objects& payloads, float weight, Output out) {
    return read_payloads(payloads, out, onebit_check, [&](const Payloads& all, size_t n) {
      onebit_sum(all.starts().data(), all.size(), n, weight, out.data());
    });
  }, "payloads"_a, "weight"_a, "out"_a.noconvert());
}

void bind_steps(nb::module_& m) {
  m.def("onebit_step", &step_to, "gradient"_a.noconvert(), "wanted"_a.noconvert(), "wanted_to"_a.noconvert(),
        "scales"_a.noconvert(), "scales_to"_a.noconvert(), "scale"_a, "block"_a, "gain"_a, "keep"_a, "out"_a,
        "momentum"_a.noconvert() = nb::none(), "factor"_a = 0.0f, "stretch"_a = 1.0f, "runs"_a = nb::none());
  m.def("onebit_sum_step", &sum_step_to, "payloads"_a, "weight"_a, "wanted"_a.noconvert(), "wanted_to"_a.noconvert(),
        "scales"_a.noconvert(), "scales_to"_a.noconvert(), "scale"_a, "block"_a, "keep"_a, "out"_a, "stretch"_a = 1.0f);
  m.def("onebit_settle", [](Output wanted, Input scales, size_t block) {
    const size_t n = numel(wanted);
    require_block(block);
    require_same(sign_scales(n, block), scales.size());
    Unlocked unlocked;
    onebit_settle(wanted.data(), n, block, scales.data());
  }, "wanted"_a.noconvert(), "scales"_a.noconvert(), "block"_a);
}

void bind_sign_runs(nb::module_& m) {
  m.def("sign_runs_nbytes", &sign_runs_nbytes, "numel"_a);
  m.def("sign_runs_agree", [](nb::handle runs, Input x) {
    const Bytes bytes(runs);
    const size_t n = numel(x);
    require_same(sign_runs_nbytes(n), bytes.size());
    return sign_runs_agree(bytes.data(), x.data(), n);
  }, "runs"_a, "x"_a.noconvert());
}

}  // namespace

void bind_sign(nb::module_& m) {
  nb::enum_<SignScale>(m, "SignScale").value("L1", SignScale::kL1).value("L2", SignScale::kL2);
  m.def("onebit_max_nbytes", &onebit_max_nbytes, "numel"_a, "block"_a);
  m.def("onebit_scales", &sign_scales, "numel"_a, "block"_a);
  bind_payloads(m);
  bind_steps(m);
  bind_sign_runs(m);
}

}  // namespace thinwire
