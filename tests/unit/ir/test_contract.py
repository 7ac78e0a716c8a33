"""Ops by their names: as many operands and results as torch's schemas have arguments and results."""

import pytest
import torch
from torch_mlir.dialects import torch as torch_dialect

import steelyard.frontend.grouped_mm
import steelyard.tensor.cached_rows  # noqa: F401
from steelyard.ir.contract import operator_counts

ATTENTION = "torch.aten._scaled_dot_product_flash_attention_for_cpu"
UNREGISTERED = [
    *(ATTENTION, f"{ATTENTION}_backward", "torch.aten._grouped_mm", "torch.aten.index_copy", "torch.aten.index_copy_"),
    *("torch.aten.select_backward", "torch.aten.silu_backward", "torch.aten.slice_backward"),
    *(f"torch.steelyard.{name}" for name in ("count_saturated", "decode_rows", "decode_static", "encode_rows")),
    *("torch.steelyard.encode_static", "torch.steelyard.grouped_mm"),
]
ANY_NUMBER = "torch.aten.format"


def schema_of(name: str) -> torch.FunctionSchema | None:
    """torch's schema of an op; None where torch has none of this name."""
    _, library, op, *overload = name.split(".")
    packet = getattr(getattr(torch.ops, library), op, None)
    found = getattr(packet, overload[0] if overload else "default", None)
    return None if found is None else found._schema


def registered() -> list[str]:
    names = {getattr(op, "OPERATION_NAME", "") for op in vars(torch_dialect).values()}
    return sorted(name for name in names if name.startswith(("torch.aten.", "torch.prims.")))


def test_ops_that_are_registered_have_the_counts_of_torch():
    schemas = {name: schema for name in registered() if name != ANY_NUMBER and (schema := schema_of(name)) is not None}
    assert len(schemas) > 600
    wanted = {name: (len(schema.arguments), len(schema.returns)) for name, schema in schemas.items()}
    assert {name: operator_counts(name) for name in schemas} == wanted


@pytest.mark.parametrize("name", UNREGISTERED)
def test_other_ops_have_the_counts_of_torch(name):
    schema = schema_of(name)
    assert schema is not None
    assert operator_counts(name) == (len(schema.arguments), len(schema.returns))


@pytest.mark.parametrize("name", [ANY_NUMBER, "torch.prim.ListConstruct", "torch.library.other", "torch.constant.int"])
def test_other_names_have_any_number(name):
    assert operator_counts(name) is None
