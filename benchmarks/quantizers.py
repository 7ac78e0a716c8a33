"""Quantizers beside a copy of as many bytes as they read and write."""

import torch
from linears import BLOCK, E4M3, MXFP4, MXFP8, MXFP8_COLUMNS, NVFP4, NVFP4_TILES, ROW, TILE
from machine import pinned
from report import Table, progress
from timing import interleave

from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu, cpu
from steelyard.runtime.cpu.arguments import matrix_of
from steelyard.runtime.cpu.quantization import _target_arguments

SPEED, SPEED_BEST = "speed, copy = 1", "speed, copy = 1, best"
# Name, rowwise and columnwise scheme, and the speed that is aimed at for float32 input.
CASES: tuple[tuple[str, Scheme | None, Scheme | None, str], ...] = (
    ("MXFP8 rowwise", MXFP8, None, "0.68"),
    ("MXFP8 both", MXFP8, MXFP8_COLUMNS, "0.42"),
    ("E4M3 current", E4M3, None, "0.52"),
    ("E4M3 current + transpose", E4M3, E4M3, ""),
    ("E4M3 per row", ROW, None, ""),
    ("E4M3 128x128 + transpose", TILE, TILE, "0.55"),
    ("E4M3 1x128 both", BLOCK, BLOCK, ""),
    ("MXFP4 rowwise", MXFP4, None, ""),
    ("NVFP4 1x16", NVFP4, None, "0.39"),
    ("NVFP4 16x16 + transpose", NVFP4_TILES, NVFP4_TILES, "0.33"),
)


def measure(quick: bool = False) -> Table:
    """One row per quantizer and dtype."""
    side = 2048 if quick else 4096
    columns = ["dtype", "quantizer", "ms", SPEED, SPEED_BEST, "aim"]
    title = f"Quantizers, {side} x {side}, against a copy of the same bytes, 1 thread"
    table = Table(title, columns, labels=["dtype", "quantizer"], ratio=SPEED)
    with pinned(1):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(side, side, generator=torch.Generator().manual_seed(0)).to(dtype)
            for case in CASES:
                progress(f"{case[0]} {dtype}")
                table.rows.append(_row(x, *case, repeats=5 if quick else 15))
    progress("")
    table.notes.append("speed: time of a copy that moves as many bytes / time, by medians and by the best calls.")
    return table


def _row(x: torch.Tensor, name: str, row, col, aim: str, repeats: int) -> list[str | float]:
    shape = (x.shape[0], x.shape[1])
    copies = [
        None if scheme is None else cpu.empty_copy(scheme, shape, columnwise=columnwise)
        for scheme, columnwise in ((row, False), (col, True))
    ]
    parts = [x, *(part for copy in copies if copy is not None for part in (copy.codes, copy.scales))]
    moved = sum(part.numel() * part.element_size() for part in parts)
    source = torch.ones(moved // 2, dtype=torch.uint8)
    target = torch.empty_like(source)
    arguments = matrix_of(x)[1], *(_target_arguments(copy, None) for copy in copies)
    works = {
        "copy": lambda: target.copy_(source),
        "quantize": lambda: _cpu.quantize(*arguments, 0, 0, 0, torch.get_num_threads(), None),
    }
    times = interleave(works, repeats)
    found, copy = times["quantize"], times["copy"]
    is_float = x.dtype is torch.float32
    return [
        "f32" if is_float else "bf16",
        name,
        found.best * 1e3,
        copy.median / found.median,
        copy.best / found.best,
        aim if is_float else "",
    ]
