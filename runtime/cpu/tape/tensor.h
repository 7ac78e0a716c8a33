// Tensors as the steps of a program see them: memory, a dtype, sizes and
// strides, and how a tensor is read as a matrix.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "cpu/bind/arguments.h"

namespace steelyard {

// The dtype of a tensor: how many bytes an element has, and its number if
// kernels compute in it.
struct ItemType {
  uint8_t bytes;
  uint8_t number; // of a Dtype, kInteger of one with a sign, or another

  static constexpr uint8_t kInteger = 254;

  // As Python writes it: 256 times the bytes, and the number.
  static ItemType of(int code) {
    require(code >= 0 && code < 1 << 16, "a dtype must be the code of one");
    return {static_cast<uint8_t>(code >> 8), static_cast<uint8_t>(code)};
  }

  Dtype dtype() const { return dtype_of(number); }
  bool is_integer(int wanted_bytes) const {
    return number == kInteger && bytes == wanted_bytes;
  }
  bool operator==(const ItemType &) const = default;
};

// Strides are in elements.
struct Tensor {
  uint8_t *data;
  ItemType type;
  int dims;
  std::array<int64_t, kMostDims> sizes, strides;

  int64_t elements() const {
    int64_t count = 1;
    for (int i = 0; i < dims; ++i)
      count *= sizes[i];
    return count;
  }

  // Those of the dims before the last.
  int64_t rows() const {
    int64_t count = 1;
    for (int i = 0; i + 1 < dims; ++i)
      count *= sizes[i];
    return count;
  }

  // Whether the elements lie one after the other, in the order of the dims.
  bool is_contiguous() const {
    if (elements() == 0)
      return true;
    int64_t stride = 1;
    for (int i = dims; i-- > 0; stride *= sizes[i])
      if (sizes[i] != 1 && strides[i] != stride)
        return false;
    return true;
  }

  void set_contiguous() {
    int64_t stride = 1;
    for (int i = dims; i-- > 0;) {
      strides[i] = stride;
      stride *= sizes[i] > 1 ? sizes[i] : 1;
    }
  }
};

// The memory of a result whose elements are written one after the other.
inline uint8_t *contiguous_memory(const Tensor &x) {
  require(x.is_contiguous(),
          "the elements of a result must lie one after the other");
  return memory<uint8_t>(reinterpret_cast<uintptr_t>(x.data),
                         x.elements() == 0);
}

// Where an element is, of those that the first dims have, in elements.
inline int64_t offset_of(const Tensor &x, int dims, int64_t element) {
  int64_t offset = 0;
  for (int i = dims; i-- > 0; element /= x.sizes[i])
    offset += element % x.sizes[i] * x.strides[i];
  return offset;
}

// The dims before the last as one; none if its rows are not equally far apart.
inline std::optional<Matrix> as_matrix(const Tensor &x) {
  require(x.dims > 0, "a matrix must have at least one dim");
  const int64_t columns = x.sizes[x.dims - 1], rows = x.rows();
  const bool empty = is_empty(rows, columns);
  int64_t row_stride = columns, span = 1;
  for (int i = x.dims - 1; i-- > 0 && !empty;) {
    if (x.sizes[i] == 1)
      continue;
    if (span == 1)
      row_stride = x.strides[i];
    else if (x.strides[i] != row_stride * span)
      return std::nullopt;
    span *= x.sizes[i];
  }
  const int64_t column_stride = columns == 1 ? 1 : x.strides[x.dims - 1];
  return Matrix{memory(reinterpret_cast<uintptr_t>(x.data), empty),
                x.type.dtype(),
                rows,
                columns,
                row_stride,
                empty ? 1 : column_stride};
}

// A vector that each of some rows of a matrix gets.
inline Matrix as_row(const Tensor &x, int64_t rows, int64_t columns) {
  require(x.dims == 1, "a row must have one dim");
  require(x.sizes[0] == columns, "a vector must be as long as the rows that it "
                                 "is added to or multiplied with");
  return {memory(reinterpret_cast<uintptr_t>(x.data), columns == 0),
          x.type.dtype(),
          rows,
          columns,
          0,
          x.strides[0]};
}

// Writes the elements of a tensor one after the other.
void copy_elements(const Tensor &x, uint8_t *out);

} // namespace steelyard
