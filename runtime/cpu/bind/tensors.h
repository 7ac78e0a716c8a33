// Reads torch tensors through their Python methods: nothing here is built
// against torch. The names are looked up once.
#pragma once

#include <nanobind/nanobind.h>

#include "cpu/bind/arguments.h"

namespace steelyard {

class TensorReader {
public:
  // `dtypes`: torch's dtypes and their numbers. `flat`: makes of a tensor one
  // that kernels can read, a matrix or a contiguous one. `threads`: how many
  // kernels may use.
  TensorReader(nanobind::dict dtypes, nanobind::callable flat,
               nanobind::callable threads)
      : dtypes_(dtypes), flat_(flat), threads_(threads) {}

  static uintptr_t address(nanobind::handle tensor) {
    static const Name data_ptr("data_ptr");
    return nanobind::cast<uintptr_t>(data_ptr.call(tensor));
  }

  int threads() const { return nanobind::cast<int>(threads_()); }

  // A matrix, the leading dims of a tensor flattened. `kept` must live while it
  // is read: a tensor that kernels cannot read is copied.
  Matrix matrix(nanobind::handle tensor, nanobind::object &kept) const {
    static const Name is_contiguous("is_contiguous"), is_neg("is_neg"),
        shape_name("shape"), stride_name("stride");
    const bool is_plain =
        is_true(is_contiguous.call(tensor)) && !is_true(is_neg.call(tensor));
    kept = is_plain ? nanobind::borrow(tensor) : flat_(tensor);
    const nanobind::tuple shape(shape_name.of(kept));
    const size_t dims = shape.size();
    const int64_t columns = nanobind::cast<int64_t>(shape[dims - 1]);
    int64_t rows = 1, row_stride = columns, column_stride = 1;
    for (size_t i = 0; i + 1 < dims; ++i)
      rows *= nanobind::cast<int64_t>(shape[i]);
    if (dims == 2) {
      const nanobind::tuple strides(stride_name.call(kept));
      row_stride = nanobind::cast<int64_t>(strides[0]);
      column_stride = nanobind::cast<int64_t>(strides[1]);
    }
    return {memory(address(kept), is_empty(rows, columns)),
            dtype(kept),
            rows,
            columns,
            row_stride,
            column_stride};
  }

  // A vector that each of some rows of a matrix gets.
  Matrix row(nanobind::handle tensor, int64_t rows, int64_t columns) const {
    static const Name stride_name("stride");
    const nanobind::tuple strides(stride_name.call(tensor));
    return {
        memory(address(tensor), columns == 0), dtype(tensor), rows, columns, 0,
        nanobind::cast<int64_t>(strides[0])};
  }

private:
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

  static bool is_true(const nanobind::object &value) {
    return value.ptr() == Py_True;
  }

  Dtype dtype(nanobind::handle tensor) const {
    static const Name name("dtype");
    return dtype_of(nanobind::cast<int>(dtypes_[name.of(tensor)]));
  }

  nanobind::dict dtypes_;
  nanobind::callable flat_, threads_;
};

} // namespace steelyard
