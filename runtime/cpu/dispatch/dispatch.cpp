#include "cpu/dispatch/kernel_table.h"

#include <atomic>
#include <stdexcept>

#include "cpu/dispatch/features.h"

namespace steelyard {

namespace baseline {
extern const KernelTable table;
}
#if defined(STEELYARD_X86)
namespace avx2 {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}
namespace avx512_vnni {
void multiply_integers(const GemmCall &call, int64_t begin, int64_t end);
void multiply_few_fp4(const GemmCall &call, int64_t begin, int64_t end);
} // namespace avx512_vnni
namespace avx512_bf16 {
void fill_bfloat_rows(const GemmCall &call, int64_t begin, int64_t end);
void multiply_bfloats(const GemmCall &call, int64_t begin, int64_t end);
} // namespace avx512_bf16

// Of AVX-512 but for products of integers.
static const KernelTable *vnni_table() {
  static const KernelTable table = [] {
    KernelTable made = avx512::table;
    made.name = "avx512_vnni";
    made.multiply_integers = avx512_vnni::multiply_integers;
    made.multiply_few_fp4 = avx512_vnni::multiply_few_fp4;
    return made;
  }();
  return &table;
}

// Of VNNI, and products of bfloat16.
static const KernelTable *bf16_table() {
  static const KernelTable table = [] {
    KernelTable made = *vnni_table();
    made.name = "avx512_bf16";
    made.fill_bfloat_rows = avx512_bf16::fill_bfloat_rows;
    made.multiply_bfloats = avx512_bf16::multiply_bfloats;
    return made;
  }();
  return &table;
}
#endif

static std::vector<const KernelTable *> supported() {
  std::vector<const KernelTable *> tables{&baseline::table};
#if defined(STEELYARD_X86)
  if (cpu_features().avx2)
    tables.push_back(&avx2::table);
  if (cpu_features().avx512)
    tables.push_back(&avx512::table);
  if (cpu_features().avx512_vnni)
    tables.push_back(vnni_table());
  if (cpu_features().avx512_bf16)
    tables.push_back(bf16_table());
#endif
  return tables;
}

static std::atomic<const KernelTable *> &chosen() {
  static std::atomic<const KernelTable *> table{supported().back()};
  return table;
}

const KernelTable &kernels() { return *chosen().load(); }

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const KernelTable *table : supported())
    names.emplace_back(table->name);
  return names;
}

void set_isa(const std::string &name) {
  std::string known;
  for (const KernelTable *table : supported()) {
    if (name.empty() ? table == supported().back() : name == table->name) {
      chosen() = table;
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument(
      "the instruction set must be one this machine has (" + known +
      "), got '" + name + "'; set STEELYARD_ISA to one of these or unset it");
}

} // namespace steelyard
