// Whether memory was written since it was looked at: some of its words are
// sampled. That shows most writes that nothing counts, but not all.
#include <cstring>
#include <vector>

#include "cpu/bind/bindings.h"
#include "cpu/bind/tensors.h"

namespace nb = nanobind;

namespace steelyard {
namespace {

// Enough that a write of a whole tensor, or of most of it, changes some.
constexpr int64_t kSamples = 16;

uint64_t fingerprint(uintptr_t address, int64_t size) {
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

// Parameters among the arguments of a function, as they were at one time.
class Stamps {
public:
  // `bytes`: of the parameter's memory.
  void add(int position, nb::handle parameter, int64_t bytes) {
    const uintptr_t address = TensorReader::address(parameter);
    stamps_.push_back({position, parameter.ptr(), version_of(parameter),
                       address, bytes, fingerprint(address, bytes)});
  }

  // Whether arguments have the same parameters, and nobody wrote those. Who
  // asks knows that none of them has died since.
  bool hold(const nb::tuple &arguments) const {
    for (const Stamp &stamp : stamps_) {
      const nb::handle parameter = arguments[stamp.position];
      if (parameter.ptr() != stamp.parameter ||
          version_of(parameter) != stamp.version ||
          TensorReader::address(parameter) != stamp.address ||
          fingerprint(stamp.address, stamp.bytes) != stamp.words)
        return false;
    }
    return true;
  }

private:
  struct Stamp {
    int position;
    const PyObject *parameter; // told by its address alone
    int64_t version;
    uintptr_t address;
    int64_t bytes;
    uint64_t words;
  };

  static int64_t version_of(nb::handle parameter) {
    static const TensorReader::Name name("_version");
    return nb::cast<int64_t>(name.of(parameter));
  }

  std::vector<Stamp> stamps_;
};

} // namespace

void bind_fingerprint(nb::module_ &m) {
  m.def("fingerprint", &fingerprint, nb::arg("address"), nb::arg("size"),
        "A number that changes with the sampled words of some memory.");
  nb::class_<Stamps>(m, "Stamps",
                     "Tells whether parameters were written since.")
      .def(nb::init<>())
      .def("add", &Stamps::add, nb::arg("position"), nb::arg("parameter"),
           nb::arg("bytes"))
      .def("hold", &Stamps::hold, nb::arg("arguments"));
}

} // namespace steelyard
