"""The repeated blocks of a model, such as the layers of a transformer, which torch captures once for all of them.

Each call of a block is a capture of its own, shared by the blocks that torch finds alike. The modules around them run
as Python: what they call is compiled, their own ops are torch's. So a model is cut into its blocks only if the code
around them computes no product, ranks nothing, makes no checkpoints, and reaches modules by their names.
"""

import functools
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves

from steelyard.driver.checkpointing import Switch, makes_checkpoints, switches
from steelyard.driver.code_names import names_in
from steelyard.driver.forward import runs_as_python
from steelyard.driver.settings import AUTO, Chosen
from steelyard.errors import UnsupportedModelError
from steelyard.recipes import Overrides

FEWEST = 4
"""How many blocks must be alike for a model to be cut without being asked: with fewer there is little to gain."""

_CONTAINERS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
_PRODUCTS = frozenset(
    f".{name}"
    for name in (
        *("linear", "bilinear", "matmul", "mm", "bmm", "mv", "addmm", "addmv", "addbmm", "baddbmm", "multi_dot"),
        *("einsum", "tensordot", "inner", "chain_matmul", "scaled_mm", "_scaled_mm", "grouped_mm", "_grouped_mm"),
        *("scaled_dot_product_attention", "multi_head_attention_forward"),
    )
)
"""With a dot: `self.linear(x)` calls a submodule, which is compiled like a block."""
_ALWAYS_OURS = frozenset((".gelu", ".silu", ".tanh", ".sigmoid", ".layer_norm", ".native_layer_norm"))
"""What programs that train compute by kernels whose bits are not torch's."""
_RANKS = frozenset(f".{name}" for name in ("topk", "sort", "argsort", "argmax", "argmin"))
_MODULES_AS_THEY_ARE = frozenset(
    ["_modules", "children", "named_children", "modules", "named_modules", "get_submodule"]
)
"""What gives the plain submodules of a net instead of its parts."""


@dataclass(frozen=True)
class Blocks:
    """How a model is cut."""

    groups: Mapping[str, Hashable]
    """The names of the blocks; those with equal values have the same structure and the same recipes."""
    around: frozenset[str]
    """The names of the modules that hold blocks."""
    switches: Sequence[Switch]
    """Where one of them is on, the modules that hold blocks make checkpoints, and the model is captured as a whole."""

    def are_checkpointed(self) -> bool:
        """Whether the modules that hold blocks make checkpoints now."""
        return any(switch.is_on() for switch in self.switches)

    @functools.cached_property
    def sharers(self) -> Counter[Hashable]:
        """How many blocks are in each group."""
        return Counter(self.groups.values())


def find_blocks(model: torch.nn.Module, chosen: Chosen, overrides: Overrides) -> Blocks | None:
    """The blocks of a model; None if it is captured as a whole."""
    if chosen is False:
        return None
    modules = dict(model.named_modules(remove_duplicate=False))
    if isinstance(chosen, tuple):
        found = [name for container in chosen for name in _children_of(container, modules)]
    else:
        found = list(_repeated(model, ""))
    around = frozenset(".".join(name.split(".")[:count]) for name in found for count in range(name.count(".") + 1))
    holders = [modules[name] for name in around]
    if not found or (chosen == AUTO and any(map(_must_be_captured, holders))):
        return None
    groups = {name: _group(name, modules[name], overrides) for name in found}
    checkpointing = [holder for holder in holders if chosen == AUTO and makes_checkpoints(holder)]
    return Blocks(groups, around, [switch for holder in checkpointing for switch in switches(holder)])


def _children_of(container: str, modules: Mapping[str, torch.nn.Module]) -> list[str]:
    """The blocks in a module that a user names."""
    held = modules.get(container)
    children = [f"{container}.{key}".removeprefix(".") for key, child in held.named_children()] if held else []
    if not isinstance(held, _CONTAINERS) or not children:
        known = ", ".join(sorted(name for name, m in modules.items() if name and isinstance(m, _CONTAINERS) and len(m)))
        raise UnsupportedModelError(
            f"blocks must name a ModuleList, Sequential or ModuleDict with modules in it, got {container!r}; the "
            f"model has {known or 'none'}"
        )
    return children


def _repeated(module: torch.nn.Module, name: str) -> Iterator[str]:
    """The names of repeated blocks, the outermost ones first: blocks within blocks are not cut again."""
    children = {f"{name}.{key}".removeprefix("."): child for key, child in module.named_children()}
    alike: set[Hashable] = set()
    if isinstance(module, _CONTAINERS):
        counted = Counter(_structure(child) for child in children.values() if _is_block(child))
        alike = {structure for structure, count in counted.items() if count >= FEWEST}
    for full_name, child in children.items():
        if alike and _is_block(child) and _structure(child) in alike:
            yield full_name
        else:
            yield from _repeated(child, full_name)


def _is_block(module: torch.nn.Module) -> bool:
    return any(True for _ in module.children()) and may_multiply(module)


def _structure(module: torch.nn.Module) -> Hashable:
    classes = tuple((name, type(child)) for name, child in module.named_modules())
    return classes, tuple((name, tuple(p.shape), p.dtype) for name, p in module.named_parameters())


def _group(name: str, module: torch.nn.Module, overrides: Overrides) -> Hashable:
    layers = [f"{name}.{inner}".removesuffix(".") for inner, _ in module.named_modules(remove_duplicate=False)]
    # The weights of experts are layers of their own.
    layers += [f"{name}.{inner}" for inner, parameter in module.named_parameters() if parameter.dim() == 3]
    # Patterns may differ where recipes do not: those of a tuned recipe are names of layers.
    return _structure(module), tuple(
        None if (pattern := overrides.pattern_of(layer)) is None else (overrides[pattern],) for layer in layers
    )


@runs_as_python
def may_multiply(module: torch.nn.Module) -> bool:
    """Whether a module or one of its submodules has a matrix that a GEMM could read."""
    if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag):
        return False
    matrices = any(p.dim() >= 2 for p in module.parameters(recurse=False))
    return matrices or any(may_multiply(child) for child in module.children())


@runs_as_python
def has_products(module: torch.nn.Module) -> bool:
    """Whether the code of a module or one of its submodules seems to compute a product, with parameters or without."""
    return may_multiply(module) or any(names_in(child) & _PRODUCTS for child in module.modules())


@runs_as_python
def is_compiled(module: torch.nn.Module) -> bool:
    """Whether the part of a net that stands for a module is compiled; otherwise torch runs the module itself."""
    return has_products(module) or any(names_in(child) & _ALWAYS_OURS for child in module.modules())


def modules_outside(model: torch.nn.Module, blocks: Blocks) -> dict[int, str]:
    """The names, by id, of the modules whose forwards run as Python: those around blocks, and others beside them."""
    modules = dict(model.named_modules(remove_duplicate=False))
    outside = {id(modules[name]): name for name in blocks.around}
    for name in blocks.around:
        children = {f"{name}.{key}".removeprefix("."): child for key, child in modules[name].named_children()}
        for full_name, child in children.items():
            if full_name not in blocks.around and full_name not in blocks.groups and not is_compiled(child):
                outside |= {id(module): full_name for module in child.modules()}
    return outside


def _must_be_captured(module: torch.nn.Module) -> bool:
    """Whether the forward of a module that holds blocks does itself what only a captured graph shows."""
    # Ranks matter where scores are at hand: a function that forward calls, such as a loss that balances experts, ranks
    # what was computed before.
    names = names_in(module)
    named = (names & (_PRODUCTS | _ALWAYS_OURS)) | (names_in(module, deep=False) & _RANKS)
    always_checkpoints = makes_checkpoints(module) and not switches(module)
    return bool(named) or _calls_plain_modules(module, names) or always_checkpoints


def _calls_plain_modules(module: torch.nn.Module, names: frozenset[str]) -> bool:
    """Whether the code of a module may call submodules that it does not reach by their names: those run uncompiled."""
    held = [value for name, value in vars(module).items() if name in names]
    return bool(names & _MODULES_AS_THEY_ARE) or any(isinstance(x, torch.nn.Module) for x in tree_leaves(held))
