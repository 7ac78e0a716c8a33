"""Writes the tables of costs that come with `steelyard.tune`: of this machine's CPU kernels, or of GPUs on paper.

    STEELYARD_ISA=avx2 OMP_NUM_THREADS=1 python benchmarks/tuning_costs.py cpu-avx2
    OMP_NUM_THREADS=1 python benchmarks/tuning_costs.py cpu-avx512
    python benchmarks/tuning_costs.py sm_90a sm_100a

Seconds of a layer are taken to be a constant, and terms for each number of the input, each multiplication and each
number of the weight. For CPUs these are fitted to measured layers. For GPUs nothing is measured: they follow from the
bandwidth and the rates of tensor cores in data sheets.
"""

import argparse
import itertools
import json

import machine
import numpy
import torch
from gpu_roofline import GPUS, Gpu
from scipy.optimize import nnls

from steelyard import recipes
from steelyard.recipes import Recipe
from steelyard.runtime import cpu
from steelyard.targets.architectures import TARGETS
from steelyard.targets.gemm_paths import NATIVE, gemm_path
from steelyard.tuning import costs
from steelyard.tuning.grids import grid_class, input_scheme, weight_bits

FORMATS = ("nvfp4-4over6", "nvfp4-4over6/mxfp8", "nvfp4-4over6/none", "mxfp4", "mxfp4/mxfp8", "mxfp4/none")
FORMATS += ("mxfp8", "mxfp8/none", "fp8-row", "fp8-row/none", "nvfp4-4over6/fp8-row", "mxfp4/fp8-row")
ROWS = (1, 32, 256)
WEIGHTS = ((576, 576), (1536, 576), (576, 1536), (2048, 2048))
PLAIN_BYTES = 2
"""Of a number in bf16, which GPUs compute in."""
PART = 32 * 32


def fitted(formats: dict[str, Recipe]) -> dict[str, list[float]]:
    """The terms that come nearest to measured seconds, by relative error."""
    shapes = [(rows, *weight) for rows, weight in itertools.product(ROWS, WEIGHTS)]
    measured = costs.measure_layers(shapes, formats, torch.float32)
    sizes = numpy.array([(1, m * k, m * n * k, n * k) for m, n, k in shapes], dtype=float)
    found = {}
    for name, recipe in {**formats, costs.NONE: None}.items():
        seconds = numpy.array([measured[costs.key(shape)][name] for shape in shapes])
        terms, _ = nnls(sizes / seconds[:, None], numpy.ones(len(shapes)))
        found[costs.kind_of(recipe)] = [float(f"{term:.3g}") for term in terms]
        worst = max(abs(sizes @ terms / seconds - 1))
        print(f"{costs.kind_of(recipe)}: {found[costs.kind_of(recipe)]}, off by {worst:.0%} at most")
    return found


def predicted(gpu: Gpu, recipe: Recipe | None) -> list[float]:
    """The terms of a GPU: what tensor cores multiply, and what is read and written."""
    bandwidth = gpu.copy_bandwidth
    if recipe is None:
        return [0.0, PLAIN_BYTES / bandwidth, 2 / gpu.tensor_flops["bf16"], PLAIN_BYTES / bandwidth]
    weight, lhs = grid_class(recipe).scheme, input_scheme(recipe)
    path = gemm_path("fprop", lhs, weight, TARGETS[gpu.target]).path
    element = "fp4" if weight.element == "f4E2M1FN" else "fp8"
    stored = weight_bits(recipe, (32, 32), torch.bfloat16) / 8 / PART
    own = PLAIN_BYTES if lhs is None else 1 if lhs.element == "f8E4M3FN" else stored
    if path == NATIVE:
        # An input is read, written as codes, and read again.
        return [0.0, (PLAIN_BYTES + 2 * own) / bandwidth, 2 / gpu.tensor_flops[element], stored / bandwidth]
    decoded = 2 * PLAIN_BYTES
    of_input = PLAIN_BYTES if lhs is None else PLAIN_BYTES + 2 * own + decoded
    return [0.0, of_input / bandwidth, 2 / gpu.tensor_flops["bf16"], (stored + decoded) / bandwidth]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", choices=("cpu-avx2", "cpu-avx512", *(gpu.target for gpu in GPUS)))
    tables = json.loads(costs._SHIPPED.read_text()) if costs._SHIPPED.exists() else {}
    formats = {name: recipes.get(name).settled(trains=False) for name in FORMATS}
    for target in parser.parse_args().targets:
        if target.startswith("cpu"):
            assert cpu.isa().startswith(target.removeprefix("cpu-")), f"set STEELYARD_ISA: kernels are for {cpu.isa()}"
            about = f"measured on one thread of {machine.describe()['CPU']}, kernels for {cpu.isa()}, float32"
            seconds = fitted(formats)
        else:
            gpu = next(each for each in GPUS if each.target == target)
            about = f"predicted for {gpu.name} from its data sheet, bf16; nothing was measured"
            kinds = {costs.kind_of(recipe): recipe for recipe in (*formats.values(), None)}
            seconds = {
                kind: [float(f"{term:.3g}") for term in predicted(gpu, recipe)] for kind, recipe in kinds.items()
            }
        tables[target] = {"about": about, "seconds": seconds}
    costs._SHIPPED.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
