"""Whole programs on a mock of the driver: CPU tensors stand in for GPU tensors, and the interpreter runs the kernels.

Every launch goes through the real host code and cuda-bindings. It may access only the tensors it was given, and runs as
late as the order of its stream allows; memory is overwritten when its tensors are gone. `torch.empty` is filled with
NaN and largest integers. GEMMs are one reference on both targets: a GPU's are torch's.
"""

import ctypes
import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from gemm_calls import read_call, read_groups
from mock_driver import MockDriver
from mock_heap import Heap
from mock_schedules import FreesFirst, Schedule
from simulation import memory_of
from torch_rules import check_call, check_groups, check_scaled_groups

from steelyard import reference
from steelyard.codegen.kernel import Kernel
from steelyard.errors import TargetError
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme
from steelyard.ir.kernel_calls import GemmCall, GroupedGemmCall
from steelyard.passes import fuse_elementwise, lower_attention, lower_rows
from steelyard.runtime import cpu
from steelyard.runtime.cpu import bound as cpu_bound
from steelyard.runtime.cuda import block_groups, devices, gemm, groups, streams
from steelyard.runtime.cuda.driver import CudaLauncher
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.cuda.launches import Launch
from steelyard.targets.architectures import TARGETS, Version


class CheckedLauncher:
    """Launches through the driver, which gives each launch only the memory of its own tensors on its own device."""

    def __init__(self, heap: Heap, driver: MockDriver, device: int, cublaslt: Version | None = None):
        self.heap, self.driver, self._count = heap, driver, len(heap.memories)
        self._launch = CudaLauncher(device, lambda: torch.cuda.current_stream(device).cuda_stream, cublaslt)
        self.target = self._launch.target
        self.launches: list[Launch] = []
        """Without their arguments, which would live on."""

    def load(self, kernels: Iterable[Kernel]) -> None:
        self._launch.load(kernels)

    def __call__(self, launch: Launch) -> None:
        tensors = [argument for argument in launch.arguments if isinstance(argument, torch.Tensor)]
        with self.heap.lock:
            if not self.heap.has_host:
                self.heap.add(tensors)
            places = {device: [t for t in tensors if self.heap.device_of(t) == device] for device in range(self._count)}
            self.driver.memory_on = {device: memory_of(own) for device, own in places.items()}.__getitem__
            self.launches.append(replace(launch, arguments=()))
            self._launch(launch)


class MockGpus:
    """Some GPUs, the streams and the memory that they have, and the driver that they share."""

    def __init__(self, library: ctypes.CDLL, heap: Heap, targets: Sequence[str], cublaslt: Version | None = None):
        self.heap, self.streams = heap, heap.streams
        self.driver = MockDriver(library, heap, *(TARGETS[target].capability for target in targets))
        self.launchers = [CheckedLauncher(heap, self.driver, device, cublaslt) for device in range(len(targets))]

    def make_kernels(self, device: torch.device) -> Kernels:
        """The kernels of a device; a CPU tensor of no device's is on the only one, or on none of several."""
        if device.index is None and self.heap.has_host:
            raise TargetError(f"CUDA kernels need a CUDA device, got the host ({device})")
        return Kernels(self.launchers[device.index or 0])


@contextmanager
def mock_gpu(
    monkeypatch,
    library: ctypes.CDLL,
    target: str,
    *,
    frees_first: bool = False,
    schedule: Schedule | None = None,
    cublaslt: Version | None = None,
) -> Iterator[CheckedLauncher]:
    """Within this context, CPU tensors count as tensors on a GPU of this target."""
    with mock_gpus(monkeypatch, library, [target], FreesFirst() if frees_first else schedule, cublaslt) as gpus:
        yield gpus.launchers[0]


@contextmanager
def mock_gpus(
    monkeypatch,
    library: ctypes.CDLL,
    targets: Sequence[str],
    schedule: Schedule | None = None,
    cublaslt: Version | None = None,
) -> Iterator[MockGpus]:
    """Within this context, there are GPUs of these targets: the devices `cpu:0`, `cpu:1` and so on, if several."""
    with Heap(devices=len(targets), schedule=schedule) as heap, monkeypatch.context() as patch:
        gpus = MockGpus(library, heap, targets, cublaslt)
        current = heap.streams
        patch.setitem(devices.MAKERS, "cpu", gpus.make_kernels)
        patch.setattr(streams, "DEVICES", ("cuda", "cpu"))
        patch.setattr(torch.cuda, "current_device", lambda: current.device)
        patch.setattr(torch.cuda, "device", lambda device: current.use_device(_index(device)))
        patch.setattr(torch.cuda, "current_stream", lambda device: current.current_on(_index(device)))
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: current.is_capturing)
        patch.setattr(gemm, "scaled_mm", _checked_scaled_mm)
        patch.setattr(gemm, "multiply", functools.partial(multiply_on, heap))
        patch.setattr(gemm, "multiply_decoded", functools.partial(multiply_decoded_on, heap))
        patch.setattr(groups, "read_ends", functools.partial(read_ends_on, heap))
        patch.setattr(groups, "grouped_mm", functools.partial(grouped_mm_on, heap))
        for room in (groups, block_groups):
            patch.setattr(room, "scaled_grouped_mm", functools.partial(scaled_grouped_mm_on, heap, targets[0]))
        yield gpus


def _index(device: torch.device | int) -> int:
    return device if isinstance(device, int) else device.index or 0


@contextmanager
def reference_gemms(monkeypatch) -> Iterator[None]:
    """Within this context, the CPU's GEMMs are the reference, and what is between them is torch's, as on GPUs."""
    original = cpu_bound.bind

    def bind(call, quantizers):
        run, allocate = original(call, quantizers)
        if isinstance(call, GroupedGemmCall):
            return lambda *values: store_products(call, values), allocate
        is_product = isinstance(call, GemmCall) and not call.batch_dims
        return (lambda *values: store_product(call, values)) if is_product else run, allocate

    with monkeypatch.context() as patch:
        patch.setattr(cpu_bound, "bind", bind)
        # Calls on a tape are seen by no Python.
        patch.setenv("STEELYARD_TAPE", "0")
        for room in (fuse_elementwise, lower_attention, lower_rows):
            patch.setattr(room, "read_target", lambda module, target: "a GPU's")
        yield


def product_of(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product of decoded operands: exact except for one rounding to float32."""
    return (left.double() @ right.double()).float()


def multiply(a: gemm.GemmOperand, b: gemm.GemmOperand, *, bias=None, out_dtype: torch.dtype) -> torch.Tensor:
    """A native product from the arguments of scaled_mm, once the meta device has accepted the call."""
    _check_on_meta(a, b, bias, out_dtype)
    product = product_of(decode(a), decode(b).T)
    return (product if bias is None else product + bias.float()).to(out_dtype)


def multiply_on(
    heap: Heap, a: gemm.GemmOperand, b: gemm.GemmOperand, *, bias=None, out_dtype: torch.dtype
) -> torch.Tensor:
    """The same on the current stream."""
    out = torch.empty(_check_on_meta(a, b, bias, out_dtype), dtype=out_dtype, device=a.codes.device)
    schemes = a.scheme, b.scheme  # what a stream is to do keeps no operand

    def run(into: torch.Tensor, own_bias: torch.Tensor | None, *parts: torch.Tensor) -> None:
        left, right = gemm.GemmOperand(*parts[:3], schemes[0]), gemm.GemmOperand(*parts[3:], schemes[1])
        into.copy_(multiply(left, right, bias=own_bias, out_dtype=out_dtype))

    parts = a.codes, a.scales, a.amax, b.codes, b.scales, b.amax
    heap.enqueue(run, (out, bias, *parts), heap.stream_of(out))
    return out


def multiply_decoded_on(
    heap: Heap,
    left: torch.Tensor,
    right: torch.Tensor,
    out: torch.Tensor,
    left_scale: gemm.OuterScale | None = None,
    right_scale: gemm.OuterScale | None = None,
) -> torch.Tensor:
    """The product of values with all of their scales, which a GPU would apply to sums."""
    assert left.dtype == right.dtype
    ranges = [None if scale is None else scale.range for scale in (left_scale, right_scale)]

    def run(a: torch.Tensor, b: torch.Tensor, into: torch.Tensor, *scales: torch.Tensor | None) -> None:
        into.copy_(product_of(_scaled(a, scales[0], ranges[0]), _scaled(b.mT, scales[1], ranges[1]).mT))

    scales = [None if scale is None else scale.scale for scale in (left_scale, right_scale)]
    heap.enqueue(run, (left, right, out, *scales), heap.stream_of(out))
    return out


def read_ends_on(heap: Heap, ends: torch.Tensor) -> list[int]:
    """What the host waits for."""
    heap.stream_of(ends).synchronize()
    return ends.tolist()


def grouped_mm_on(heap: Heap, a: torch.Tensor, b: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
    """torch's product of groups in bf16, if it accepts the call; what is in no group is left as it was."""
    shape = check_groups(a, b, offs)
    out = torch.empty(shape, dtype=torch.bfloat16, device=a.device)

    def run(into: torch.Tensor, *operands: torch.Tensor) -> None:
        _store_groups(into, *operands)

    heap.enqueue(run, (out, a, b, offs), heap.stream_of(out))
    return out


def scaled_grouped_mm_on(
    heap: Heap,
    target: str,
    a,
    b,
    scale_a,
    scaling_a,
    scale_b,
    scaling_b,
    *,
    swizzle_a=None,
    swizzle_b=None,
    offs,
    output_dtype,
):
    """torch's product of quantized groups, if it accepts the call."""
    scales = [each if isinstance(each, list) else [each] for each in (scale_a, scale_b)]
    scalings = [each if isinstance(each, list) else [each] for each in (scaling_a, scaling_b)]
    product, shape = check_scaled_groups(
        a, b, scales[0], scalings[0], scales[1], scalings[1], (swizzle_a, swizzle_b), offs, output_dtype, target
    )
    out = torch.empty(shape, dtype=output_dtype, device=a.device)

    def run(into: torch.Tensor, left, right, left_scale, right_scale, ends, *levels) -> None:
        if product.name == "rowwise":
            values = left.float() * left_scale[:, None], right.float() * right_scale[:, None, :]
        else:
            values = decoded_groups(product.name, left, right, left_scale, right_scale, ends.tolist(), levels)
        _store_groups(into, *values, ends)

    levels = [level for each in scales for level in each[1:]]
    if product.name != "rowwise":
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    heap.enqueue(run, (out, a, b, scales[0][0], scales[1][0], offs, *levels), heap.stream_of(out))
    return out


def decoded_groups(name: str, left, right, left_scale, right_scale, ends: list[int], levels) -> tuple:
    """The values of rows in groups and of the weights, whose scales lie in tiles of each group's own."""
    first, tile, rows, stack = 0, 0, [], []
    for group, end in enumerate(ends):
        lines = -(-(end - first) // 128) * 128
        own = unswizzled(left_scale.view(torch.uint8)[tile : tile + lines])
        rows.append(_decoded_rows(name, left[first:end], own, levels[0][group] if levels else None))
        first, tile = end, tile + lines
    for group, matrix in enumerate(right.mT.contiguous()):
        own = unswizzled(right_scale.view(torch.uint8)[group].view(-(-len(matrix) // 128) * 128, -1))
        stack.append(_decoded_rows(name, matrix, own, levels[1][group] if levels else None))
    return torch.cat(rows), torch.stack(stack).mT


def _decoded_rows(name: str, codes: torch.Tensor, scales: torch.Tensor, level: torch.Tensor | None) -> torch.Tensor:
    scheme = {
        "mxfp8": Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"),
        "mxfp4": Scheme("f4E2M1FN", "1x32", "f8E8M0FNU"),
        "nvfp4": Scheme("f4E2M1FN", "1x16", "f8E4M3FN", source="static", second_level="tensor"),
    }[name]
    lines, packed = codes.shape
    columns = packed if name == "mxfp8" else 2 * packed
    own = scales[:lines, : columns // (16 if name == "nvfp4" else 32)].contiguous()
    return reference.dequantize(QuantizedCopy(codes, own, level, scheme, (lines, columns), False))


def _store_groups(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> None:
    start = 0
    for group, end in enumerate(ends.tolist()):
        rows, start = slice(start, end), end
        if b.dim() == 3:
            out[rows] = product_of(a[rows], b[group])
        elif rows.start < end:
            out[group] = product_of(a[:, rows], b[rows])


def _scaled(values: torch.Tensor, scale: torch.Tensor | None, by: int | None) -> torch.Tensor:
    """The values of rows with their scales, in the order of the reference."""
    if scale is None or by is None:
        return values.float()
    scaled = values.float() * (scale.reshape(-1, 1) if scale.dim() else scale)
    return scaled if by == 1 else scaled * torch.tensor(1 / by)


def _check_on_meta(a: gemm.GemmOperand, b: gemm.GemmOperand, bias, out_dtype: torch.dtype) -> torch.Size:
    """The shape of a native product, if torch accepts the call: on its meta device, and by the rules for CUDA."""
    on_meta = [
        gemm.GemmOperand(*(None if t is None else t.to("meta") for t in (x.codes, x.scales, x.amax)), x.scheme)  # pyright: ignore
        for x in (a, b)
    ]
    return _native(*on_meta, bias=None if bias is None else bias.to("meta"), out_dtype=out_dtype).shape


_native, _scaled_mm = gemm.multiply, gemm.scaled_mm


def _checked_scaled_mm(*arguments, **options) -> torch.Tensor:
    check_call(*arguments, **options)
    return _scaled_mm(*arguments, **options)


def decode(operand: gemm.GemmOperand) -> torch.Tensor:
    """Rows along the reduction."""
    scheme = replace(operand.scheme, layout="compact")
    rows, columns = operand.codes.shape
    columns = 2 * columns if scheme.family == "nvfp4" else columns
    scales = operand.scales
    if scheme.family == "block":
        # 1x128 scales are transposed; both kinds are padded to whole vectors.
        scales = scales[:, : rows if scheme.block == "1x128" else columns // 128]
        scales = scales.T.contiguous() if scheme.block == "1x128" else scales.contiguous()
    elif scheme.family in ("mx", "nvfp4"):
        width = 32 if scheme.family == "mx" else 16
        scales = unswizzled(scales)[:rows, : columns // width].contiguous()
    if scheme.family == "mx" and scheme.block == "32x1":
        scheme = replace(scheme, block="1x32")
    return decoded(QuantizedCopy(operand.codes, scales, operand.amax, scheme, (rows, columns), False))


def unswizzled(scales: torch.Tensor) -> torch.Tensor:
    """Tiles of 128x4 scales: 32 rows of 16 bytes, each row four groups of four."""
    rows, columns = scales.shape
    tiles = scales.reshape(rows // 128, columns // 4, 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, columns)


def store_product(call: GemmCall, values: tuple) -> None:
    """What the fused store of a CPU GEMM writes, from the reference product rounded to float32."""
    a, b, options, _ = read_call(call, values)
    out = values[len(call.operands)]
    left, right = (decoded(copy) for copy in (a, b))
    result = product_of(left, right.T)
    if "bias" in options:
        result = result + options["bias"].float()
    if [slot.name for slot in call.results] == ["result", "preactivation"]:
        kept = values[len(call.operands) + 1]
        kept.copy_(result.view(kept.shape))
    if options["epilogue"] != "none":
        result = cpu.produce(options["epilogue"], (result,), torch.float32)
    if "residual" in options:
        result = result + options["residual"].reshape(result.shape).float()
    out.copy_(result.view(out.shape))


def store_products(call: GroupedGemmCall, values: tuple) -> None:
    """The products of experts, from those of the reference rounded to float32."""
    out = values[len(call.operands)]
    out.zero_()
    start = 0
    for group, pair in enumerate(zip(*read_groups(call, values), strict=True)):
        left, right = (decoded(copy) for copy in pair)
        if call.kind == "wgrad":
            out[group] = product_of(left, right.T)
        else:
            out[start : start + len(left)] = product_of(left, right.T)
            start += len(left)


def decoded(copy: QuantizedCopy | torch.Tensor) -> torch.Tensor:
    """Rows along the reduction, without undoing the Hadamard transform: what GPU GEMMs multiply."""
    if isinstance(copy, torch.Tensor):
        return copy.float()
    if copy.scheme.family == "mx" and copy.columnwise:
        return reference.dequantize(copy).T
    plain = replace(copy.scheme, rht=False)
    return reference.dequantize(replace(copy, scheme=plain, shape=copy.stored_shape, columnwise=False))
