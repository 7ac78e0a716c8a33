#include "cpu/tape/views.h"

#include <algorithm>

namespace steelyard {
namespace {

int dim_of(int64_t dim, int dims) {
  const int64_t found = dim < 0 ? dim + dims : dim;
  require(found >= 0 && found < dims, "a dim must be one of its tensor");
  return static_cast<int>(found);
}

void require_numbers(std::span<const int64_t> numbers, size_t count) {
  require(numbers.size() == count, "a view must have the numbers of its op");
}

Tensor without(Tensor x, int dim) {
  std::copy(x.sizes.begin() + dim + 1, x.sizes.begin() + x.dims,
            x.sizes.begin() + dim);
  std::copy(x.strides.begin() + dim + 1, x.strides.begin() + x.dims,
            x.strides.begin() + dim);
  --x.dims;
  return x;
}

Tensor unsqueeze(Tensor x, int64_t at) {
  require(x.dims < kMostDims, "a tensor must have at most 8 dims");
  const int dim = dim_of(at, x.dims + 1);
  const int64_t stride = dim < x.dims ? x.sizes[dim] * x.strides[dim] : 1;
  std::copy_backward(x.sizes.begin() + dim, x.sizes.begin() + x.dims,
                     x.sizes.begin() + x.dims + 1);
  std::copy_backward(x.strides.begin() + dim, x.strides.begin() + x.dims,
                     x.strides.begin() + x.dims + 1);
  x.sizes[dim] = 1;
  x.strides[dim] = stride;
  ++x.dims;
  return x;
}

Tensor select(const Tensor &x, int64_t at, int64_t index) {
  const int dim = dim_of(at, x.dims);
  const int64_t found = index < 0 ? index + x.sizes[dim] : index;
  require(found >= 0 && found < x.sizes[dim],
          "an index must be one of its dim");
  Tensor part = without(x, dim);
  part.data = x.data + found * x.strides[dim] * x.type.bytes;
  return part;
}

Tensor slice(Tensor x, int64_t at, int64_t begin, int64_t end, int64_t step) {
  require(step > 0, "a slice must have a step above 0");
  const int dim = dim_of(at, x.dims);
  const int64_t size = x.sizes[dim];
  const auto clamped = [size](int64_t index, int64_t lowest) {
    return std::clamp(index < 0 ? index + size : index, lowest, size);
  };
  begin = clamped(begin, 0);
  end = clamped(end, begin);
  x.data += begin * x.strides[dim] * x.type.bytes;
  x.sizes[dim] = (end - begin + step - 1) / step;
  x.strides[dim] *= step;
  return x;
}

Tensor expand(const Tensor &x, std::span<const int64_t> sizes) {
  const int dims = static_cast<int>(sizes.size()), added = dims - x.dims;
  require(added >= 0 && dims <= kMostDims,
          "a tensor must be expanded to at least as many dims as it has");
  Tensor wide{x.data, x.type, dims, {}, {}};
  for (int i = 0; i < dims; ++i) {
    const int64_t own = i < added ? 1 : x.sizes[i - added];
    wide.sizes[i] = sizes[i] < 0 ? own : sizes[i];
    wide.strides[i] = i < added || own == 1 ? 0 : x.strides[i - added];
    require(own == 1 || own == wide.sizes[i],
            "a dim must be expanded from 1 or keep its size");
  }
  return wide;
}

Tensor permute(const Tensor &x, std::span<const int64_t> order) {
  require_numbers(order, x.dims);
  Tensor turned = x;
  for (int i = 0; i < x.dims; ++i) {
    const int from = dim_of(order[i], x.dims);
    turned.sizes[i] = x.sizes[from];
    turned.strides[i] = x.strides[from];
  }
  return turned;
}

Tensor transpose(Tensor x, int64_t first, int64_t second) {
  const int i = dim_of(first, x.dims), j = dim_of(second, x.dims);
  std::swap(x.sizes[i], x.sizes[j]);
  std::swap(x.strides[i], x.strides[j]);
  return x;
}

// A tensor with the sizes of a reshape, one of which may be -1, and no strides.
Tensor reshaped(const Tensor &x, std::span<const int64_t> sizes) {
  require(sizes.size() <= kMostDims, "a tensor must have at most 8 dims");
  Tensor made{x.data, x.type, static_cast<int>(sizes.size()), {}, {}};
  int64_t known = 1;
  int open = -1;
  for (int i = 0; i < made.dims; ++i) {
    made.sizes[i] = sizes[i];
    if (sizes[i] < 0)
      open = i;
    else
      known *= sizes[i];
  }
  if (open >= 0)
    made.sizes[open] = known == 0 ? 0 : x.elements() / known;
  require(made.elements() == x.elements(),
          "a reshape must keep the number of elements");
  return made;
}

// Dims that lie in memory as one are cut anew, from the last to the first.
std::optional<Tensor> reshape(const Tensor &x, std::span<const int64_t> sizes) {
  Tensor made = reshaped(x, sizes);
  if (made.elements() == 0) {
    made.set_contiguous();
    return made;
  }
  int to = made.dims - 1;
  int64_t joined = 1, cut = 1, stride = 1;
  bool is_new = true; // the dims read from here on begin another run
  for (int from = x.dims - 1; from >= 0; --from) {
    if (x.sizes[from] == 1)
      continue;
    if (is_new)
      stride = x.strides[from];
    joined *= x.sizes[from];
    int before = from - 1;
    while (before >= 0 && x.sizes[before] == 1)
      --before;
    is_new = before < 0 || x.strides[before] != joined * stride;
    if (!is_new)
      continue;
    while (to >= 0 && (cut < joined || made.sizes[to] == 1)) {
      made.strides[to] = cut * stride;
      cut *= made.sizes[to--];
    }
    if (cut != joined)
      return std::nullopt;
    joined = cut = 1;
  }
  for (; to >= 0; --to)
    made.strides[to] = 1;
  return made;
}

} // namespace

std::optional<Tensor> view_of(View view, const Tensor &x,
                              std::span<const int64_t> numbers) {
  switch (view) {
  case View::expand:
    return expand(x, numbers);
  case View::permute:
    return permute(x, numbers);
  case View::reshape:
    return reshape(x, numbers);
  case View::select:
    require_numbers(numbers, 2);
    return select(x, numbers[0], numbers[1]);
  case View::slice:
    require_numbers(numbers, 4);
    return slice(x, numbers[0], numbers[1], numbers[2], numbers[3]);
  case View::squeeze: {
    require_numbers(numbers, 1);
    const int dim = dim_of(numbers[0], x.dims);
    return x.sizes[dim] == 1 ? without(x, dim) : x;
  }
  case View::transpose:
    require_numbers(numbers, 2);
    return transpose(x, numbers[0], numbers[1]);
  case View::unsqueeze:
    require_numbers(numbers, 1);
    return unsqueeze(x, numbers[0]);
  }
  return std::nullopt;
}

void copy_elements(const Tensor &x, uint8_t *out) {
  if (x.elements() == 0)
    return;
  // The innermost dims that lie one after the other are one run.
  int64_t run = 1;
  int outer = x.dims;
  while (outer > 0 &&
         (x.sizes[outer - 1] == 1 || x.strides[outer - 1] == run)) {
    run *= x.sizes[outer - 1];
    --outer;
  }
  std::array<int64_t, kMostDims> index{};
  const int64_t bytes = run * x.type.bytes;
  for (const uint8_t *from = x.data;;) {
    out = std::copy_n(from, bytes, out);
    int dim = outer - 1;
    for (; dim >= 0; --dim) {
      from += x.strides[dim] * x.type.bytes;
      if (++index[dim] < x.sizes[dim])
        break;
      from -= index[dim] * x.strides[dim] * x.type.bytes;
      index[dim] = 0;
    }
    if (dim < 0)
      return;
  }
}

} // namespace steelyard
