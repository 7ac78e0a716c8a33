"""Values that a caller might pass where something else belongs, each with a name that a report can show."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from steelyard import recipes
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu
from steelyard.tensor import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
)
from steelyard.tensor.reference import CurrentScalingQuantizerRef

E4M3 = torch.float8_e4m3fn
SCHEMES = {
    "tensor": (Scheme("f8E4M3FN", "tensor", "f32"), Scheme("f8E4M3FN", "tensor", "f32")),
    "block": (Scheme("f8E4M3FN", "1x128", "f32"), Scheme("f8E4M3FN", "1x128", "f32")),
    "mx": (Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"), Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")),
    "nvfp4": (
        Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="tensor"),
        Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="tensor"),
    ),
}
QUANTIZERS: dict[str, Callable[..., Any]] = {
    "delayed": lambda **options: Float8Quantizer(torch.ones(()), torch.zeros(()), E4M3, **options),
    "current": lambda **options: Float8CurrentScalingQuantizer(E4M3, **options),
    "block": lambda **options: Float8BlockQuantizer(E4M3, **options),
    "mx": lambda **options: MXFP8Quantizer(**options),
    "nvfp4": lambda **options: NVFP4Quantizer(**options),
    "template": lambda **options: CurrentScalingQuantizerRef(**options),
}


def matrix(rows: int = 32, columns: int = 64) -> torch.Tensor:
    return torch.randn(rows, columns)


def quantizer(draw: random.Random, **options) -> Any:
    return QUANTIZERS[draw.choice(list(QUANTIZERS))](**options)


def quantized(draw: random.Random, **options) -> Any:
    return quantizer(draw, **options)(matrix())


def scheme(draw: random.Random) -> Scheme:
    return draw.choice(SCHEMES[draw.choice(list(SCHEMES))])


def copy(draw: random.Random, family: str | None = None, *, columnwise: bool | None = None) -> Any:
    """A quantized copy of a 32x64 matrix."""
    row, col = SCHEMES[family or draw.choice(list(SCHEMES))]
    columnwise = draw.random() < 0.3 if columnwise is None else columnwise
    return cpu.quantize(matrix(), None, col)[1] if columnwise else cpu.quantize(matrix(), row, None)[0]


def damaged_copy(draw: random.Random) -> Any:
    """A copy with a field that does not belong to it."""
    field = draw.choice(["codes", "scales", "amax", "scheme", "shape", "columnwise", "borrowed"])
    return replace(copy(draw), **{field: draw.choice(PLAIN + TENSORS)[1](draw)})


def damaged_weight(draw: random.Random) -> Any:
    field = draw.choice(["data", "scheme", "shape", "columnwise"])
    return replace(cpu.pack(copy(draw, "nvfp4")), **{field: draw.choice(PLAIN + TENSORS)[1](draw)})


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(32, 64)


def _fake_cuda() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(32, 64, device="cuda")


def _freed() -> torch.Tensor:
    tensor = matrix()
    tensor.untyped_storage().resize_(0)
    return tensor


class _Unprintable:
    """What no message can show, no check compare and no table look up."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        raise RuntimeError("unprintable")

    def __eq__(self, other) -> bool:
        raise RuntimeError("not comparable")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


def _list_holding_itself() -> list:
    value: list = []
    value.append(value)
    return value


def _named(**values: Callable[[random.Random], Any]) -> list[tuple[str, Callable[[random.Random], Any]]]:
    return list(values.items())


PLAIN = _named(
    none=lambda _: None,
    true=lambda _: True,
    false=lambda _: False,
    zero=lambda _: 0,
    three=lambda _: 3,
    minus_one=lambda _: -1,
    huge=lambda _: 2**63,
    half=lambda _: 0.5,
    nan=lambda _: float("nan"),
    infinity=lambda _: float("inf"),
    complex_number=lambda _: 1j,
    empty_text=lambda _: "",
    text=lambda _: "head",
    recipe_name=lambda _: "mxfp8",
    data=lambda _: b"head",
    path=lambda _: Path("no") / "folder",
    empty_tuple=lambda _: (),
    pair=lambda _: (32, 64),
    negative_pair=lambda _: (-1, 64),
    pair_of_none=lambda _: (None, None),
    pair_of_texts=lambda _: ("a", "b"),
    triple=lambda _: (1, 2, 3),
    numbers=lambda _: [1.0, 2.0],
    nested_numbers=lambda _: [[1.0, 2.0], [3.0]],
    recursive=lambda _: _list_holding_itself(),
    empty_dict=lambda _: {},
    dict_by_number=lambda _: {3: None},
    dict_by_text=lambda _: {"weight": 3},
    a_set=lambda _: {1, 2},
    generator=lambda _: (number for number in range(3)),
    function=lambda _: lambda *arguments, **keywords: None,
    failing=lambda _: _fails,
    an_object=lambda _: object(),
    unprintable=lambda _: _Unprintable(),
    a_class=lambda _: torch.Tensor,
    ellipsis=lambda _: ...,
    dtype=lambda _: torch.float32,
    integer_dtype=lambda _: torch.int64,
    fp8_dtype=lambda _: E4M3,
    numpy_dtype=lambda _: np.float32,
    device=lambda _: torch.device("meta"),
    module=lambda _: torch.nn.Identity(),
    size=lambda _: torch.Size([32, 64]),
    numpy_array=lambda _: np.zeros((32, 64), np.float32),
    numpy_objects=lambda _: np.array([None, "a"], dtype=object),
    numpy_number=lambda _: np.float32(1),
    numpy_integer=lambda _: np.int64(3),
)

TENSORS = _named(
    matrix=lambda _: matrix(),
    small_matrix=lambda _: matrix(3, 5),
    transposed=lambda _: matrix(64, 32).T,
    strided=lambda _: matrix(32, 128)[:, ::2],
    expanded=lambda _: torch.ones(1).expand(32, 64),
    vector=lambda _: torch.ones(64),
    scalar=lambda _: torch.tensor(1.0),
    empty=lambda _: torch.empty(0, 64),
    no_columns=lambda _: torch.empty(32, 0),
    cube=lambda _: torch.ones(2, 16, 64),
    double=lambda _: matrix().double(),
    half_precision=lambda _: matrix().half(),
    bfloat16=lambda _: matrix().bfloat16(),
    integers=lambda _: torch.ones(32, 64, dtype=torch.int64),
    integer_bytes=lambda _: torch.ones(32, 64, dtype=torch.uint8),
    few_bytes=lambda _: torch.ones(7, dtype=torch.uint8),
    booleans=lambda _: torch.ones(32, 64, dtype=torch.bool),
    complex_numbers=lambda _: torch.ones(32, 64, dtype=torch.complex64),
    negated=lambda _: torch.ones(32, 64, dtype=torch.complex64).conj().imag,
    fp8=lambda _: matrix().to(E4M3),
    on_meta=lambda _: torch.empty(32, 64, device="meta"),
    sparse=lambda _: torch.eye(32, 64).to_sparse(),
    sparse_rows=lambda _: torch.eye(32, 64).to_sparse_csr(),
    nested=lambda _: torch.nested.nested_tensor([torch.ones(2, 64), torch.ones(3, 64)]),
    jagged=lambda _: torch.nested.nested_tensor([torch.ones(2, 64), torch.ones(3, 64)], layout=torch.jagged),
    fake=lambda _: _fake(),
    fake_on_cuda=lambda _: _fake_cuda(),
    freed=lambda _: _freed(),
    zeros_without_memory=lambda _: torch._efficientzerotensor((32, 64)),
    quantized_by_torch=lambda _: torch.quantize_per_tensor(matrix(), 0.1, 0, torch.qint8),
    parameter=lambda _: torch.nn.Parameter(matrix()),
    with_gradient=lambda _: matrix().requires_grad_() * 2,
)

OURS = _named(
    scheme=scheme,
    custom_scheme=lambda _: Scheme("i8", "1xK", "f32", custom="int8"),
    gemm_scheme=lambda _: Scheme("f8E4M3FN", "1x32", "f8E8M0FNU", layout="gemm"),
    copy=copy,
    damaged_copy=damaged_copy,
    other_copy=damaged_copy,
    packed=lambda draw: cpu.pack(copy(draw, "nvfp4")),
    damaged_weight=damaged_weight,
    quantizer=quantizer,
    quantizer_without_usage=lambda draw: quantizer(draw, rowwise=False, columnwise=False),
    quantized_tensor=quantized,
    quantized_storage=lambda draw: quantized(draw, internal=True),
    columnwise_tensor=lambda draw: quantized(draw, rowwise=False),
    swizzled_tensor=lambda draw: quantized(draw, optimize_for_gemm=True),
    cleared_storage=lambda draw: _cleared(quantized(draw, internal=True)),
    recipe=lambda _: recipes.MXFP8BlockScaling(),
    custom_recipe=lambda _: recipes.CustomRecipe(lambda role: None),
)


def _cleared(storage: Any) -> Any:
    storage.clear()
    return storage


def _fails(*_arguments, **_keywords):
    raise ArithmeticError("a user's function fails")


def pick(draw: random.Random) -> tuple[str, Any]:
    """A value and its name."""
    name, make = draw.choice(draw.choice([PLAIN, TENSORS, OURS]))
    return name, make(draw)
