// Reads torch tensors through their Python methods: nothing here is built
// against torch. The names are looked up once.
#pragma once

#include <nanobind/nanobind.h>

#include "cpu/tape/tensor.h"

namespace steelyard {

class TensorReader {
public:
  // An attribute or a method, looked up by a string that is made once.
  class Name {
  public:
    explicit Name(const char *text) : text_(PyUnicode_InternFromString(text)) {}
    nanobind::object call(nanobind::handle object) const {
      return checked(PyObject_CallMethodNoArgs(object.ptr(), text_));
    }
    nanobind::object of(nanobind::handle object) const {
      return checked(PyObject_GetAttr(object.ptr(), text_));
    }

  private:
    static nanobind::object checked(PyObject *result) {
      if (!result)
        throw nanobind::python_error();
      return nanobind::steal(result);
    }
    PyObject *text_; // lives as long as the interpreter
  };

  // `types`: torch's dtypes and their codes, see ItemType. `flat`: makes of a
  // tensor one that kernels can read, a matrix or a contiguous one. `threads`:
  // how many kernels may use.
  TensorReader(nanobind::dict types, nanobind::callable flat,
               nanobind::callable threads)
      : types_(types), flat_(flat), threads_(threads) {}

  static uintptr_t address(nanobind::handle tensor) {
    static const Name data_ptr("data_ptr");
    return nanobind::cast<uintptr_t>(data_ptr.call(tensor));
  }

  int threads() const { return nanobind::cast<int>(threads_()); }

  // `kept` must live while the tensor is read: one that is seen negated is
  // copied.
  Tensor tensor(nanobind::handle tensor, nanobind::object &kept) const {
    static const Name is_neg("is_neg"), resolve_neg("resolve_neg");
    const bool is_negated = is_neg.call(tensor).ptr() == Py_True;
    kept = is_negated ? resolve_neg.call(tensor) : nanobind::borrow(tensor);
    return read(kept);
  }

  // The leading dims flattened: what cannot be read so is copied.
  Matrix matrix(nanobind::handle given, nanobind::object &kept) const {
    if (const auto matrix = as_matrix(tensor(given, kept)))
      return *matrix;
    kept = flat_(given);
    return as_matrix(read(kept)).value();
  }

private:
  Tensor read(nanobind::handle tensor) const {
    static const Name shape_name("shape"), stride_name("stride"),
        dtype_name("dtype");
    const nanobind::tuple shape(shape_name.of(tensor)),
        strides(stride_name.call(tensor));
    require(shape.size() <= kMostDims, "a tensor must have at most 8 dims");
    const uintptr_t data = address(tensor);
    Tensor x{pointer<uint8_t>(data),
             ItemType::of(nanobind::cast<int>(types_[dtype_name.of(tensor)])),
             static_cast<int>(shape.size()),
             {},
             {}};
    for (int i = 0; i < x.dims; ++i) {
      x.sizes[i] = nanobind::cast<int64_t>(shape[i]);
      x.strides[i] = nanobind::cast<int64_t>(strides[i]);
    }
    memory(data, x.elements() == 0);
    return x;
  }

  nanobind::dict types_;
  nanobind::callable flat_, threads_;
};

} // namespace steelyard
