// How every function here calls a kernel: what is asked of arguments first, and the GIL that is dropped meanwhile.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/buffers.h"
#include "bindings/tensor.h"
#include "bytes.h"
#include "kernels.h"
#include "pool.h"

namespace thinwire {

using namespace nb::literals;

using Input = Flat<const float>;
using Output = Flat<float>;
using Indices = Flat<int32_t>;
using Objects = std::vector<nb::object>;

// What every kernel call runs under.
struct Unlocked {
  nb::gil_scoped_release gil;
  DefaultFloatMode mode;
};

// Arguments

inline void require(bool holds, const char* otherwise) {
  if (!holds) throw nb::value_error(otherwise);
}

inline void require_same(size_t a, size_t b) { require(a == b, "arrays differ in size"); }

template <class Array>
size_t numel(const Array& x) {
  require(x.size() <= kMaxNumel, "more than 2^31 - 1 elements");
  return x.size();
}

// Steps with other factors do nothing.
inline bool finite_factors(std::initializer_list<float> factors) {
  return std::all_of(factors.begin(), factors.end(), [](float x) { return std::isfinite(x); });
}

// Writing

using Written = std::optional<size_t>;
// What a step wrote, and the sum of squares of its gradient.
using Stepped = std::pair<Written, double>;
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

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

// The same for a step, whose write(data, squares) also says the squares.
template <class Write>
Stepped write_step(nb::handle out, size_t most_nbytes, Write write) {
  double squares = 0.0;
  const Written written = write_payload(out, most_nbytes, [&](uint8_t* payload) { return write(payload, squares); });
  return {written, squares};
}

// Reading

// check(data, nbytes, n), and if it finds nothing wrong, apply(payload, n).
template <class Check, class Apply>
std::optional<std::string> read_payload(nb::handle object, const Output& out, Check check, Apply apply) {
  const Bytes bytes(object);
  const size_t n = numel(out);
  Fault fault;
  {
    Unlocked unlocked;
    fault = check(bytes.data(), bytes.size(), n);
    if (!fault) apply(Payload{bytes.data(), bytes.size()}, n);
  }
  return sentence(fault);
}

template <class Check>
std::optional<std::string> check_payload(nb::handle object, size_t n, Check check) {
  const Bytes bytes(object);
  return sentence(check(bytes.data(), bytes.size(), n));
}

// Payloads of one tensor, which several workers have sent.
class Payloads {
 public:
  using Check = Fault (*)(const uint8_t* payload, size_t nbytes, size_t n);

  explicit Payloads(const Objects& objects) : bytes_(objects.size()), views_(objects.size()) {
    for (size_t i = 0; i < objects.size(); ++i) {
      bytes_[i].view(objects[i]);
      views_[i] = {bytes_[i].data(), bytes_[i].size()};
    }
  }
  // Those that the caller has checked already, and must have.
  Payloads(const Objects& objects, size_t n, Check check) : Payloads(objects) {
    require(!first_fault(n, check), "a payload is corrupt");
  }

  // What is wrong with the first of them that is.
  Fault first_fault(size_t n, Check check) const {
    for (const Payload& view : views_) {
      if (const Fault fault = check(view.data, view.nbytes, n)) return fault;
    }
    return {};
  }

  const Payload* data() const { return views_.data(); }
  size_t size() const { return views_.size(); }
  // For kernels that know how long each is.
  std::vector<const uint8_t*> starts() const {
    std::vector<const uint8_t*> starts;
    starts.reserve(size());
    for (const Payload& view : views_) starts.push_back(view.data);
    return starts;
  }

 private:
  std::vector<Bytes> bytes_;
  std::vector<Payload> views_;
};

// If there is nothing wrong with any of them, apply(payloads, n).
template <class Apply>
std::optional<std::string> read_payloads(const Objects& objects, const Output& out, Payloads::Check check, Apply apply) {
  const Payloads payloads(objects);
  const size_t n = numel(out);
  Fault fault;
  {
    Unlocked unlocked;
    fault = payloads.first_fault(n, check);
    if (!fault) apply(payloads, n);
  }
  return sentence(fault);
}

}  // namespace thinwire
