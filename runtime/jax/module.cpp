// steelyard.jax._ffi: the CPU kernels as XLA handlers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "cpu/dispatch/kernel_table.h"
#include "jax/handlers.h"

namespace nb = nanobind;

NB_MODULE(_ffi, m) {
  m.doc() = "XLA handlers over steelyard's CPU kernels.";
  m.def(
      "handlers",
      [] {
        nb::dict named;
        for (const auto &handlers :
             {steelyard::plain_handlers(), steelyard::grouped_handlers()})
          for (const auto &[name, function] : handlers)
            named[name] = nb::capsule(reinterpret_cast<void *>(function));
        return named;
      },
      "Every handler, by the name to register it under.");
  m.def("set_isa", &steelyard::set_isa,
        "Use the kernels of this instruction set; an empty name means the "
        "widest.");
  m.def(
      "isa", [] { return steelyard::kernels().name; },
      "Name of the instruction set in use.");
}
