"""Facts that are stated once, checked against the code that uses them."""

import torch

from steelyard.codegen import activations as cuda_activations
from steelyard.formats.activations import ACTIVATIONS, EPILOGUES
from steelyard.formats.dtypes import ITEM_SIZES
from steelyard.formats.gemms import KINDS, OPERAND_ROLES, OPERAND_USAGES, ROLES, USAGES, reads_columnwise
from steelyard.ir.view_ops import KEEPS_ORDER, RESHAPES, SHARES_MEMORY
from steelyard.reference import gemm as reference_gemm
from steelyard.runtime.dtypes import DTYPES


def test_item_sizes_are_those_of_torch():
    assert {name: DTYPES[name].itemsize for name in DTYPES} == {name: ITEM_SIZES[name] for name in DTYPES}


def test_every_target_computes_the_named_activations():
    assert tuple(reference_gemm.EPILOGUES) == EPILOGUES
    assert tuple(cuda_activations.ACTIVATIONS) == ACTIVATIONS


def test_gemms_read_the_copies_whose_blocks_lie_along_the_reduction():
    # Tensors are x [M, K], w [N, K] and dy [M, N]; a rowwise copy has blocks along the last dim.
    dims = {"input": "MK", "weight": "NK", "grad_output": "MN"}
    reduced = {"fprop": "K", "dgrad": "N", "wgrad": "M"}
    for kind in KINDS:
        for role, usage in zip(OPERAND_ROLES[kind], OPERAND_USAGES[kind], strict=True):
            assert dims[role].index(reduced[kind]) == (1 if usage == "rowwise" else 0), (kind, role)
            assert role in ROLES
            assert usage in USAGES
        assert reads_columnwise(kind) == tuple(usage == "columnwise" for usage in OPERAND_USAGES[kind])


VIEWS = {
    "t": lambda x: x.t(),
    "numpy_T": lambda x: x.numpy_T() if hasattr(x, "numpy_T") else torch.ops.aten.numpy_T(x),
    "transpose.int": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "view": lambda x: x.view(2, 12),
    "_unsafe_view": lambda x: torch.ops.aten._unsafe_view(x, [2, 12]),
    "reshape": lambda x: x.reshape(2, 12),
    "expand": lambda x: x.expand(3, 4, 6),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x.squeeze(),
    "squeeze.dim": lambda x: x.squeeze(0),
    "detach": lambda x: x.detach(),
    "alias": lambda x: torch.ops.aten.alias(x),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.t().contiguous(),
    "_to_copy": lambda x: torch.ops.aten._to_copy(x, dtype=torch.float64),
    "to.dtype": lambda x: x.to(torch.float64),
    "slice.Tensor": lambda x: x[1:3],
    "select.int": lambda x: x[1],
    "split.Tensor": lambda x: x.split(2)[1],
    "split_with_sizes": lambda x: x.split([1, 3])[1],
    "chunk": lambda x: x.chunk(2)[1],
    "unbind.int": lambda x: x.unbind()[1],
}


def test_views_do_to_memory_what_the_table_says():
    """Run every op of the table by torch itself."""
    for name, view in VIEWS.items():
        x = torch.arange(24.0).view(4, 6)
        result = view(x)
        op = f"torch.aten.{name}"
        if op in SHARES_MEMORY:
            assert result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr(), name
        if op in KEEPS_ORDER:
            assert torch.equal(result.flatten(), x.flatten()), name
        if op in RESHAPES:
            assert result.shape != x.shape
    copies = {"clone", "contiguous", "_to_copy", "to.dtype"}
    for name in copies:
        assert f"torch.aten.{name}" not in SHARES_MEMORY
