// Flat arrays that Python gives to a kernel.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace thinwire {

namespace nb = nanobind;

// What is asked of a torch tensor. The DLPack way is a Python function of 3 us, ten times for each gradient of a step:
// that is more than kernels take for a small one.
class Torch {
 public:
  // Imports torch when it is called first.
  static const Torch& instance() {
    // Leaked: nothing may be freed when the interpreter is already gone.
    static const auto* torch = new Torch();
    return *torch;
  }

  bool is_tensor(PyObject* object) const { return Py_TYPE(object) == tensor_type_; }

  // Whether it is a flat, contiguous CPU tensor of this type; then also its address, which may be 0 for no elements.
  template <class T>
  bool flat(PyObject* tensor, void** data, size_t* size) const noexcept {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, int32_t>);
    const nb::object& dtype = std::is_same_v<T, float> ? float32_ : int32_;
    const bool fits = is(tensor, dtype_, dtype) && is(tensor, is_cpu_, true_) && number(tensor, dim_) == 1 &&
                      says(tensor, is_contiguous_, true_) && says(tensor, is_neg_, false_);
    if (!fits) return false;
    *size = number(tensor, numel_);
    *data = reinterpret_cast<void*>(number(tensor, data_ptr_));
    return *data != nullptr || *size == 0;
  }

 private:
  Torch() {
    const auto torch = nb::module_::import_("torch");
    tensor_type_ = reinterpret_cast<PyTypeObject*>(nb::object(torch.attr("Tensor")).release().ptr());
    float32_ = torch.attr("float32");
    int32_ = torch.attr("int32");
  }

  static nb::object name(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

  static nb::object known(PyObject* found) {
    if (found == nullptr) PyErr_Clear();
    return nb::steal(found);
  }

  static bool is(PyObject* tensor, const nb::object& name, const nb::object& expected) {
    return known(PyObject_GetAttr(tensor, name.ptr())).is(expected);
  }

  // PyObject_CallMethodNoArgs, which the limited API does not have.
  static nb::object call(PyObject* tensor, const nb::object& method) {
    return known(PyObject_VectorcallMethod(method.ptr(), &tensor, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  }

  static bool says(PyObject* tensor, const nb::object& name, const nb::object& expected) {
    return call(tensor, name).is(expected);
  }

  static size_t number(PyObject* tensor, const nb::object& name) {
    const nb::object found = call(tensor, name);
    if (!found.is_valid()) return 0;
    const size_t value = PyLong_AsSize_t(found.ptr());
    if (!PyErr_Occurred()) return value;
    PyErr_Clear();
    return 0;
  }

  PyTypeObject* tensor_type_;
  nb::object float32_, int32_;
  nb::object true_ = nb::borrow(Py_True), false_ = nb::borrow(Py_False);
  nb::object dtype_ = name("dtype"), is_cpu_ = name("is_cpu");
  nb::object is_contiguous_ = name("is_contiguous"), is_neg_ = name("is_neg"), dim_ = name("dim");
  nb::object numel_ = name("numel"), data_ptr_ = name("data_ptr");
};

// A torch tensor, or whatever else speaks DLPack or the buffer protocol: one dimension, contiguous, on the CPU.
// The caller keeps it alive.
template <class T>
class Flat {
 public:
  using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

  Flat() = default;
  Flat(T* data, size_t size) : data_(data), size_(size) {}
  explicit Flat(const Array& array) : data_(array.data()), size_(array.size()), array_(array) {}

  T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
  Array array_;
};

}  // namespace thinwire

template <class T>
struct nanobind::detail::type_caster<thinwire::Flat<T>> {
  using Array = typename thinwire::Flat<T>::Array;
  NB_TYPE_CASTER(thinwire::Flat<T>, make_caster<Array>::Name)

  bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
    const auto& torch = thinwire::Torch::instance();
    if (!torch.is_tensor(source.ptr())) return from_array(source, flags, cleanup);
    void* data = nullptr;
    size_t size = 0;
    if (!torch.flat<std::remove_const_t<T>>(source.ptr(), &data, &size)) return false;
    value = thinwire::Flat<T>(static_cast<T*>(data), size);
    return true;
  }

 private:
  bool from_array(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
    make_caster<Array> array;
    if (!array.from_python(source, flags, cleanup)) return false;
    value = thinwire::Flat<T>(array.value);
    return true;
  }
};
