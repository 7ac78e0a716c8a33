"""Linear layers with many rows, the quantization of the activation included, beside torch's products."""

import torch
from linears import GEMMS, linear, quantized_weight
from machine import pinned
from report import SPEED, SPEED_BEST, Table, progress
from timing import interleave

# M, N, K
SHAPES = ((256, 2048, 2048), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096))
ODD_SHAPES = ((1021, 1031, 1033), (300, 2000, 1000))
AIMS = {"fp8": 1.0, "mxfp8": 1.0, "fp8 1x128": 0.95, "nvfp4": 1.6}


def measure(quick: bool = False) -> Table:
    """One row per shape and contender."""
    columns = ["M x N x K", "contender", "GMAC/s", SPEED, SPEED_BEST, "aim"]
    title = "Linear layer, quantization of the activation included, 1 thread"
    table = Table(title, columns, labels=["M x N x K", "contender"], ratio=SPEED)
    shapes = SHAPES[:3] if quick else SHAPES + ODD_SHAPES
    with pinned(1):
        for shape in shapes:
            progress(" x ".join(map(str, shape)))
            table.rows += _rows(shape, repeats=3 if quick else 7)
    progress("")
    table.notes.append(
        "speed: CPU time of torch's float32 product / CPU time, by medians and by the best calls; above 1 is faster."
    )
    return table


def _rows(shape: tuple[int, int, int], repeats: int) -> list[list[str | float]]:
    M, N, K = shape
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(M, K, generator=generator), torch.randn(N, K, generator=generator)
    out = torch.empty(M, N)
    works = {"fp32": lambda: torch.mm(x, w.T)}
    # The other peers may take many times as long, so they run at small sizes only.
    is_small = M * N * K <= 2**30
    if is_small:
        narrow = x.bfloat16(), w.bfloat16().T
        works["bf16"] = lambda: torch.mm(*narrow)
    if is_small and M % 16 == N % 16 == K % 16 == 0:
        one = torch.tensor(1.0)
        fp8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn).T
        works["scaled_mm"] = lambda: torch._scaled_mm(*fp8, scale_a=one, scale_b=one, out_dtype=torch.float32)
    for name, (scheme, weight_scheme) in GEMMS.items():
        works[name] = linear(x, scheme, quantized_weight(w, weight_scheme), out)
    times = interleave(works, repeats)
    names = {name: f"steelyard {name}" for name in GEMMS} | {"bf16": "torch bf16", "scaled_mm": "torch._scaled_mm E4M3"}
    return [
        [
            f"{M} x {N} x {K}",
            shown,
            M * N * K / times[name].best * 1e-9,
            times["fp32"].median / times[name].median,
            times["fp32"].best / times[name].best,
            AIMS.get(name, ""),
        ]
        for name, shown in names.items()
        if name in times
    ]
