// What Python and C++ must agree on, as C++ has it: Python takes names from
// here, and tests hold the rest against steelyard.formats.
#include "cpu/bind/bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "cpu/bind/arguments.h"
#include "cpu/formats/scheme.h"
#include "cpu/gemm/packed_weight.h"
#include "cpu/produce/produce.h"
#include "cpu/tiles/matrix.h"

namespace nb = nanobind;

namespace steelyard {

template <size_t Count>
static std::vector<std::string> names(const char *const (&all)[Count]) {
  return {all, all + Count};
}

// The fields of a scheme's bits by name: flags, and names of values.
static nb::dict describe_scheme(int bits) {
  scheme_of(bits);
  nb::dict described;
  for (const SchemeField *field : kSchemeFields) {
    const int value = field->of(bits);
    if (field->values[0])
      described[field->name] = field->values[value];
    else
      described[field->name] = value != 0;
  }
  return described;
}

// Rows and bytes per row of codes and of scales, and the number of amaxes.
static std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>
part_sizes(int bits, bool columnwise, int64_t M, int64_t N) {
  const SchemeBits scheme = scheme_of(bits);
  is_empty(M, N);
  const StoredShape stored = stored_shape(scheme, columnwise, M, N);
  const bool is_one = scheme.family() == Family::tensor;
  return {stored.rows, codes_stride(scheme, stored),
          is_one ? 1 : scale_rows(scheme, columnwise, stored),
          is_one ? sizeof(float) : scales_stride(scheme, columnwise, stored),
          amax_count(scheme, stored)};
}

void bind_contract(nb::module_ &m) {
  m.def(
      "activation_names", [] { return names(kActivationNames); },
      "Activations, each at its number.");
  m.def(
      "producer_names", [] { return names(kProducerNames); },
      "Kinds of producers, each at its number.");
  m.def(
      "dtype_names", [] { return names(kDtypeNames); },
      "Dtypes of matrices, each at its number.");
  m.def("describe_scheme", &describe_scheme, nb::arg("bits"),
        "What the bits of a scheme say, by the names of its fields.");
  m.def("part_sizes", &part_sizes, nb::arg("bits"), nb::arg("columnwise"),
        nb::arg("rows"), nb::arg("columns"),
        "Of a copy of a matrix: rows of codes, bytes per row, rows of scales, "
        "bytes per row, and the number of amaxes.");
  m.def(
      "packed_size",
      [](int bits, int64_t columns, int64_t k) {
        is_empty(columns, k);
        return PackedLayout::of(scheme_of(bits), columns, k).size();
      },
      nb::arg("bits"), nb::arg("columns"), nb::arg("k"),
      "Bytes of a packed FP4 weight.");
}

} // namespace steelyard
