#include <algorithm>
#include <cstdlib>
#include <thread>

#include "bindings/calls.h"
#include "bindings/families.h"
#include "dispatch.h"
#include "memory.h"
#include "pool.h"

namespace thinwire {
namespace {

void read_instruction_set() {
  const char* isa = std::getenv("THINWIRE_ISA");
  if (isa == nullptr || *isa == '\0' || choose_kernels(isa)) return;
  throw nb::import_error("THINWIRE_ISA must be scalar, avx2, avx512 or neon, and one that this processor has");
}

// Threads per kernel; without the variable, half of the processors, at most 8: the other half is training.
void read_threads() {
  const char* threads = std::getenv("THINWIRE_THREADS");
  const size_t half = std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 8);
  if (threads == nullptr || *threads == '\0') return set_thread_count(half);
  char* end = nullptr;
  const unsigned long count = std::strtoul(threads, &end, 10);
  if (*end != '\0' || count < 1 || count > 1024) throw nb::import_error("THINWIRE_THREADS must be 1 to 1024");
  set_thread_count(count);
}

// A bytearray with nothing meaningful in it: zeros would be written only to be overwritten.
nb::object empty_bytearray(size_t nbytes) {
  nb::object array = nb::steal(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(nbytes)));
  if (!array.is_valid()) throw nb::python_error();
  return array;
}

}  // namespace

void bind_machine(nb::module_& m) {
  read_instruction_set();
  read_threads();
  m.def("isa", [] { return kernels().name; });
  m.def("set_isa", [](const std::string& name) { return choose_kernels(name.c_str()); }, "name"_a);
  m.def("can_run", [](const std::string& name) { return can_run(name.c_str()); }, "name"_a);
  m.def("threads", &thread_count);
  m.def("set_threads", &set_thread_count, "count"_a);
  m.def("empty_bytearray", &empty_bytearray, "nbytes"_a);
  m.def("prefer_huge_pages", [](Output x) { prefer_huge_pages(x.data(), x.size() * sizeof(float)); }, "x"_a.noconvert());
}

}  // namespace thinwire
