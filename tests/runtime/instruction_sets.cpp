// Runs every kernel on each instruction set that the processor has and compares
// with the first: bytes of quantized, decoded and produced values, and GEMMs
// within the bound. It needs no Python, so that it also runs in an emulator of
// a processor that is not at hand: see CONTRIBUTING.md.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/dispatch/kernel_table.h"
#include "cpu/operations.h"
#include "cpu/produce/produce.h"

using namespace steelyard;

namespace {

using Bytes = std::vector<uint8_t>;

struct Shape {
  int64_t M, N;
};

// A scheme as `scheme_bits` of stored.py packs it.
struct SchemeFields {
  int family, element, rule, four_over_six;
  bool tiled, power_of_two, rht, stochastic, row_scaled;

  int bits() const {
    return family | element << 2 | rule << 4 | four_over_six << 6 | tiled << 8 |
           power_of_two << 9 | rht << 10 | stochastic << 11 | row_scaled << 12;
  }
};

struct Copy {
  SchemeFields scheme;
  bool columnwise;
  Shape shape;
  Bytes codes, scales, amax;

  Copy(SchemeFields scheme, bool columnwise, Shape shape)
      : scheme(scheme), columnwise(columnwise), shape(shape) {
    const SchemeBits bits{scheme.bits()};
    const StoredShape stored = stored_shape(bits, columnwise, shape.M, shape.N);
    const int64_t lines = scale_rows(bits, columnwise, stored);
    codes.assign(stored.rows * codes_stride(bits, stored), 0xcd);
    const int64_t stride = scales_stride(bits, columnwise, stored);
    scales.assign(scheme.family == 0 ? 4 : lines * stride, 0xcd);
    amax.assign(4 * (scheme.row_scaled ? stored.rows : 1), 0);
  }

  StoredCopy stored() {
    const bool has_amax = scheme.family == 0 || scheme.family == 3;
    return {{scheme.bits()},
            columnwise,
            codes.data(),
            scales.data(),
            has_amax ? reinterpret_cast<float *>(amax.data()) : nullptr,
            shape.M,
            shape.N};
  }

  TargetCopy target() {
    TargetCopy copy{};
    static_cast<StoredCopy &>(copy) = stored();
    return copy;
  }

  Bytes all() const {
    Bytes joined = codes;
    joined.insert(joined.end(), scales.begin(), scales.end());
    if (scheme.family == 0 || scheme.family == 3)
      joined.insert(joined.end(), amax.begin(), amax.end());
    return joined;
  }
};

// Values of every size; with `hard` ones also NaN, infinities, zeros and
// subnormals, in every lane as the length of a row is odd.
std::vector<float> values(Shape shape, bool hard, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(shape.M * shape.N);
  for (float &value : x)
    value = normal(random) * std::ldexp(1.0f, int(random() % 13) - 6);
  const float special[] = {NAN,   -NAN,   INFINITY, -INFINITY, 0.0f,
                           -0.0f, 1e-40f, -3e-39f,  448.0f,    465.0f,
                           6.0f,  1e30f,  1e-30f,   5.0f,      -464.0f};
  if (hard)
    for (size_t i = random() % 29; i < x.size(); i += 29 + random() % 61)
      x[i] = special[random() % 15];
  return x;
}

Bytes rounded(const std::vector<float> &x, Dtype dtype) {
  Bytes bytes(x.size() * (dtype == Dtype::f32 ? 4 : 2));
  for (size_t i = 0; i < x.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &x[i], 4);
    // The upper half of a float32 is a bfloat16, and some float16 or other.
    const uint16_t half = bits >> 16;
    if (dtype == Dtype::f32)
      std::memcpy(&bytes[4 * i], &bits, 4);
    else
      std::memcpy(&bytes[2 * i], &half, 2);
  }
  return bytes;
}

Matrix matrix_of(const Bytes &data, Dtype dtype, Shape shape) {
  return contiguous_matrix(data.data(), dtype, shape.M, shape.N);
}

struct Report {
  int64_t compared = 0, different = 0;

  void expect(bool equal, const std::string &name) {
    ++compared;
    if (!equal && ++different <= 20)
      std::printf("  differs: %s\n", name.c_str());
  }
};

std::vector<SchemeFields> row_schemes() {
  std::vector<SchemeFields> found;
  for (int element : {0, 1}) {
    found.push_back({0, element, 0, 0, false, false, false, false, false});
    for (bool power : {false, true}) {
      found.push_back({1, element, 0, 0, false, power, false, false, false});
      found.push_back({1, element, 0, 0, true, power, false, false, false});
    }
    for (int rule = 0; rule < 4; ++rule)
      found.push_back({2, element, rule, 0, false, false, false, false, false});
    found.push_back({2, element, 0, 0, true, false, false, false, false});
  }
  for (int four : {0, 1, 2})
    for (bool tiled : {false, true})
      found.push_back({3, 2, 0, four, tiled, false, false, false, false});
  found.push_back({3, 2, 0, 0, false, false, false, true, false});
  found.push_back({3, 2, 0, 0, false, false, false, false, true});
  return found;
}

SchemeFields column_scheme(SchemeFields scheme) {
  scheme.row_scaled = false;
  // The transform goes with columns of NVFP4.
  scheme.rht = scheme.family == 3 && !scheme.tiled && scheme.four_over_six == 0;
  return scheme;
}

std::string name_of(const SchemeFields &s, Shape shape, const char *what) {
  char text[160];
  std::snprintf(text, sizeof text,
                "%s family %d element %d rule %d four %d tiled %d sr %d rht %d "
                "%ldx%ld",
                what, s.family, s.element, s.rule, s.four_over_six, s.tiled,
                s.stochastic, s.rht, long(shape.M), long(shape.N));
  return text;
}

constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16};
// The larger one has whole tiles of 128x128 and parts of them.
constexpr Shape kShapes[] = {{3, 47}, {130, 257}};

void compare_quantizers(const std::string &first, const std::string &other,
                        Report &report) {
  for (const SchemeFields &row : row_schemes())
    for (Shape shape : kShapes)
      for (Dtype dtype : kDtypes)
        for (bool hard : {false, true}) {
          const Bytes x = rounded(values(shape, hard, shape.N), dtype);
          Bytes found[2];
          for (int pass = 0; pass < 2; ++pass) {
            set_isa(pass ? other : first);
            Copy rows(row, false, shape),
                columns(column_scheme(row), true, shape);
            QuantizeArguments arguments{matrix_of(x, dtype, shape)};
            arguments.row = rows.target(), arguments.col = columns.target();
            arguments.seed = 7, arguments.offset = 3;
            run_quantize(arguments, 1);
            found[pass] = rows.all();
            const Bytes more = columns.all();
            found[pass].insert(found[pass].end(), more.begin(), more.end());
            Bytes decoded(4 * shape.M * shape.N);
            run_dequantize(rows.stored(), decoded.data(), Dtype::f32, 1);
            found[pass].insert(found[pass].end(), decoded.begin(),
                               decoded.end());
          }
          report.expect(found[0] == found[1], name_of(row, shape, "quantize"));
        }
}

void compare_producers(const std::string &first, const std::string &other,
                       Report &report) {
  const SchemeFields scheme{2, 0, 0, 0, false, false, false, false, false};
  for (Shape shape : kShapes)
    for (Dtype dtype : kDtypes)
      for (int kind = 0; kind < 5; ++kind)
        for (int activation = 1; activation <= (kind ? 1 : 4); ++activation) {
          const Bytes x = rounded(values(shape, kind < 3, 5), dtype);
          const Bytes y = rounded(values(shape, kind < 3, 6), dtype);
          const Matrix inputs[2] = {matrix_of(x, dtype, shape),
                                    matrix_of(y, dtype, shape)};
          Bytes found[2];
          for (int pass = 0; pass < 2; ++pass) {
            set_isa(pass ? other : first);
            Copy rows(scheme, false, shape);
            Producer producer{};
            producer.kind = static_cast<ProducerKind>(kind);
            producer.activation = static_cast<Activation>(activation);
            producer.inputs[0] = inputs[0], producer.inputs[1] = inputs[1];
            producer.epsilon = 1e-5, producer.dtype = dtype;
            QuantizeArguments arguments{
                contiguous_matrix(nullptr, dtype, shape.M, shape.N)};
            arguments.row = rows.target();
            arguments.producer = &producer;
            run_quantize(arguments, 1);
            found[pass] = rows.all();
          }
          report.expect(found[0] == found[1],
                        name_of(scheme, shape, "produce"));
        }
}

struct Operands {
  std::vector<float> a, b; // decoded, (M, K) and (N, K)
};

// Elements are left out that read a value beyond float32, which only the
// decoded operand rounds to infinity.
bool within_bound(const std::vector<float> &out, const Operands &x, int64_t M,
                  int64_t N, int64_t K) {
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < N; ++j) {
      double sum = 0, size = 0;
      bool is_infinite = false;
      for (int64_t k = 0; k < K; ++k) {
        const double a = x.a[i * K + k], b = x.b[j * K + k];
        sum += a * b, size += std::fabs(a * b);
        is_infinite = is_infinite || std::isinf(a) || std::isinf(b);
      }
      const double found = out[i * N + j];
      const bool fits = std::fabs(found - sum) <= (K + 8) * 0x1p-24 * size;
      if (!is_infinite && !(std::isnan(sum) ? std::isnan(found) : fits))
        return false;
    }
  return true;
}

void check_gemms(const std::string &isa, Report &report) {
  set_isa(isa);
  const SchemeFields schemes[] = {
      {0, 0, 0, 0, false, false, false, false, false},
      {0, 1, 0, 0, false, false, false, false, false},
      {1, 0, 0, 0, false, true, false, false, false},
      {1, 0, 0, 0, true, true, false, false, false},
      {2, 0, 0, 0, false, false, false, false, false},
      {3, 2, 0, 0, false, false, false, false, false},
      {3, 2, 0, 0, true, false, false, false, false},
  };
  for (const SchemeFields &scheme : schemes)
    for (int64_t M : {1, 3, 17, 50})
      for (int64_t N : {1, 70})
        for (int64_t K : {47, 300})
          for (bool hard : {false, true}) {
            if (hard && K == 300)
              continue;
            const Shape left{M, K}, right{N, K};
            const Bytes x = rounded(values(left, hard, K), Dtype::f32);
            const Bytes w = rounded(values(right, false, N), Dtype::f32);
            Copy a(scheme, false, left), b(scheme, false, right);
            run_quantize({matrix_of(x, Dtype::f32, left), a.target(), {}}, 1);
            run_quantize({matrix_of(w, Dtype::f32, right), b.target(), {}}, 1);
            Operands decoded{std::vector<float>(M * K),
                             std::vector<float>(N * K)};
            run_dequantize(a.stored(), decoded.a.data(), Dtype::f32, 1);
            run_dequantize(b.stored(), decoded.b.data(), Dtype::f32, 1);
            std::vector<float> out(M * N);
            run_gemm({a.stored(),
                      b.stored(),
                      {contiguous_matrix(out.data(), Dtype::f32, M, N)}},
                     1);
            report.expect(within_bound(out, decoded, M, N, K),
                          name_of(scheme, {M, N}, "gemm"));
          }
}

} // namespace

int main() {
  const std::vector<std::string> sets = instruction_sets();
  bool equal = true;
  for (const std::string &isa : sets) {
    Report bytes, gemms;
    if (isa != sets.front()) {
      compare_quantizers(sets.front(), isa, bytes);
      compare_producers(sets.front(), isa, bytes);
    }
    check_gemms(isa, gemms);
    std::printf("%s: %ld of %ld outputs differ from %s's, %ld of %ld GEMMs "
                "beyond the bound\n",
                isa.c_str(), long(bytes.different), long(bytes.compared),
                sets.front().c_str(), long(gemms.different),
                long(gemms.compared));
    std::fflush(stdout);
    equal = equal && !bytes.different && !gemms.different;
  }
  return equal ? 0 : 1;
}
