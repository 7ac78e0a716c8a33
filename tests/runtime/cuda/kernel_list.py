"""Every kernel that is generated, for checks that need no inputs."""

from kernel_cases import mxfp4, nvfp4, scheme_pairs

from steelyard.codegen.activations import ACTIVATIONS
from steelyard.codegen.amax import AmaxKernel
from steelyard.codegen.copies import Copy
from steelyard.codegen.dequantize import DequantizeKernel
from steelyard.codegen.epilogue import EpilogueKernel
from steelyard.codegen.groups import GroupedKernel
from steelyard.codegen.kernel import Kernel
from steelyard.codegen.produce import ProduceKernel
from steelyard.codegen.producers import KINDS, Producer
from steelyard.codegen.quantize import QuantizeKernel
from steelyard.codegen.scale_layouts import KINDS as SCALE_LAYOUTS
from steelyard.codegen.scale_layouts import ScaleLayoutKernel
from steelyard.codegen.sources import Source
from steelyard.codegen.state import ComputeScaleKernel, EmptyRowScalesKernel, InverseScaleKernel, UpdateScaleKernel
from steelyard.codegen.statistics import RowStatisticsKernel
from steelyard.codegen.transpose import TransposeKernel
from steelyard.formats.schemes import Scheme

DTYPES = ("f32", "bf16", "f16")


def quantize_kernels(dtype: str, aligned: bool) -> list[Kernel]:
    """Both copies of every pair of schemes."""
    kernels = []
    for pair in scheme_pairs():
        delayed = any(scheme.source == "delayed" for scheme in pair)
        copies = tuple(Copy(s, bool(c), aligned, delayed and s.family == "tensor") for c, s in enumerate(pair))
        kernels.append(QuantizeKernel(Source(dtype, aligned), copies))
    return kernels


def grouped_kernels(dtype: str, aligned: bool) -> list[Kernel]:
    """Kernels on tensors in groups: quantizers of rows in groups and of stacks in turn, amaxes, and what decodes."""
    quantizers = quantize_kernels(dtype, aligned)[::2]
    source = Source(dtype, aligned)
    filled = DequantizeKernel(Copy(nvfp4(), True, aligned), "bf16", True)
    return [
        *(GroupedKernel(each, 8, index % 2 == 1) for index, each in enumerate(quantizers)),  # pyright: ignore
        *(GroupedKernel(AmaxKernel(source, rht, rht=rht), 8) for rht in (False, True)),
        GroupedKernel(filled, 8, row_multiple=16),
    ]


def fused_kernels(dtype: str, aligned: bool) -> list[Kernel]:
    """Each producer before an amax, and before the copies of one of the recipes' pairs in turn.

    A barrier separates filling the tile from making copies, so a kernel needs the registers of only one at a time.
    """
    fp8, row, col = (Scheme("f8E4M3FN", "tensor", "f32"), *(_mx(block) for block in ("1x32", "32x1")))
    block = Scheme("f8E4M3FN", "1x128", "f32", power_of_two=True)
    per_row = Scheme("f8E4M3FN", "row", "f32")
    pairs = [(fp8, fp8), (row, col), (nvfp4(), nvfp4(rht=True)), (block, block), (per_row, mxfp4())]
    kernels: list[Kernel] = []
    for index, producer in enumerate(producers()):
        source = Source(dtype, aligned, producer)
        copies = tuple(Copy(s, bool(c), aligned) for c, s in enumerate(pairs[index % len(pairs)]))
        kernels += [AmaxKernel(source), QuantizeKernel(source, copies)]
    return kernels


def _mx(block: str) -> Scheme:
    return Scheme("f8E4M3FN", block, "f8E8M0FNU")


def copy_kernels(aligned: bool) -> list[Kernel]:
    """Dequantize of every scheme and usage, into dtypes in turn."""
    copies = {Copy(s, bool(c), aligned) for pair in scheme_pairs() for c, s in enumerate(pair)}
    ordered = sorted(copies, key=str)
    values: list[Kernel] = [DequantizeKernel(copy, DTYPES[index % 3]) for index, copy in enumerate(ordered)]
    inner = {DequantizeKernel(Copy(c.scheme, False, aligned), "bf16", True) for c in ordered if not c.columnwise}
    return values + sorted(inner, key=str)


def producers() -> list[Producer]:
    vectors = {"layer_norm": {"weight": "f32", "bias": "f32"}, "rms_norm": {"weight": "bf16"}}
    return [Producer(kind, **vectors.get(kind, {})) for kind in KINDS]


def epilogues(dtype: str, aligned: bool) -> list[Kernel]:
    """Every activation with a bias and a residual."""
    full = {"bias": dtype, "residual": dtype, "aligned": aligned}
    kernels: list[Kernel] = [EpilogueKernel(dtype, "none", **full)]
    kernels += [EpilogueKernel(dtype, kind, **full, preactivation=True) for kind in ACTIVATIONS]
    return kernels


def small_kernels(dtype: str, aligned: bool) -> list[Kernel]:
    """All kernels other than quantize and dequantize."""
    source = Source(dtype, aligned)
    delayed = Scheme("f8E4M3FN", "tensor", "f32", source="delayed")
    amaxes = [
        AmaxKernel(source),
        AmaxKernel(source, True, rht=True),
        *(AmaxKernel(source, c, per_line=True) for c in (False, True)),
    ]
    return [
        *amaxes,
        *(ProduceKernel(Source(dtype, aligned, producer)) for producer in producers()),
        *epilogues(dtype, aligned),
        *(RowStatisticsKernel(dtype, centered) for centered in (True, False)),
        *(TransposeKernel(nibbles, aligned) for nibbles in (True, False)),
        *(ScaleLayoutKernel(kind) for kind in SCALE_LAYOUTS),
        ComputeScaleKernel(Scheme("f8E4M3FN", "tensor", "f32")),
        EmptyRowScalesKernel(Scheme("f8E4M3FN", "row", "f32")),
        InverseScaleKernel(),
        UpdateScaleKernel(delayed),
        UpdateScaleKernel(delayed, -1, most_recent=True),
    ]
