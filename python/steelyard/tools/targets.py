"""`steelyard targets`: how each recipe's GEMMs run on each CUDA target."""

import argparse

from steelyard.tools.console import aligned, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", help="only this recipe, as in mxfp8 or nvfp4/none")
    parser.add_argument("--target", help="only this target, as in sm_100a or cuda:sm_100a")


def run(arguments: argparse.Namespace) -> int:
    """Print the table, then why GEMMs are not native."""
    show(table(arguments.recipe, arguments.target))
    return 0


def table(recipe: str | None = None, target: str | None = None) -> str:
    """One row per recipe and kind of GEMM, one column for targets that are alike, and the reasons below.

    `pad N16 K32`: columns of the result and the reduction are padded to multiples of 16 and 32.
    """
    from steelyard import recipes
    from steelyard.formats.gemms import KINDS
    from steelyard.formats.schemes import Scheme
    from steelyard.targets.architectures import TARGETS, Target, target_of
    from steelyard.targets.gemm_paths import NATIVE, gemm_path, schemes_of

    # `steelyard.compile` and the IR spell a target with its family before it.
    chosen_targets = [target_of(target.removeprefix("cuda:"))] if target else list(TARGETS.values())
    names = [recipe] if recipe else list(recipes.NAMES)
    gemms = [(name, kind, schemes_of(recipes.get(name), kind)) for name in names for kind in KINDS]
    reasons: dict[str, int] = {}

    def cell(kind: str, lhs: Scheme | None, rhs: Scheme | None, chosen: Target) -> str:
        path = gemm_path(kind, lhs, rhs, chosen)
        note = "" if path.path == NATIVE else f" [{reasons.setdefault(path.reason, len(reasons) + 1)}]"
        steps = ", ".join(_step(step, path.multiples) for step in path.steps)
        return f"{path.path}{note}" + (f" ({steps})" if steps else "")

    columns: dict[tuple[str, ...], list[str]] = {}
    for chosen in chosen_targets:
        cells = tuple(cell(kind, *schemes, chosen) for _, kind, schemes in gemms)
        columns.setdefault(cells, []).append(chosen.spelling)
    lines = [["recipe", "GEMM", *map(", ".join, columns.values())]]
    lines += [[name, kind, *row] for (name, kind, _), row in zip(gemms, zip(*columns, strict=True), strict=True)]
    notes = [f"[{number}] {reason}" for reason, number in reasons.items()]
    return "\n".join([aligned(lines), *([""] if notes else []), *notes])


def _step(step: str, multiples: tuple[int, ...]) -> str:
    """What is inserted before a GEMM, padding with its multiples: `pad N16 K32`."""
    if step != "pad":
        return step
    return " ".join(
        ["pad", *(f"{dim}{multiple}" for dim, multiple in zip("MNK", multiples, strict=True) if multiple > 1)]
    )
