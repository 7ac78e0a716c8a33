// Every operation of runtime/cpu/simd on the same bytes. Compiled once per
// instruction set, as STEELYARD_ISA; with STEELYARD_COMPARED, a list of those,
// also the program that compares each of them with `portable`.
#include "cpu/simd/simd.h"

namespace steelyard::STEELYARD_ISA {

// Operands of one call, and where the results of all operations go.
void run_operations(const uint8_t *in, uint8_t *out) {
  const auto put = [&](auto result) {
    store(out, result);
    out += sizeof result;
  };
  const auto bytes = load<Bytes32>(in), more_bytes = load<Bytes32>(in + 32);
  const auto signed_bytes = as<SignedBytes32>(more_bytes);
  const auto words = as<SignedWords8>(bytes),
             more_words = as<SignedWords8>(more_bytes);
  const auto halves = as<Halves16>(bytes),
             more_halves = as<Halves16>(more_bytes);
  const auto signed_halves = as<SignedHalves16>(bytes),
             more_signed_halves = as<SignedHalves16>(more_bytes);
  const auto longs = as<Longs4>(bytes), more_longs = as<Longs4>(more_bytes);
  put(maximum(words, more_words));
  put(minimum(words, more_words));
  put(maximum(signed_halves, more_signed_halves));
  put(maximum(bytes, more_bytes));
  put(subtract_saturated(halves, more_halves));
  put(narrow_unsigned(words, more_words));
  put(narrow_unsigned(words >> 16, more_words >> 16));
  put(narrow_signed(words, more_words));
  put(narrow_unsigned(signed_halves, more_signed_halves));
  put(narrow_signed(signed_halves, more_signed_halves));
  put(multiply_high(signed_halves, more_signed_halves));
  put(dot_pairs(signed_halves, more_signed_halves));
  put(dot_pairs(bytes, signed_bytes));
  put(multiply_low_words(longs, more_longs));
  put(alternate_halves(as<Words8>(bytes), as<Words8>(more_bytes)));
  put(look_up(low_half(more_bytes), low_half(bytes & 15)));
  put(look_up(more_bytes, bytes & 15));
  put(widen(low_half(bytes)));
  put(widen(as<Halves8>(low_half(bytes))));
  put(widen_signed_bytes(in));
  put(float_of_f16(as<Halves8>(low_half(bytes))));
  // The codes of the integer GEMM: 0 to 24 and -12 to 12, 16 of each lane.
  const Bytes32 offset = bytes % 25;
  const SignedBytes32 doubled = as<SignedBytes32>(more_bytes % 25) - 12;
  ByteProducts products{};
  for (int i = 0; i < 4; ++i)
    products = add_products(products, offset, doubled);
  put(total_of(products));
  // Floats that neither overflow nor are NaN, whose bits are free.
  const Words8 mask = as<Words8>(broadcast(int32_t{0x3fffffff}));
  const Floats8 a = as<Floats8>(as<Words8>(bytes) & mask),
                b = as<Floats8>(as<Words8>(more_bytes) & mask);
  put(multiply_add(a, b, -a));
  for (int i = 0; i < 8; ++i)
    put(fused(a[i], -b[i], b[7 - i]));
  const Floats8 four[4] = {a, b, -b, a - b};
  put(sums_of_4(four));
  put(sums_of_pairs(a, b));
  put(int32_t{is_zero(bytes)});
  put(int32_t{is_zero(bytes & 0)});
  alignas(32) uint8_t streamed[64];
  store_streamed(streamed, bytes);
  store_streamed(streamed + 32, low_half(bytes));
  store_streamed(streamed + 48, high_half(more_bytes));
  end_streams();
  std::memcpy(out, streamed, sizeof streamed);
}

} // namespace steelyard::STEELYARD_ISA

#if defined(STEELYARD_COMPARED)

#include <cstdio>

namespace steelyard {

#define DECLARE(isa)                                                           \
  namespace isa {                                                              \
  void run_operations(const uint8_t *in, uint8_t *out);                        \
  }
DECLARE(avx2)
DECLARE(avx512_vnni)

constexpr int kRounds = 100000, kMostBytes = 2048;

// The first byte that differs from `portable`, or -1.
static int compare(void (*run)(const uint8_t *in, uint8_t *out)) {
  uint64_t state = 1;
  for (int round = 0; round < kRounds; ++round) {
    uint8_t in[64], expected[kMostBytes] = {}, found[kMostBytes] = {};
    for (uint8_t &byte : in) {
      state = state * 6364136223846793005 + 1442695040888963407;
      byte = static_cast<uint8_t>(state >> 56);
      // Ends of the range come often.
      if (state >> 33 & 1 && state >> 34 & 1)
        byte = byte < 128 ? 0x00 : byte < 192 ? 0xff : byte < 224 ? 0x7f : 0x80;
    }
    portable::run_operations(in, expected);
    run(in, found);
    for (int i = 0; i < kMostBytes; ++i)
      if (expected[i] != found[i])
        return i;
  }
  return -1;
}

static int report(const char *isa,
                  void (*run)(const uint8_t *in, uint8_t *out)) {
  const int byte = compare(run);
  if (byte < 0)
    std::printf("%s: equal\n", isa);
  else
    std::printf("%s: differs from portable at byte %d\n", isa, byte);
  return byte >= 0;
}

} // namespace steelyard

int main() {
  int different = 0;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    different += steelyard::report("avx2", steelyard::avx2::run_operations);
  if (__builtin_cpu_supports("avx512vnni") &&
      __builtin_cpu_supports("avx512vl"))
    different += steelyard::report("avx512_vnni",
                                   steelyard::avx512_vnni::run_operations);
  return different;
}

#endif
