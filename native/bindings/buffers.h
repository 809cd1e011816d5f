// Contiguous bytes that Python lends for the length of a call.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels.h"

namespace thinwire {

namespace nb = nanobind;

inline std::optional<std::string> sentence(const Fault& fault) {
  if (!fault) return std::nullopt;
  if (fault.found == 0 && fault.expected == 0) return fault.what;
  return std::string(fault.what) + ": found " + std::to_string(fault.found) + ", expected " +
         std::to_string(fault.expected);
}

// A read-only view of any contiguous bytes; at first of none.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(nb::handle object) { view(object); }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  // Only once.
  void view(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

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

}  // namespace thinwire
