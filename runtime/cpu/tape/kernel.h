// A kernel of a compiled program: what is known of its calls when the program
// is compiled is bound once. A call reads its values by position, the operands
// and then the results, wherever they come from: the arguments of a Python
// call, or the registers of a tape.
#pragma once

#include "cpu/tape/tensor.h"

namespace steelyard {

// The position of a value that a kernel does not have.
inline constexpr int kNowhere = -1;

class Values {
public:
  virtual ~Values() = default;

  virtual Tensor tensor(int position) const = 0;
  // Its dims before the last as one: what cannot be read so is copied.
  virtual Matrix matrix(int position) const = 0;
  // Of the first element of a tensor.
  virtual uintptr_t address(int position) const = 0;
  virtual int64_t number(int position) const = 0;
  // Says that all values have been read: from here on, Python may go on.
  virtual void done() const {}

  Matrix row(int position, int64_t rows, int64_t columns) const {
    return as_row(tensor(position), rows, columns);
  }
  // 0 for the value at kNowhere.
  uintptr_t address_or_null(int position) const {
    return position == kNowhere ? 0 : address(position);
  }
};

class Kernel {
public:
  virtual ~Kernel() = default;
  virtual void run(const Values &values, int threads) const = 0;
};

} // namespace steelyard
