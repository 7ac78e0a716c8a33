"""How long a kernel should take on a GPU: the longest of the times that its resources need, each on its own.

Nothing here was measured. The figures of the GPUs are NVIDIA's, or what their comments say.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from instruction_costs import CONVERT, EXCHANGE, FP32, FP32_PAIR, FP64, INTEGER, MULTIPLY, NARROW, SPECIAL

WARP = 32
COPY_SHARE = 0.9
"""What a copy reaches of the peak bandwidth: an assumption. A share of a copy's bandwidth depends on it little."""
LATENCY_CLOCKS = 1000
"""Of a read from DRAM under load: an assumption, twice the 479 that arXiv 2402.13499 measured on an idle H100."""
ISSUED_PER_CLOCK = 4
"""Warp instructions of a multiprocessor: one from each of its four schedulers (both architectures' tuning guides)."""
REGISTERS, THREADS, BLOCKS, SHARED_BYTES, SHARED_RESERVED = 65536, 2048, 32, 228 * 1024, 1024
"""Of a multiprocessor, compute capabilities 9.0 and 10.0 (CUDA programming guide); each block has some reserved."""
RATES = {
    FP32: 128,
    FP32_PAIR: 64,
    FP64: 64,
    INTEGER: 64,
    MULTIPLY: 64,
    NARROW: 16,
    CONVERT: 64,
    SPECIAL: 16,
    EXCHANGE: 32,
}
"""Lanes per clock and multiprocessor, compute capabilities 9.0 and 10.0: CUDA C++ Best Practices Guide, throughput of
native arithmetic instructions. It has no row for conversions to 8 and 4 bits: they are taken to be as slow as those
from float32 to 16 bits. A pair of float32 in one instruction keeps the unit busy twice as long as one. Minima and
maxima of floats are taken as integer ones, which 10.0 is faster at."""


@dataclass(frozen=True)
class Gpu:
    """A GPU. Rates of tensor cores are dense ones."""

    name: str
    target: str
    multiprocessors: int
    clock: float
    bandwidth: float
    cache_bytes_per_clock: int
    tensor_flops: Mapping[str, float]

    @property
    def copy_bandwidth(self) -> float:
        return COPY_SHARE * self.bandwidth


H100 = Gpu(
    "H100 SXM",
    "sm_90a",
    132,  # NVIDIA H100 architecture whitepaper
    1.83e9,  # follows from 989.4e12 dense bf16 FLOP/s at 4096 per clock and multiprocessor, of the same paper
    3.35e12,  # NVIDIA H100 data sheet
    5120,  # A100 architecture whitepaper, L2 read; none is published for H100
    {"bf16": 989e12, "fp8": 1979e12},  # NVIDIA H100 data sheet, without sparsity
)
B200 = Gpu(
    "B200",
    "sm_100a",
    148,  # cudaDeviceProp of B200, as quoted by chipsandcheese.com
    1.85e9,  # follows from 2250e12 dense bf16 FLOP/s at 8192 per clock and multiprocessor
    8.0e12,  # NVIDIA DGX B200 data sheet: 64 TB/s for eight
    10240,  # two dies, each taken to be as an A100: an assumption
    {"bf16": 2250e12, "fp8": 4500e12, "fp4": 9000e12},  # NVIDIA DGX B200 data sheet, without sparsity
)
GPUS = (H100, B200)


@dataclass(frozen=True)
class Work:
    """What one launch on a matrix does, in all: from its PTX, executed by the interpreter."""

    bytes: float
    """Of the tensors that it reads and writes, each once."""
    sector_bytes: float
    """Of the 32-byte sectors that its warps access."""
    instructions: Mapping[str, float]
    """Unit -> warp instructions."""
    memory_wavefronts: float
    """Of 128 bytes, through the unit for global and shared memory."""
    blocks: float
    threads: int
    shared_bytes: int
    rounds: float
    """How often a block waits for DRAM: the loads of a thread by those that it has in flight at once."""


@dataclass(frozen=True)
class Estimate:
    """A time, and the resource that decides it."""

    seconds: float
    limit: str
    blocks_per_multiprocessor: int


def estimate(work: Work, registers: int, gpu: Gpu) -> Estimate:
    """The time of a launch."""
    clocks_per_second = gpu.multiprocessors * gpu.clock
    resident = resident_blocks(work, registers)
    times = {
        "memory": work.bytes / gpu.copy_bandwidth,
        "cache": work.sector_bytes / (gpu.cache_bytes_per_clock * gpu.clock),
        "issue": sum(work.instructions.values()) / (ISSUED_PER_CLOCK * clocks_per_second),
        "shared memory": work.memory_wavefronts / clocks_per_second,
        "latency": work.blocks * work.rounds * LATENCY_CLOCKS / (resident * clocks_per_second),
    }
    for unit, rate in RATES.items():
        times[unit] = work.instructions.get(unit, 0) * WARP / (rate * clocks_per_second)
    times[FP32] += times.pop(FP32_PAIR)  # the same unit does both
    limit = max(times, key=lambda name: times[name])
    return Estimate(times[limit], limit, resident)


def resident_blocks(work: Work, registers: int) -> int:
    """Blocks that fit a multiprocessor; registers are handed to warps in units of 256."""
    per_warp = -(-registers * WARP // 256) * 256
    by_registers = REGISTERS // (per_warp * work.threads // WARP)
    by_shared = SHARED_BYTES // (work.shared_bytes + SHARED_RESERVED)
    return min(BLOCKS, THREADS // work.threads, by_registers, by_shared)
