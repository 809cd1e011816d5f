#include "bindings/calls.h"
#include "bindings/families.h"
#include "undo.h"

namespace thinwire {
namespace {

void require_k(size_t k, size_t n) { require(k <= n, "k is larger than the array"); }

Written topk_to(Input x, size_t k, Select select, Values values, nb::handle out) {
  const size_t n = numel(x);
  require_k(k, n);
  return write_payload(out, sparse_max_nbytes(n, k, values),
                       [&](uint8_t* payload) { return topk_encode(x.data(), n, {k, select, values}, payload); });
}

Stepped residual_topk_to(Output gradient, Input residual, Output residual_to, size_t k, Select select, Values values,
                         float gain, float keep, nb::handle out, bool clear) {
  const size_t n = numel(gradient);
  require_same(n, residual.size());
  require_same(n, residual_to.size());
  require_k(k, n);
  if (!finite_factors({gain, keep})) return {std::nullopt, kUnknown};
  const ResidualTopK step{
      {gradient.data(), clear}, {residual.data(), residual_to.data()}, {gain, keep}, {k, select, values}};
  return write_step(out, sparse_max_nbytes(n, k, values), [&](uint8_t* payload, double& squares) {
    return residual_topk_encode(step, n, payload, squares);
  });
}

Stepped write_dgc(const DgcTopK& step, size_t n, nb::handle out) {
  const auto& [gradient, residual, gains, coding] = step.rest;
  require_k(coding.k, n);
  if (!finite_factors({gains.gain, gains.keep, step.momentum.momentum})) return {std::nullopt, kUnknown};
  return write_step(out, sparse_max_nbytes(n, coding.k, coding.values),
                    [&](uint8_t* payload, double& squares) { return dgc_topk_encode(step, n, payload, squares); });
}

Written topk_sum_step_to(const Objects& objects, float weight, Output residual, size_t k, Select select, Values values,
                         double most_squares, UndoLog* log, nb::handle out) {
  const size_t n = numel(residual);
  require_k(k, n);
  const Payloads pushes(objects, n, sparse_check);
  const TopKSumStep step{pushes.data(), pushes.size(), weight, residual.data(), {k, select, values}, most_squares, log};
  return write_payload(out, sparse_max_nbytes(n, k, values),
                       [&](uint8_t* payload) { return topk_sum_step_encode(step, n, payload); });
}

// Arguments as Python gives them, one by one.
void bind_dgc(nb::module_& m) {
  m.def("dgc_topk", [](Output gradient, Input velocity, Output velocity_to, Input residual, Output residual_to, size_t k,
                       Select select, Values values, float gain, float keep, float momentum, bool nesterov, bool mask,
                       nb::handle out, bool clear) {
    const size_t n = numel(gradient);
    for (const size_t size : {residual.size(), residual_to.size(), velocity.size(), velocity_to.size()}) {
      require_same(n, size);
    }
    const ResidualTopK rest{
        {gradient.data(), clear}, {residual.data(), residual_to.data()}, {gain, keep}, {k, select, values}};
    return write_dgc({rest, {velocity.data(), velocity_to.data()}, {momentum, nesterov, mask}}, n, out);
  }, "gradient"_a.noconvert(), "velocity"_a.noconvert(), "velocity_to"_a.noconvert(), "residual"_a.noconvert(),
     "residual_to"_a.noconvert(), "k"_a, "select"_a, "values"_a, "gain"_a, "keep"_a, "momentum"_a, "nesterov"_a,
     "mask"_a, "out"_a, "clear"_a = false);
}

void bind_undo_log(nb::module_& m) {
  nb::class_<UndoLog>(m, "UndoLog")
      .def(nb::init<>())
      .def("clear", &UndoLog::clear)
      .def("undo", [](UndoLog& log, Output x) {
        require(log.undo(x.data(), x.size()), "the array is not the one that was changed");
      }, "x"_a.noconvert());
}

}  // namespace

void bind_topk(nb::module_& m) {
  nb::enum_<Select>(m, "Select").value("SAMPLED", Select::kSampled).value("RADIX", Select::kRadix);
  nb::enum_<Values>(m, "Values")
      .value("FLOAT32", Values::kFloat32)
      .value("FLOAT16", Values::kFloat16)
      .value("INT8", Values::kInt8);
  bind_undo_log(m);
  bind_dgc(m);
  m.def("topk_encode", &topk_to, "x"_a.noconvert(), "k"_a, "select"_a, "values"_a, "out"_a);
  m.def("residual_topk", &residual_topk_to, "gradient"_a.noconvert(), "residual"_a.noconvert(),
        "residual_to"_a.noconvert(), "k"_a, "select"_a, "values"_a, "gain"_a, "keep"_a, "out"_a, "clear"_a = false);
  m.def("topk_sum_step", &topk_sum_step_to, "payloads"_a, "weight"_a, "residual"_a.noconvert(), "k"_a, "select"_a,
        "values"_a, "most_squares"_a, "log"_a.none(), "out"_a);
  m.def("sampled_threshold", [](Input x, double ratio, uint64_t seed) {
    return float_from_bits(sampled_threshold(x.data(), numel(x), ratio, seed));
  }, "x"_a.noconvert(), "ratio"_a, "seed"_a);
}

}  // namespace thinwire
