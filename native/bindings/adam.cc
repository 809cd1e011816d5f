#include "bindings/calls.h"
#include "bindings/families.h"

namespace thinwire {
namespace {

// The weights of the new value are rounded once, from double, as they are where one works with Python's numbers.
AdamMeans means_of(double beta1, double beta2) {
  return {static_cast<float>(1.0 - beta1), static_cast<float>(beta2), static_cast<float>(1.0 - beta2)};
}

}  // namespace

void bind_adam(nb::module_& m) {
  m.def("adam_step", [](Output param, Input gradient, Output exp_avg, Output exp_avg_sq, float decay, double beta1,
                        double beta2, float eps, float step_size, float correction2_sqrt, float l2) {
    const size_t n = numel(param);
    for (const size_t size : {gradient.size(), exp_avg.size(), exp_avg_sq.size()}) require_same(n, size);
    const AdamFactors factors{decay, eps, step_size, correction2_sqrt, l2};
    Unlocked unlocked;
    adam_step({param.data(), gradient.data(), exp_avg.data(), exp_avg_sq.data(), means_of(beta1, beta2), factors}, n);
  }, "param"_a.noconvert(), "gradient"_a.noconvert(), "exp_avg"_a.noconvert(), "exp_avg_sq"_a.noconvert(),
     nb::kw_only(), "decay"_a, "beta1"_a, "beta2"_a, "eps"_a, "step_size"_a, "correction2_sqrt"_a, "l2"_a);
  m.def("adam_momentum_step", [](Output param, Input momentum, Output exp_avg, Input exp_avg_sq, float decay, float eps,
                                 float step_size, float correction2_sqrt, float l2, float floor, size_t block, float limit,
                                 std::optional<nb::object> runs) {
    const size_t n = numel(param);
    for (const size_t size : {momentum.size(), exp_avg.size(), exp_avg_sq.size()}) require_same(n, size);
    require(floor >= 0.0f, "floor is negative or nan");
    require(limit >= 0.0f, "limit is negative or nan");
    require(block != 0 && block % kRun == 0, "block must be a multiple of 64");
    std::optional<Room> room;
    if (runs) room.emplace(*runs, sign_runs_nbytes(n));
    const AdamFactors factors{decay, eps, step_size, correction2_sqrt, l2};
    Unlocked unlocked;
    return adam_momentum_step({param.data(), momentum.data(), exp_avg.data(), exp_avg_sq.data(), factors, floor, block,
                               limit, room ? room->data() : nullptr}, n);
  }, "param"_a.noconvert(), "momentum"_a.noconvert(), "exp_avg"_a.noconvert(), "exp_avg_sq"_a.noconvert(),
     nb::kw_only(), "decay"_a, "eps"_a, "step_size"_a, "correction2_sqrt"_a, "l2"_a, "floor"_a, "block"_a, "limit"_a,
     "runs"_a = nb::none());
}

}  // namespace thinwire
