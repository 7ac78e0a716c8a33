// The Python face of the CPU runtime: steelyard.runtime._cpu.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "features.h"

namespace nb = nanobind;

NB_MODULE(_cpu, m) {
  m.doc() = "Native CPU runtime of steelyard.";
  m.def("instruction_sets", &steelyard::instruction_sets,
        "Names of the instruction sets kernels may use on this machine, widest "
        "last.");
}
