// Quantizes and multiplies tensors in groups, such as the rows of experts.
#pragma once

#include "cpu/tape/gemm_kernel.h"
#include "cpu/tape/quantize_kernel.h"

namespace steelyard {

struct GroupedQuantizeKernel final : Kernel {
  std::optional<DestinationSlots> row, col;
  int ends, scale, rng; // positions, or kNowhere; a stack has no ends
  int64_t groups;

  GroupedQuantizeKernel(std::optional<DestinationSlots> row,
                        std::optional<DestinationSlots> col, int ends,
                        int scale, int rng, int64_t groups)
      : row(std::move(row)), col(std::move(col)), ends(ends), scale(scale),
        rng(rng), groups(groups) {}

  void run(const Values &values, int threads) const override;
};

struct GroupedGemmKernel final : Kernel {
  // Rows that vary are those of all groups.
  std::optional<OperandSlots> lhs; // none: the first value is a matrix
  OperandSlots rhs;
  int ends, out;
  int64_t groups;
  bool both;                   // are in groups, and make a matrix per group
  std::optional<int64_t> rows; // none: those of the result, or any if both

  GroupedGemmKernel(std::optional<OperandSlots> lhs, OperandSlots rhs, int ends,
                    int out, int64_t groups, bool both,
                    std::optional<int64_t> rows)
      : lhs(std::move(lhs)), rhs(std::move(rhs)), ends(ends), out(out),
        groups(groups), both(both), rows(rows) {}

  void run(const Values &values, int threads) const override;
};

} // namespace steelyard
