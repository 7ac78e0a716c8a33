#include <cstring>

#include "cpu/bind/arguments.h"
#include "cpu/bind/bindings.h"

namespace nb = nanobind;

namespace steelyard {

// Enough that a write of a whole tensor, or of most of it, changes some.
static constexpr int64_t kSamples = 16;

static uint64_t fingerprint(uintptr_t address, int64_t size) {
  require(size >= 0, "sizes must not be negative");
  const char *bytes = memory<const char>(address, size == 0);
  constexpr int64_t width = sizeof(uint64_t);
  uint64_t hash = 0xcbf29ce484222325;
  if (size < width) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, size);
    return hash ^ word;
  }
  for (int64_t i = 0; i < kSamples; ++i) {
    uint64_t word;
    std::memcpy(&word, bytes + (size - width) / (kSamples - 1) * i, width);
    hash = (hash ^ word) * 0x100000001b3;
  }
  return hash;
}

void bind_fingerprint(nb::module_ &m) {
  m.def("fingerprint", &fingerprint, nb::arg("address"), nb::arg("size"),
        "A number that changes with the sampled words of some memory.");
}

} // namespace steelyard
