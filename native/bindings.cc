// The Python face of kernels.h: checks types, contiguity and sizes, and drops the GIL.
//
// Tensors are flat float32 CPU arrays and are never converted or copied. Encoders write to the front of `out`, which must
// have room for the largest payload and may not overlap what they read, and return the bytes written, or None where the
// input holds an inf or a nan. Readers return None, or a sentence that says why the payload is refused. Steps read their
// state from one tensor and write it `..._to` another, which may be the same, and also return the sum of squares of the
// gradient.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bytes.h"
#include "dispatch.h"
#include "kernels.h"
#include "memory.h"
#include "pool.h"
#include "tensor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace thinwire {
namespace {

using Input = Flat<const float>;
using Output = Flat<float>;
using Indices = Flat<int32_t>;

// What every kernel call runs under.
struct Unlocked {
  nb::gil_scoped_release gil;
  DefaultFloatMode mode;
};

void require(bool holds, const char* otherwise) {
  if (!holds) throw nb::value_error(otherwise);
}

void require_same(size_t a, size_t b) { require(a == b, "arrays differ in size"); }

template <class Array>
size_t numel(const Array& x) {
  require(x.size() <= kMaxNumel, "more than 2^31 - 1 elements");
  return x.size();
}

// A read-only view of any contiguous bytes.
class Bytes {
 public:
  explicit Bytes(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

std::optional<std::string> sentence(const Fault& fault) {
  if (!fault) return std::nullopt;
  if (fault.found == 0 && fault.expected == 0) return fault.what;
  return std::string(fault.what) + ": found " + std::to_string(fault.found) + ", expected " +
         std::to_string(fault.expected);
}

// Where an encoder writes: any contiguous bytes that may be written, at least `most_nbytes` of them.
class Room {
 public:
  Room(nb::handle object, size_t most_nbytes) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_WRITABLE) != 0) throw nb::python_error();
    const auto found = static_cast<size_t>(view_.len);
    if (found >= most_nbytes) return;
    PyBuffer_Release(&view_);
    const Fault fault{"bytes of out (at least)", found, most_nbytes};
    throw nb::value_error(sentence(fault)->c_str());
  }
  ~Room() { PyBuffer_Release(&view_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(view_.buf); }

 private:
  Py_buffer view_{};
};

using Written = std::optional<size_t>;

// What write(data) returns, which is 0 where it could not: every payload but that of no elements has bytes.
template <class Write>
Written write_payload(nb::handle out, size_t most_nbytes, Write write) {
  const Room room(out, most_nbytes);
  size_t written = 0;
  {
    Unlocked unlocked;
    written = write(room.data());
  }
  if (written == 0 && most_nbytes != 0) return std::nullopt;
  return written;
}

// A bytearray with nothing meaningful in it: zeros would be written only to be overwritten.
nb::object empty_bytearray(size_t nbytes) {
  nb::object array = nb::steal(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(nbytes)));
  if (!array.is_valid()) throw nb::python_error();
  return array;
}

// check(data, nbytes, n), and if it finds nothing wrong, apply(data, nbytes, n).
template <class Check, class Apply>
std::optional<std::string> read_payload(nb::handle payload, const Output& out, Check check, Apply apply) {
  const Bytes bytes(payload);
  const size_t n = numel(out);
  Fault fault;
  {
    Unlocked unlocked;
    fault = check(bytes.data(), bytes.size(), n);
    if (!fault) apply(bytes.data(), bytes.size(), n);
  }
  return sentence(fault);
}

using Payloads = std::vector<std::unique_ptr<Bytes>>;
using Check = Fault (*)(const uint8_t* payload, size_t nbytes, size_t n);

Payloads views_of(const std::vector<nb::object>& objects) {
  Payloads payloads;
  for (const nb::object& object : objects) payloads.push_back(std::make_unique<Bytes>(object));
  return payloads;
}

// What is wrong with the first of these payloads of n elements that is.
Fault first_fault(const Payloads& payloads, size_t n, Check check) {
  for (const auto& payload : payloads) {
    if (const Fault fault = check(payload->data(), payload->size(), n)) return fault;
  }
  return {};
}

// Payloads that the caller has checked already, and must have.
Payloads checked_payloads(const std::vector<nb::object>& objects, size_t n, Check check) {
  Payloads payloads = views_of(objects);
  require(!first_fault(payloads, n, check), "a payload is corrupt");
  return payloads;
}

std::vector<const uint8_t*> starts_of(const Payloads& payloads) {
  std::vector<const uint8_t*> starts;
  for (const auto& payload : payloads) starts.push_back(payload->data());
  return starts;
}

// If there is nothing wrong with any of them, apply(payloads, n).
template <class Apply>
std::optional<std::string> read_payloads(const std::vector<nb::object>& objects, const Output& out, Check check,
                                         Apply apply) {
  const Payloads payloads = views_of(objects);
  const size_t n = numel(out);
  Fault fault;
  {
    Unlocked unlocked;
    fault = first_fault(payloads, n, check);
    if (!fault) apply(payloads, n);
  }
  return sentence(fault);
}

struct Entries {
  explicit Entries(size_t capacity) : index(capacity), value(capacity) {}
  Scratch<uint32_t> index;
  Scratch<float> value;
  size_t count = 0;
  SparseList list() const { return {index.data(), value.data(), count}; }
};

Entries unpack(const uint8_t* payload, size_t nbytes, size_t n) {
  Entries entries(sparse_count(payload, nbytes));
  entries.count = sparse_count(payload, nbytes);
  sparse_unpack(payload, nbytes, n, entries.index.data(), entries.value.data());
  return entries;
}

Written topk_encode(Input x, size_t k, Select select, Values values, nb::handle out) {
  const size_t n = numel(x);
  require(k <= n, "k is larger than the array");
  return write_payload(out, sparse_max_nbytes(n, k, values), [&](uint8_t* payload) {
    Entries taken(k);
    taken.count = topk(x.data(), n, k, select, taken.index.data(), taken.value.data());
    return sparse_encode(taken.index.data(), taken.value.data(), taken.count, n, values, payload);
  });
}

// Encodes what was taken out of `residual` and puts back what the coding of the values lost.
size_t encode_taken(Entries& taken, size_t n, Values values, float* residual, uint8_t* payload) {
  Scratch<float> wanted(taken.count);
  std::copy_n(taken.value.data(), taken.count, wanted.data());
  const size_t nbytes = sparse_encode(taken.index.data(), taken.value.data(), taken.count, n, values, payload);
  for (size_t i = 0; i < taken.count; ++i) wanted[i] -= taken.value[i];
  scatter(taken.index.data(), wanted.data(), taken.count, residual);
  return nbytes;
}

// Kernels fill the last run with zeros, and zero times infinity would be something to take there.
bool finite_factors(std::initializer_list<float> factors) {
  return std::all_of(factors.begin(), factors.end(), [](float x) { return std::isfinite(x); });
}

// What a step wrote, and the sum of squares of its gradient.
using Stepped = std::pair<Written, double>;
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

Stepped residual_topk_encode(Output gradient, Input residual, Output residual_to, size_t k, Select select, Values values,
                             float gain, float keep, nb::handle out, bool clear) {
  const size_t n = numel(gradient);
  require_same(n, residual.size());
  require_same(n, residual_to.size());
  require(k <= n, "k is larger than the array");
  if (!finite_factors({gain, keep})) return {std::nullopt, kUnknown};
  double squares = 0.0;
  const Written written = write_payload(out, sparse_max_nbytes(n, k, values), [&](uint8_t* payload) {
    Entries taken(k);
    taken.count = residual_topk({gradient.data(), clear}, n, k, select, {gain, keep}, {residual.data(), residual_to.data()},
                                taken.index.data(), taken.value.data(), squares);
    return encode_taken(taken, n, values, residual_to.data(), payload);
  });
  return {written, squares};
}

Stepped dgc_topk_encode(Output gradient, Input velocity, Output velocity_to, Input residual, Output residual_to, size_t k,
                        Select select, Values values, float gain, float keep, float momentum, bool nesterov, bool mask,
                        nb::handle out, bool clear) {
  const size_t n = numel(gradient);
  for (const size_t size : {residual.size(), residual_to.size(), velocity.size(), velocity_to.size()}) {
    require_same(n, size);
  }
  require(k <= n, "k is larger than the array");
  if (!finite_factors({gain, keep, momentum})) return {std::nullopt, kUnknown};
  double squares = 0.0;
  const Written written = write_payload(out, sparse_max_nbytes(n, k, values), [&](uint8_t* payload) {
    Entries taken(k);
    taken.count = dgc_topk({gradient.data(), clear}, n, k, select, {gain, keep}, {momentum, nesterov, mask},
                           {velocity.data(), velocity_to.data()}, {residual.data(), residual_to.data()},
                           taken.index.data(), taken.value.data(), squares);
    return encode_taken(taken, n, values, residual_to.data(), payload);
  });
  return {written, squares};
}

// Room for any list of float32 values: with parameter 0 a Rice stream has at most n bits, and the shortest is taken.
size_t any_list_nbytes(size_t n) { return sparse_max_nbytes(n, n, Values::kFloat32); }

Written nonzero_encode(Input x, nb::handle out) {
  const size_t n = numel(x);
  return write_payload(out, any_list_nbytes(n), [&](uint8_t* payload) {
    const size_t count = nonzero(x.data(), n, nullptr, nullptr, 0);
    Entries entries(count);
    // Not more than were counted, even if somebody changes x meanwhile.
    entries.count = std::min(count, nonzero(x.data(), n, entries.index.data(), entries.value.data(), count));
    return sparse_encode(entries.index.data(), entries.value.data(), entries.count, n, Values::kFloat32, payload);
  });
}

// The weighted sum of sparse payloads.
Entries merge(const Payloads& payloads, size_t n, float weight) {
  std::vector<Entries> lists;
  std::vector<SparseList> views;
  size_t total = 0;
  for (const auto& payload : payloads) {
    lists.push_back(unpack(payload->data(), payload->size(), n));
    views.push_back(lists.back().list());
    total += lists.back().count;
  }
  Entries merged(total);
  merged.count = sparse_merge(views.data(), views.size(), weight, merged.index.data(), merged.value.data());
  return merged;
}

// The weighted sum of sparse payloads as one sparse payload.
Written sparse_merge_encode(const std::vector<nb::object>& payloads, size_t n, float weight, nb::handle out) {
  require(n <= kMaxNumel, "more than 2^31 - 1 elements");
  const Payloads pushes = checked_payloads(payloads, n, sparse_check);
  return write_payload(out, any_list_nbytes(n), [&](uint8_t* payload) {
    Entries merged = merge(pushes, n, weight);
    return sparse_encode(merged.index.data(), merged.value.data(), merged.count, n, Values::kFloat32, payload);
  });
}

// What steps have overwritten in a tensor, so that they can be undone: for those that write to few places.
class UndoLog {
 public:
  void clear() {
    index_.clear();
    value_.clear();
  }
  void note(SparseList overwritten) {
    index_.insert(index_.end(), overwritten.index, overwritten.index + overwritten.count);
    value_.insert(value_.end(), overwritten.value, overwritten.value + overwritten.count);
  }
  // The newest first: a place may be there twice.
  void undo(Output x) {
    for (const uint32_t i : index_) require(i < x.size(), "the array is not the one that was changed");
    for (size_t i = index_.size(); i-- > 0;) x.data()[index_[i]] = value_[i];
    clear();
  }

 private:
  std::vector<uint32_t> index_;
  std::vector<float> value_;
};

// residual_topk of the weighted sum of sparse payloads, in place. Nothing happens if the squares of that sum exceed
// `most_squares`. What is overwritten is added to `log`, if there is one.
Written topk_sum_step_encode(const std::vector<nb::object>& payloads, float weight, Output residual, size_t k,
                             Select select, Values values, double most_squares, UndoLog* log, nb::handle out) {
  const size_t n = numel(residual);
  require(k <= n, "k is larger than the array");
  const Payloads pushes = checked_payloads(payloads, n, sparse_check);
  return write_payload(out, sparse_max_nbytes(n, k, values), [&](uint8_t* payload) -> size_t {
    const Entries gradient = merge(pushes, n, weight);
    if (!(sum_squares(gradient.value.data(), gradient.count) <= most_squares)) return 0;
    Entries taken(k);
    Scratch<float> before(gradient.count);
    taken.count = residual_topk_of_list(gradient.list(), n, k, select, residual.data(), before.data(),
                                        taken.index.data(), taken.value.data());
    if (log != nullptr) {
      log->note({gradient.index.data(), before.data(), gradient.count});
      log->note(taken.list());
    }
    return encode_taken(taken, n, values, residual.data(), payload);
  });
}

void require_block(size_t block) { require(block % kRun == 0, "block is not a multiple of 64"); }

// The lazy residual of a tensor of n elements.
void require_lazy(size_t n, size_t block, const Input& wanted, const Output& wanted_to, const Input& scales,
                  const Output& scales_to) {
  require_block(block);
  require_same(n, wanted.size());
  require_same(n, wanted_to.size());
  require_same(sign_scales(n, block), scales.size());
  require_same(sign_scales(n, block), scales_to.size());
}

Stepped onebit_step_encode(Input gradient, Input wanted, Output wanted_to, Input scales, Output scales_to,
                           SignScale scale, size_t block, float gain, float keep, nb::handle out) {
  const size_t n = numel(gradient);
  require_lazy(n, block, wanted, wanted_to, scales, scales_to);
  if (!finite_factors({gain, keep})) return {std::nullopt, kUnknown};
  double squares = 0.0;
  const Written written = write_payload(out, onebit_max_nbytes(n, block), [&](uint8_t* payload) {
    return onebit_step(gradient.data(), n, {gain, keep}, scale, block, {wanted.data(), wanted_to.data()},
                       {scales.data(), scales_to.data()}, payload, squares);
  });
  return {written, squares};
}

Written onebit_sum_step_encode(const std::vector<nb::object>& payloads, float weight, Input wanted, Output wanted_to,
                               Input scales, Output scales_to, SignScale scale, size_t block, float keep,
                               nb::handle out) {
  const size_t n = numel(wanted);
  require_lazy(n, block, wanted, wanted_to, scales, scales_to);
  const Payloads pushes = checked_payloads(payloads, n, onebit_check);
  const std::vector<const uint8_t*> data = starts_of(pushes);
  if (!finite_factors({weight, keep})) return std::nullopt;
  return write_payload(out, onebit_max_nbytes(n, block), [&](uint8_t* payload) {
    return onebit_sum_step(data.data(), data.size(), weight, n, keep, scale, block, {wanted.data(), wanted_to.data()},
                           {scales.data(), scales_to.data()}, payload);
  });
}

Fault float32_check(const uint8_t*, size_t nbytes, size_t n) {
  return nbytes == 4 * n ? Fault{} : Fault{"nbytes", nbytes, 4 * n};
}

void bind_dense(nb::module_& m) {
  nb::enum_<Half>(m, "Half").value("FLOAT16", Half::kFloat16).value("BFLOAT16", Half::kBFloat16);
  m.def("float32_add", [](nb::handle payload, Output out, float weight) {
    return read_payload(payload, out, float32_check,
                        [&](const uint8_t* data, size_t, size_t n) { float32_add(data, n, weight, out.data()); });
  }, "payload"_a, "out"_a.noconvert(), "weight"_a);
  m.def("float32_sum", [](const std::vector<nb::object>& payloads, float weight, Output out) {
    return read_payloads(payloads, out, float32_check, [&](const Payloads& all, size_t n) {
      float32_sum(starts_of(all).data(), all.size(), n, weight, out.data());
    });
  }, "payloads"_a, "weight"_a, "out"_a.noconvert());
  m.def("half_encode", [](Half kind, Input x, nb::handle out) {
    const size_t n = numel(x);
    return write_payload(out, 2 * n, [&](uint8_t* payload) { return half_encode(kind, x.data(), n, payload) ? 2 * n : 0; });
  }, "kind"_a, "x"_a.noconvert(), "out"_a);
  m.def("half_decode", [](Half kind, nb::handle payload, Output out) {
    return read_payload(
        payload, out, [kind](const uint8_t* data, size_t nbytes, size_t n) { return half_check(kind, data, nbytes, n); },
        [&](const uint8_t* data, size_t, size_t n) { half_decode(kind, data, n, out.data()); });
  }, "kind"_a, "payload"_a, "out"_a.noconvert());
  m.def("half_add", [](Half kind, nb::handle payload, Output out, float weight) {
    return read_payload(
        payload, out, [kind](const uint8_t* data, size_t nbytes, size_t n) { return half_check(kind, data, nbytes, n); },
        [&](const uint8_t* data, size_t, size_t n) { half_add(kind, data, n, weight, out.data()); });
  }, "kind"_a, "payload"_a, "out"_a.noconvert(), "weight"_a);
}

void bind_sign(nb::module_& m) {
  nb::enum_<SignScale>(m, "SignScale").value("L1", SignScale::kL1).value("L2", SignScale::kL2);
  m.def("onebit_max_nbytes", &onebit_max_nbytes, "numel"_a, "block"_a);
  m.def("onebit_scales", &sign_scales, "numel"_a, "block"_a);
  m.def("onebit_encode", [](Input x, SignScale scale, size_t block, nb::handle out) {
    const size_t n = numel(x);
    require_block(block);
    return write_payload(out, onebit_max_nbytes(n, block),
                         [&](uint8_t* payload) { return onebit_encode(x.data(), n, scale, block, payload); });
  }, "x"_a.noconvert(), "scale"_a, "block"_a, "out"_a);
  m.def("onebit_check", [](nb::handle payload, size_t n) {
    const Bytes bytes(payload);
    return sentence(onebit_check(bytes.data(), bytes.size(), n));
  }, "payload"_a, "numel"_a);
  m.def("onebit_decode", [](nb::handle payload, Output out) {
    return read_payload(payload, out, onebit_check,
                        [&](const uint8_t* data, size_t, size_t n) { onebit_decode(data, n, out.data()); });
  }, "payload"_a, "out"_a.noconvert());
  m.def("onebit_add", [](nb::handle payload, Output out, float weight) {
    return read_payload(payload, out, onebit_check,
                        [&](const uint8_t* data, size_t, size_t n) { onebit_add(data, n, weight, out.data()); });
  }, "payload"_a, "out"_a.noconvert(), "weight"_a);
  m.def("onebit_sum", [](const std::vector<nb::object>& payloads, float weight, Output out) {
    return read_payloads(payloads, out, onebit_check, [&](const Payloads& all, size_t n) {
      onebit_sum(starts_of(all).data(), all.size(), n, weight, out.data());
    });
  }, "payloads"_a, "weight"_a, "out"_a.noconvert());
  m.def("onebit_step", &onebit_step_encode, "gradient"_a.noconvert(), "wanted"_a.noconvert(),
        "wanted_to"_a.noconvert(), "scales"_a.noconvert(), "scales_to"_a.noconvert(), "scale"_a, "block"_a, "gain"_a,
        "keep"_a, "out"_a);
  m.def("onebit_sum_step", &onebit_sum_step_encode, "payloads"_a, "weight"_a, "wanted"_a.noconvert(),
        "wanted_to"_a.noconvert(), "scales"_a.noconvert(), "scales_to"_a.noconvert(), "scale"_a, "block"_a, "keep"_a,
        "out"_a);
  m.def("onebit_settle", [](Output wanted, Input scales, size_t block) {
    const size_t n = numel(wanted);
    require_block(block);
    require_same(sign_scales(n, block), scales.size());
    Unlocked unlocked;
    onebit_settle(wanted.data(), n, block, scales.data());
  }, "wanted"_a.noconvert(), "scales"_a.noconvert(), "block"_a);
}

void bind_sparse(nb::module_& m) {
  nb::enum_<Select>(m, "Select").value("SAMPLED", Select::kSampled).value("RADIX", Select::kRadix);
  nb::enum_<Values>(m, "Values")
      .value("FLOAT32", Values::kFloat32)
      .value("FLOAT16", Values::kFloat16)
      .value("INT8", Values::kInt8);
  m.def("sparse_max_nbytes", &sparse_max_nbytes, "numel"_a, "count"_a, "values"_a);
  m.def("topk_encode", &topk_encode, "x"_a.noconvert(), "k"_a, "select"_a, "values"_a, "out"_a);
  m.def("residual_topk", &residual_topk_encode, "gradient"_a.noconvert(), "residual"_a.noconvert(),
        "residual_to"_a.noconvert(), "k"_a, "select"_a, "values"_a, "gain"_a, "keep"_a, "out"_a, "clear"_a = false);
  m.def("dgc_topk", &dgc_topk_encode, "gradient"_a.noconvert(), "velocity"_a.noconvert(), "velocity_to"_a.noconvert(),
        "residual"_a.noconvert(), "residual_to"_a.noconvert(), "k"_a, "select"_a, "values"_a, "gain"_a, "keep"_a,
        "momentum"_a, "nesterov"_a, "mask"_a, "out"_a, "clear"_a = false);
  nb::class_<UndoLog>(m, "UndoLog")
      .def(nb::init<>())
      .def("clear", &UndoLog::clear)
      .def("undo", &UndoLog::undo, "x"_a.noconvert());
  m.def("topk_sum_step", &topk_sum_step_encode, "payloads"_a, "weight"_a, "residual"_a.noconvert(), "k"_a, "select"_a,
        "values"_a, "most_squares"_a, "log"_a.none(), "out"_a);
  m.def("nonzero_encode", &nonzero_encode, "x"_a.noconvert(), "out"_a);
  m.def("sparse_check", [](nb::handle payload, size_t n) {
    const Bytes bytes(payload);
    return sentence(sparse_check(bytes.data(), bytes.size(), n));
  }, "payload"_a, "numel"_a);
  m.def("sparse_merge", &sparse_merge_encode, "payloads"_a, "numel"_a, "weight"_a, "out"_a);
  m.def("sparse_decode", [](nb::handle payload, Output out) {
    return read_payload(payload, out, sparse_check, [&](const uint8_t* data, size_t nbytes, size_t n) {
      const Entries entries = unpack(data, nbytes, n);
      clear(out.data(), n);
      scatter(entries.index.data(), entries.value.data(), entries.count, out.data());
    });
  }, "payload"_a, "out"_a.noconvert());
  m.def("sparse_add", [](nb::handle payload, Output out, float weight) {
    return read_payload(payload, out, sparse_check, [&](const uint8_t* data, size_t nbytes, size_t n) {
      const Entries entries = unpack(data, nbytes, n);
      scatter_add(entries.index.data(), entries.value.data(), entries.count, weight, out.data());
    });
  }, "payload"_a, "out"_a.noconvert(), "weight"_a);
  m.def("sparse_sum", [](const std::vector<nb::object>& payloads, float weight, Output out) {
    return read_payloads(payloads, out, sparse_check, [&](const Payloads& all, size_t n) {
      clear(out.data(), n);
      for (const auto& payload : all) {
        const Entries entries = unpack(payload->data(), payload->size(), n);
        scatter_add(entries.index.data(), entries.value.data(), entries.count, weight, out.data());
      }
    });
  }, "payloads"_a, "weight"_a, "out"_a.noconvert());
  m.def("sampled_threshold", [](Input x, double ratio, uint64_t seed) {
    return float_from_bits(sampled_threshold(x.data(), numel(x), ratio, seed));
  }, "x"_a.noconvert(), "ratio"_a, "seed"_a);
  m.def("random_indices", [](uint64_t seed, size_t n, Indices out) {
    require(n <= kMaxNumel && out.size() <= n, "more indices than elements");
    Unlocked unlocked;
    random_indices(seed, n, out.size(), reinterpret_cast<uint32_t*>(out.data()));
  }, "seed"_a, "numel"_a, "out"_a.noconvert());
}

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
    return read_payload(payload, out, dither_check, [&](const uint8_t* data, size_t nbytes, size_t n) {
      dither_decode(data, nbytes, n, out.data());
    });
  }, "payload"_a, "out"_a.noconvert());
  m.def("dither_add", [](nb::handle payload, Output out, float weight) {
    return read_payload(payload, out, dither_check, [&](const uint8_t* data, size_t nbytes, size_t n) {
      dither_add(data, nbytes, n, weight, out.data());
    });
  }, "payload"_a, "out"_a.noconvert(), "weight"_a);
}

template <class Result>
auto reduction(Result (*reduce)(const float*, size_t)) {
  return [reduce](Input x) {
    const size_t n = numel(x);
    Unlocked unlocked;
    return reduce(x.data(), n);
  };
}

void bind_rest(nb::module_& m) {
  m.def("all_finite", reduction(all_finite), "x"_a.noconvert());
  m.def("sum_abs", reduction(sum_abs), "x"_a.noconvert());
  m.def("sum_squares", reduction(sum_squares), "x"_a.noconvert());
  m.def("max_abs", reduction(max_abs), "x"_a.noconvert());
  m.def("empty_bytearray", &empty_bytearray, "nbytes"_a);
  m.def("prefer_huge_pages", [](Output x) { prefer_huge_pages(x.data(), x.size() * sizeof(float)); }, "x"_a.noconvert());
  m.def("crc32c", [](nb::handle data, uint32_t crc) {
    const Bytes bytes(data);
    Unlocked unlocked;
    return crc32c(bytes.data(), bytes.size(), crc);
  }, "data"_a, "crc"_a = 0);
  m.def("isa", [] { return kernels().name; });
  m.def("set_isa", [](const std::string& name) { return choose_kernels(name.c_str()); }, "name"_a);
  m.def("can_run", [](const std::string& name) { return can_run(name.c_str()); }, "name"_a);
  m.def("threads", &thread_count);
  m.def("set_threads", &set_thread_count, "count"_a);
}

// THINWIRE_ISA names the instruction set, THINWIRE_THREADS the threads per kernel; without it, half of the processors,
// at most 8: the other half is training.
void read_environment() {
  const char* isa = std::getenv("THINWIRE_ISA");
  if (isa != nullptr && *isa != '\0' && !choose_kernels(isa)) {
    throw nb::import_error("THINWIRE_ISA must be scalar, avx2, avx512 or neon, and one that this processor has");
  }
  const char* threads = std::getenv("THINWIRE_THREADS");
  const size_t half = std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 8);
  if (threads == nullptr || *threads == '\0') return set_thread_count(half);
  char* end = nullptr;
  const unsigned long count = std::strtoul(threads, &end, 10);
  if (*end != '\0' || count < 1 || count > 1024) throw nb::import_error("THINWIRE_THREADS must be 1 to 1024");
  set_thread_count(count);
}

}  // namespace
}  // namespace thinwire

NB_MODULE(_native, m) {
  // Background threads are daemons: what they hold is still there when Python ends.
  nb::set_leak_warnings(false);
  thinwire::read_environment();
  thinwire::Torch::instance();
  thinwire::bind_dense(m);
  thinwire::bind_sign(m);
  thinwire::bind_sparse(m);
  thinwire::bind_dither(m);
  thinwire::bind_rest(m);
}
