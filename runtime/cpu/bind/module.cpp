// The Python face of the CPU runtime: steelyard.runtime._cpu.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu/bind/arguments.h"
#include "cpu/bind/bindings.h"
#include "cpu/dispatch/kernel_table.h"
#include "cpu/threads/openmp_team.h"

namespace nb = nanobind;

// The named constraint says that the arguments, not a kernel, are at fault.
static void raise_constraint_error(const std::exception_ptr &error, void *) {
  try {
    std::rethrow_exception(error);
  } catch (const steelyard::ArgumentError &found) {
    const nb::object type =
        nb::module_::import_("steelyard.errors").attr("ConstraintError");
    PyErr_SetObject(type.ptr(),
                    nb::make_tuple("cpu_argument", found.what()).ptr());
  }
}

NB_MODULE(_cpu, m) {
  m.doc() = "Native CPU runtime of steelyard.";
  // A net that a program still holds when Python exits is no leak.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(raise_constraint_error);
  steelyard::set_team_finder(&steelyard::find_openmp_team);
  m.def("instruction_sets", &steelyard::instruction_sets,
        "Names of the instruction sets kernels may use on this machine, widest "
        "last.");
  m.def("set_isa", &steelyard::set_isa,
        "Use the kernels of this instruction set; an empty name means the "
        "widest.");
  m.def(
      "isa", [] { return steelyard::kernels().name; },
      "Name of the instruction set in use.");
  steelyard::bind_amax(m);
  steelyard::bind_attention(m);
  steelyard::bind_bound(m);
  steelyard::bind_contract(m);
  steelyard::bind_dequantize(m);
  steelyard::bind_elementwise(m);
  steelyard::bind_fingerprint(m);
  steelyard::bind_gemm(m);
  steelyard::bind_grouped(m);
  steelyard::bind_measure(m);
  steelyard::bind_produce(m);
  steelyard::bind_quantize(m);
  steelyard::bind_scales(m);
  steelyard::bind_tape(m);
  steelyard::bind_transpose(m);
}
