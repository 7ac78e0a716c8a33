"""What calls do on a GPU: `allocate`, `launch`, `torch_call` and `contiguous`.

The first three are the steps of a plan: they stand in a module whose attribute `scaled.plan` names the declared kernel
that is called. They name tensors: the operands of the call as its declaration names them (`source`), its results behind
`out.` (`out.row.codes`), and what is allocated; `x^T` is the matrix x read by columns. Sizes are integers, or text over
sizes that are known only at run time: `source[0]` is that of a dim, `size` an operand that is one, `//` rounds down (0
where the divisor is 0) and `== 0` gives 1 or 0.
"""

from collections.abc import Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.base import ScaledOp, attribute_of, build, require, string_attribute
from steelyard.dialect.types import tensor_info

TENSOR, SIZE = "tensor", "size"
TORCH_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "zero": (TENSOR,),
    "copy": (TENSOR, TENSOR),
    "product": (TENSOR, TENSOR, TENSOR),
    "scaled_product": (TENSOR, TENSOR, TENSOR, SIZE, TENSOR, SIZE, TENSOR),
    "batched_product": (TENSOR, TENSOR, TENSOR, SIZE),
    "grouped_product": (TENSOR, TENSOR, TENSOR, SIZE, TENSOR),
    "product_of_groups": (TENSOR, TENSOR, TENSOR, SIZE, TENSOR, SIZE, SIZE, TENSOR, SIZE, SIZE, TENSOR),
    "largest_of_ranks": (TENSOR, TENSOR),
    "pick_amax": (TENSOR, TENSOR, TENSOR),
}
"""What torch does between launches -> the kinds of its arguments; the last tensor is written."""
ELEMENTS = ("f32", "bf16", "f16", "ui8", "i8")
"""Types of what is allocated."""


class AllocateOp(ScaledOp, name="allocate"):
    """Memory for one call with nothing in it yet: a temporary, or a result whose sizes are known only at run time.

    It is contiguous and begins at a multiple of 16 bytes.

    Constraints:
    - allocate_c1: shape is an array of sizes, each an integer that is not negative or text
    - allocate_c2: element is f32, bf16, f16, ui8 or i8
    """

    assembly_format = "$tensor($shape...) of $element"

    tensor: ir.StringAttr
    shape: ir.ArrayAttr
    element: ir.StringAttr

    def check(self) -> None:
        shape = attribute_of(self, "shape", ir.ArrayAttr)
        fits = all(isinstance(size, ir.StringAttr) or _is_size(size) for size in shape)
        require(fits, "allocate_c1", f"each size must be an integer that is not negative or text, got {shape}")
        string_attribute(self, "element", ELEMENTS, "allocate_c2")


class LaunchOp(ScaledOp, name="launch"):
    """Launch a generated kernel on the current stream, with its arguments in the order of its parameters.

    `kernel` names a `gpu.module` with one function, whose code `scaled-generate-kernels` writes. Tensors are given by
    their addresses, and what they hold may change. With no blocks nothing is launched.

    Constraints:
    - launch_c1: kernel is a symbol
    - launch_c2: blocks is a size: an integer that is not negative, or text
    - launch_c3: each argument is a tensor or a size: text or an integer
    """

    assembly_format = "$kernel($arguments...) blocks($blocks)"

    kernel: ir.FlatSymbolRefAttr
    blocks: Any
    arguments: ir.ArrayAttr

    def check(self) -> None:
        kernel = self.attributes["kernel"]
        is_symbol = isinstance(kernel, ir.FlatSymbolRefAttr)
        require(is_symbol, "launch_c1", f"kernel must be a symbol, as in @amax_f32, got {kernel}")
        blocks = self.attributes["blocks"]
        fits = isinstance(blocks, ir.StringAttr) or _is_size(blocks)
        require(fits, "launch_c2", f"blocks must be an integer that is not negative or text, got {blocks}")
        arguments = attribute_of(self, "arguments", ir.ArrayAttr)
        fits = all(isinstance(argument, ir.StringAttr | ir.IntegerAttr) for argument in arguments)
        require(fits, "launch_c3", f"each argument must be text or an integer, got {arguments}")

    @property
    def symbol(self) -> str:
        """The kernel that is launched."""
        return attribute_of(self, "kernel", ir.FlatSymbolRefAttr).value


class TorchCallOp(ScaledOp, name="torch_call"):
    """Let torch do something on the current stream, between launches. The last tensor among the arguments is written.

    | function | arguments | what is written |
    |---|---|---|
    | `zero` | out | zeros |
    | `copy` | source, out | the source, in the shape of `out`; a single value everywhere |
    | `product` | lhs, rhs, out | the float32 product of two matrices whose rows are along the reduction, without TF32 |
    | `batched_product` | lhs, rhs, out, count | `count` of those products |
    | `grouped_product` | lhs, rhs, ends, multiple, out | products in bf16 of groups that end there, at once |
    | `product_of_groups` | lhs, rhs, ends, multiple, two scales, out | those in float32, one by one, then scaled |
    | `largest_of_ranks` | amax, out | the largest amax over all ranks |
    | `pick_amax` | history, amax, out | what the user's algorithm picks of a history with this newest amax; 0 for 0 |

    Groups are rows of lhs, each with a matrix of rhs; or, of two matrices, parts of the reduction that are filled up to
    a multiple. A scale is a tensor, what it is divided by (0 for no scale), and how many values each group has (0 for
    one per row).

    Constraints:
    - torch_call_c1: function is one of those above
    - torch_call_c2: there are as many arguments as the function takes, each text or, for a number, an integer
    """

    assembly_format = "$function($arguments...)"

    function: ir.StringAttr
    arguments: ir.ArrayAttr

    def check(self) -> None:
        name = string_attribute(self, "function", tuple(TORCH_FUNCTIONS), "torch_call_c1")
        kinds, arguments = TORCH_FUNCTIONS[name], list(attribute_of(self, "arguments", ir.ArrayAttr))
        fits = len(kinds) == len(arguments) and all(map(_is_of_kind, arguments, kinds))
        wanted = ", ".join(f"a {kind}" for kind in kinds)
        found = self.attributes["arguments"]
        require(fits, "torch_call_c2", f"the arguments of {name} must be {wanted}, got {found}")


class ContiguousOp(ScaledOp, name="contiguous", traits=[ext.Pure]):
    """The same tensor in memory as launches expect it: contiguous, from a multiple of 16 bytes on.

    A tensor that lies so already is not copied.

    Constraints:
    - contiguous_c1: source is a ranked tensor, and the result has its type
    """

    assembly_format = "$source"

    source: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        source, result = self.source.type, self.result.type
        fits = tensor_info(source) is not None and source == result
        require(fits, "contiguous_c1", f"source and result must be ranked tensors alike, got {source} and {result}")


def contiguous(
    source: ir.Value, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None
) -> ContiguousOp:
    """Build a `scaled.contiguous`."""
    return build(ContiguousOp, [source], [source.type], {}, loc, ip)


Argument = str | int
"""A tensor by its name, a size, or an expression over sizes."""


def allocate(
    tensor: str,
    shape: Sequence[Argument],
    element: str,
    *,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> AllocateOp:
    """Build a `scaled.allocate`."""
    attributes: dict[str, ir.Attribute] = {
        "tensor": ir.StringAttr.get(tensor),
        "shape": _array(shape),
        "element": ir.StringAttr.get(element),
    }
    return build(AllocateOp, [], [], attributes, loc, ip)


def launch(
    kernel: str,
    blocks: Argument,
    arguments: Sequence[Argument],
    *,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> LaunchOp:
    """Build a `scaled.launch`."""
    attributes: dict[str, ir.Attribute] = {
        "kernel": ir.FlatSymbolRefAttr.get(kernel),
        "blocks": _attribute(blocks),
        "arguments": _array(arguments),
    }
    return build(LaunchOp, [], [], attributes, loc, ip)


def torch_call(
    function: str,
    arguments: Sequence[Argument],
    *,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> TorchCallOp:
    """Build a `scaled.torch_call`."""
    attributes: dict[str, ir.Attribute] = {
        "function": ir.StringAttr.get(function),
        "arguments": _array(arguments),
    }
    return build(TorchCallOp, [], [], attributes, loc, ip)


def arguments_of(attributes: ir.Attribute) -> list[Argument]:
    """The arguments, or sizes, that an array holds."""
    return [argument_of(attribute) for attribute in ir.ArrayAttr(attributes)]


def argument_of(attribute: ir.Attribute) -> Argument:
    """An argument, or a size."""
    if isinstance(attribute, ir.StringAttr):
        return attribute.value
    return ir.IntegerAttr(attribute).value


def _attribute(argument: Argument) -> ir.Attribute:
    if isinstance(argument, str):
        return ir.StringAttr.get(argument)
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), argument)


def _array(arguments: Sequence[Argument]) -> ir.Attribute:
    return ir.ArrayAttr.get([_attribute(argument) for argument in arguments])


def _is_size(attribute: ir.Attribute) -> bool:
    return isinstance(attribute, ir.IntegerAttr) and attribute.value >= 0


def _is_of_kind(attribute: ir.Attribute, kind: str) -> bool:
    return isinstance(attribute, ir.StringAttr) or (kind == SIZE and _is_size(attribute))
