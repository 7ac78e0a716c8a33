"""Writes the reference pages from the code. `--check` only says whether they are up to date."""

import ast
import contextlib
import dataclasses
import inspect
import io
import re
import sys
import textwrap
from functools import partial
from itertools import pairwise
from pathlib import Path

from torch_mlir.dialects import ext

from steelyard import recipes
from steelyard.dialect import launch, make_context, matmul, parse_module, print_module
from steelyard.dialect.assembly.formats import formats
from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.base import Scaled
from steelyard.dialect.types import TensorType
from steelyard.formats.schemes import Scheme
from steelyard.passes import all_passes
from steelyard.passes.pipeline.named import all_pipelines

DOCS = Path(__file__).parent
NOTICE = "<!-- Made by `make docs` from the code. Do not edit. -->\n"


def dialect_page() -> str:
    """The reference of the dialect."""
    module = parse_module(_DIALECT_EXAMPLE, make_context())
    example = print_module(module.operation)
    parts = [NOTICE, "# The dialect `scaled`\n", _DIALECT_INTRODUCTION, _SYNTAX, f"```text\n{example}```\n"]
    parts += ["## Attribute `#scaled.scheme`\n", _body(SchemeAttr)]
    parts += ["### Fields\n", _field_table(Scheme), _constraints(Scheme)]
    parts += ["## Type `!scaled.tensor`\n", _body(TensorType)]
    parts += ["## The three GEMMs of a linear layer\n", inspect.getdoc(matmul).partition("\n\n")[2] + "\n"]
    parts += ["## Launch plans\n", inspect.getdoc(launch).partition("\n\n")[2] + "\n"]
    for op in sorted(Scaled.operations, key=lambda op: op.OPERATION_NAME):
        syntax = formats()[op.OPERATION_NAME].syntax()
        parts += [f"## `{op.OPERATION_NAME}`\n", f"```text\n{syntax}\n```\n", _body(op), _operation_table(op)]
    return "\n".join(parts)


def passes_page() -> str:
    """The reference of the passes and pipelines."""
    parts = [NOTICE, "# Passes\n", _PASSES_INTRODUCTION, "## Pipelines\n", _PIPELINES_INTRODUCTION]
    for pipeline in all_pipelines().values():
        options = ", ".join(f"`{name}` (default {_default(value)})" for name, value in pipeline.options.items())
        parts += [f"### `{pipeline.name}`\n", f"{pipeline.description}{f' Options: {options}.' if options else ''}\n"]
        parts.append("\n".join(f"{i}. `{each}`" for i, each in enumerate(_passes_of(pipeline.text), start=1)) + "\n")
    parts.append("## Each pass\n")
    for entry in _in_order():
        parts += [f"### `{entry.name}`\n", entry.description + "\n"]
        if entry.options:
            rows = [f"| `{o.name}` | {o.type.__name__} | {o.default_text} |" for o in entry.options]
            parts.append("\n".join(["| option | type | default |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _passes_of(pipeline: str) -> list[str]:
    return re.findall(r"[\w.-]+(?:\{[^}]*\})?", pipeline)


def _in_order() -> list:
    """The passes as they run in the pipelines, then the others."""
    running = [name.partition("{")[0] for each in all_pipelines().values() for name in _passes_of(each.text)]
    passes = all_passes()
    names = [*dict.fromkeys(name for name in running if name in passes), *passes]
    return [passes[name] for name in dict.fromkeys(names)]


def recipe_page(recipe: recipes.Recipe) -> str:
    """What a recipe quantizes, and its options."""
    name, class_name = recipe.name, type(recipe).__name__
    parts = [NOTICE, f"# `{name}`\n", f"{inspect.getdoc(type(recipe))}\n"]
    example = _RECIPE_EXAMPLE.format(name=name, class_name=class_name)
    parts += [f"```python\n{example}```\n", f'```text title="Output"\n{_printed(example)}```\n']
    parts += ["## What each operand becomes\n", _RECIPE_TABLE_INTRODUCTION]
    rows = ["| operand | rowwise | columnwise |", "|---|---|---|"]
    for role in recipes.ROLES:
        rows.append(f"| {role} | {' | '.join(_scheme_words(scheme) for scheme in recipe.schemes(role))} |")
    parts += ["\n".join(rows) + "\n", "## Options\n", _field_table(type(recipe))]
    parts.append("The arithmetic, to the bit: [numerics](../numerics.md). The IR: [dialect](../dialect.md).\n")
    return "\n".join(parts)


PAGES = {"dialect.md": dialect_page, "passes.md": passes_page} | {
    f"recipes/{name}.md": partial(recipe_page, recipes.get(name)) for name in recipes.NAMES
}

_RECIPE_EXAMPLE = """\
import torch
import steelyard as sy

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
net = sy.compile(model, "{name}")  # or sy.recipes.{class_name}(...), with options
net(torch.randn(32, 64)).sum().backward()
print(net.explain())
"""

_RECIPE_TABLE_INTRODUCTION = """\
The forward product (fprop) reads both operands rowwise. The gradient of the input (dgrad) reads the weight columnwise,
and the gradient of the weight (wgrad) reads both of its operands columnwise.
"""

_DIALECT_INTRODUCTION = """\
Quantized tensors and the operations on them. No op has side effects: random state and the state of delayed scaling are
operands and results, so `cse` and dead-code elimination are safe. Only the steps of launch plans, which nothing
reorders, and `scaled.free` say what happens to memory, and `scaled.call_block` says what a net runs. Ops work on
builtin `tensor` and on `!torch.vtensor` operands, with dims that are known only at run time (`?`), and take ragged
edges: missing elements of a block count as zero.

Each constraint has a name, and the diagnostic of an op that breaks it shows that name. An op that lacks an operand or
attribute it declares fails as `<op>_c0`. Types and attributes are checked where an op of the dialect uses them, not
where only a function's signature or an op of another dialect names them.
"""

_SYNTAX = """\
## Syntax

Every op has a short form. In the syntax of an op, `%name` is a value, `<name>` an attribute, and what stands in square
brackets is left out where its operand is absent or its attribute has the default. Other attributes come in braces, and
then the types of the operands and of the results. `steelyard-opt` reads this form and MLIR's generic one, also mixed in
one file; `--mlir-print-op-generic` prints the generic one.
"""

_DIALECT_EXAMPLE = """
func.func @linear(%x: tensor<?x512xbf16>, %w: tensor<2048x512xbf16>, %b: tensor<2048xbf16>) -> tensor<?x2048xbf16> {
  %0 = scaled.quantize input %x : tensor<?x512xbf16> -> !scaled.tensor<?x512xbf16, #nvfp4_1x16, #nvfp4_1x16_rht>
  %1 = scaled.quantize weight %w : tensor<2048x512xbf16> -> !scaled.tensor<2048x512xbf16, #nvfp4_16x16>
  %2 = scaled.gemm fprop %0, %1 bias(%b) epilogue(gelu) at "blocks.0.up"
    : !scaled.tensor<?x512xbf16, #nvfp4_1x16, #nvfp4_1x16_rht>, !scaled.tensor<2048x512xbf16, #nvfp4_16x16>,
      tensor<2048xbf16> -> tensor<?x2048xbf16>
  return %2 : tensor<?x2048xbf16>
}
"""

_PASSES_INTRODUCTION = """\
`steelyard-opt -p 'scaled-canonicalize,func.func(cse)' file.mlir` runs passes on text. Steelyard's passes and MLIR's own
mix freely. Steelyard's run on a module and cannot be nested in `func.func(...)`. Each says what IR it takes and what IR
it leaves.
"""

_PIPELINES_INTRODUCTION = """\
A pipeline is a named list of passes. There is one for each stage of the compiler, in this order.
"""


def _printed(code: str) -> str:
    """What a program prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})
    return "".join(f"{line.rstrip()}\n" for line in output.getvalue().splitlines())


def _body(thing: type) -> str:
    text = inspect.getdoc(thing) or ""
    description, _, constraints = text.partition("Constraints:\n")
    return description.strip() + "\n" + (f"\n**Constraints**\n\n{_emphasize(constraints)}\n" if constraints else "")


def _constraints(thing: type) -> str:
    constraints = (inspect.getdoc(thing) or "").partition("Constraints:\n")[2]
    return f"**Constraints**\n\n{_emphasize(constraints)}\n"


def _emphasize(constraints: str) -> str:
    lines = []
    for line in constraints.strip().splitlines():
        name, colon, rest = line.removeprefix("- ").partition(":")
        lines.append(f"- `{name}`:{rest}" if line.startswith("- ") and colon else line)
    return "\n".join(lines)


def _field_table(dataclass: type) -> str:
    """The fields of a dataclass, each with the docstring below it."""
    names = {each.name for each in dataclasses.fields(dataclass)}
    rows = ["| field | default | meaning |", "|---|---|---|"]
    for base in reversed(dataclass.__mro__[:-1]):
        if not dataclasses.is_dataclass(base):
            continue
        (body,) = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(base))).body)
        for node, following in pairwise([*body, ast.Pass()]):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in names:
                rows.append(f"| `{node.target.id}` | {_field_default(node.value)} | {_docstring_below(following)} |")
    return "\n".join(rows) + "\n"


def _field_default(value: ast.expr | None) -> str:
    if isinstance(value, ast.Call):
        value = next(keyword.value for keyword in value.keywords if keyword.arg == "default")
    return "required" if value is None else "`{}`".format(ast.unparse(value).replace("'", '"'))


def _docstring_below(node: ast.stmt) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return " ".join(node.value.value.split()) if is_text else ""


def _scheme_words(scheme: Scheme | None) -> str:
    if scheme is None:
        return "not quantized"
    words = [f"{scheme.element}, one {scheme.scale} scale per {scheme.block}"]
    return ", ".join([*words, *(_option_words(name, value) for name, value in scheme.options().items())])


def _option_words(name: str, value: object) -> str:
    """An option of a scheme as a reader would say it; a flag is its name."""
    known = {
        "source": f"{value}",
        "power_of_two": "a power of two",
        "rounding": f"{value} rounding",
        "rht": "random Hadamard transform",
        "second_level": f"under one f32 scale per {value}",
    }
    return known.get(name, name.replace("_", " ") if value is True else f"{name} {value}".replace("_", " "))


def _operation_table(op: type) -> str:
    rows = ["| | name | |", "|---|---|---|"]
    for field in op._fields:
        kind = {ext.OperandDef: "operand", ext.ResultDef: "result", ext.AttributeDef: "attribute"}[type(field)]
        note = {"single": "", "optional": "optional", "variadic": "any number"}[field.variadicity.name]
        rows.append(f"| {kind} | `{field.name}` | {note} |")
    return "\n".join(rows) + "\n"


def _default(value: str) -> str:
    return f"`{value}`" if value else "empty"


def main(arguments: list[str]) -> int:
    """Write the pages, or check them."""
    stale = [name for name, page in PAGES.items() if _read(DOCS / name) != page()]
    if "--check" in arguments:
        for name in stale:
            print(f"docs/{name} is stale: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(PAGES[name]())
        print(f"wrote docs/{name}")
    return 0


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
