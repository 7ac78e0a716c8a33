"""Print the measured tables of docs/numerics.md and draw its two figures.

python docs/make_numerics.py
"""

from pathlib import Path

import matplotlib
import numpy as np
import torch

from steelyard import reference
from steelyard.formats.schemes import Scheme
from steelyard.recipes import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Float8RowScaling,
    MXFP4BlockScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from steelyard.reference.casts import E2M1, E4M3, E5M2

matplotlib.use("Agg")
from matplotlib import pyplot as plt

IMAGES = Path(__file__).parent / "images"
PLAIN_FP4 = {"weight_tiles": False, "rht": False, "stochastic_rounding": False}
WIDE_FP4 = Scheme("f4E2M1FN", "1x32", "f8E4M3FN", second_level="tensor")
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#2a6f97", "#e07a1f", "#3a8a4d", "#b23a48", "#6a4c93", "#555555"
SCHEMES = {
    "E4M3, one scale per tensor": Float8CurrentScaling().schemes("input"),
    "E5M2, one scale per tensor": Float8CurrentScaling().schemes("grad_output"),
    "E4M3, scale fixed at 1 (first delayed step)": DelayedScaling().schemes("input"),
    "E4M3, one scale per row": Float8RowScaling().schemes("input"),
    "FP8 1x128": Float8BlockScaling().schemes("input"),
    "FP8 128x128": Float8BlockScaling().schemes("weight"),
    "MXFP8, rule rceil": MXFP8BlockScaling().schemes("input"),
    "MXFP8, rule floor": MXFP8BlockScaling(scale_rule="floor").schemes("input"),
    "MXFP8, rule ceil": MXFP8BlockScaling(scale_rule="ceil").schemes("input"),
    "MXFP8, rule even": MXFP8BlockScaling(scale_rule="even").schemes("input"),
    "MXFP8 32x32": MXFP8BlockScaling(weight_tiles=True).schemes("weight"),
    "MXFP8, E5M2": MXFP8BlockScaling(fp8_format="HYBRID").schemes("grad_output"),
    "MXFP4, rule rceil": MXFP4BlockScaling().schemes("input"),
    "MXFP4, rule floor": MXFP4BlockScaling(scale_rule="floor").schemes("input"),
    "MXFP4, rule ceil": MXFP4BlockScaling(scale_rule="ceil").schemes("input"),
    "MXFP4, rule even": MXFP4BlockScaling(scale_rule="even").schemes("input"),
    "NVFP4 1x16 (columnwise: RHT)": NVFP4BlockScaling().schemes("input"),
    "NVFP4 16x16": NVFP4BlockScaling().schemes("weight"),
    "NVFP4 1x32": (WIDE_FP4, WIDE_FP4),
    "NVFP4 1x16, stochastic (columnwise: RHT)": NVFP4BlockScaling().schemes("grad_output"),
    "NVFP4 1x16, row-scaled (columnwise: per tensor)": NVFP4BlockScaling(row_scaled=True, **PLAIN_FP4).schemes("input"),
    "NVFP4 1x16, four-over-six mae": NVFP4BlockScaling(four_over_six="all", **PLAIN_FP4).schemes("input"),
    "NVFP4 1x16, four-over-six mse": NVFP4BlockScaling(
        four_over_six="all", four_over_six_error="mse", **PLAIN_FP4
    ).schemes("input"),
    "NVFP4 16x16, four-over-six mse": NVFP4BlockScaling(four_over_six="weights", four_over_six_error="mse").schemes(
        "weight"
    ),
}


def quantize(x: torch.Tensor, row, col):
    scale = torch.tensor(1.0) if row.source == "delayed" else None
    return reference.quantize(x, row, col, scale=scale, rng=(0, 0))


def relative_error(x: torch.Tensor, copy, where: torch.Tensor) -> str:
    difference = (reference.dequantize(copy).double() - x)[where]
    return f"{100 * difference.norm() / x[where].double().norm():.2f} %"


def print_formats() -> None:
    print("| format | largest | smallest normal | smallest | values above zero | relative step |")
    print("|---|---|---|---|---|---|")
    for label, fmt in (("E4M3", E4M3), ("E5M2", E5M2), ("E2M1", E2M1)):
        positive = fmt.values[np.isfinite(fmt.values) & (fmt.values > 0)]
        normal, smallest = (round(np.log2(v)) for v in (2.0 ** (1 - fmt.bias), positive.min()))
        step = f"2^-{fmt.mantissa_bits + 1} to 2^-{fmt.mantissa_bits}"
        print(f"| {label} | {fmt.max:g} | 2^{normal} | 2^{smallest} | {len(positive)} | {step} |")


def print_errors() -> None:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(1024, 1024, generator=generator)
    is_outlier = torch.rand(1024, 1024, generator=generator) < 1e-3
    mixed = torch.where(is_outlier, 100 * normal, normal)
    everywhere = torch.ones_like(is_outlier)
    print("| scheme | bits | N(0,1) rowwise | columnwise | beside outliers, rowwise | columnwise |")
    print("|---|---|---|---|---|---|")
    for label, pair in SCHEMES.items():
        plain, beside = quantize(normal, *pair), quantize(mixed, *pair)
        parts = (plain[0].codes, plain[0].scales, plain[0].amax)
        bits = 8 * sum(part.nbytes for part in parts if part is not None) / normal.numel()
        errors = [relative_error(normal, copy, everywhere) for copy in plain]
        errors += [relative_error(mixed, copy, ~is_outlier) for copy in beside]
        print(f"| {label} | {bits:.2f} | {' | '.join(errors)} |")


def draw_values() -> None:
    figure, axes = plt.subplots(figsize=(9, 2.6))
    for height, (label, fmt, color) in enumerate((("E2M1", E2M1, RED), ("E4M3", E4M3, BLUE), ("E5M2", E5M2, ORANGE))):
        positive = fmt.values[np.isfinite(fmt.values) & (fmt.values > 0)]
        axes.vlines(positive, height - 0.32, height + 0.32, color=color, linewidth=0.9)
        axes.text(1.3 * positive.max(), height, f"{label}: {len(positive)} values", va="center", color=color)
    axes.set_xscale("log", base=2)
    axes.set_xlim(2.0**-17, 2.0**23)
    axes.set_yticks([])
    axes.set_xlabel("positive representable value")
    finish(figure, axes, "representable-values.png")


def draw_error() -> None:
    """Rows of one tensor at falling magnitudes: what a scale shared with larger values costs."""
    magnitude = 2.0 ** -(torch.arange(128) / 4.0)
    x = torch.randn(128, 2048, generator=torch.Generator().manual_seed(1)) * magnitude[:, None]
    lines = {
        "E5M2, one scale per tensor": (ORANGE, SCHEMES["E5M2, one scale per tensor"]),
        "E4M3, one scale per tensor": (BLUE, SCHEMES["E4M3, one scale per tensor"]),
        "MXFP8": (GREEN, SCHEMES["MXFP8, rule rceil"]),
        "FP8 1x128": (GREY, SCHEMES["FP8 1x128"]),
        "NVFP4": (RED, SCHEMES["NVFP4 1x16 (columnwise: RHT)"]),
        "NVFP4, row-scaled": (PURPLE, SCHEMES["NVFP4 1x16, row-scaled (columnwise: per tensor)"]),
    }
    figure, axes = plt.subplots(figsize=(9, 4.2))
    for label, (color, (row, _)) in lines.items():
        decoded = reference.dequantize(quantize(x, row, None)[0])
        error = (decoded - x).norm(dim=1) / x.norm(dim=1)
        dashed = "--" if label == "FP8 1x128" else "-"
        axes.plot(magnitude.numpy(), 100 * error.numpy(), dashed, color=color, label=label, linewidth=1.6)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.invert_xaxis()
    axes.set_yticks([2, 5, 10, 20, 50, 100], ["2 %", "5 %", "10 %", "20 %", "50 %", "100 %"])
    axes.set_xlabel("standard deviation of a row; the largest row of the tensor has 1")
    axes.set_ylabel("relative error of the row")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    finish(figure, axes, "error-against-magnitude.png")


def finish(figure, axes, name: str) -> None:
    for side in ("top", "right", "left") if name.startswith("representable") else ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(IMAGES / name, dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    print_formats()
    print()
    print_errors()
    draw_values()
    draw_error()
