"""`scaled-name-parameters`."""

import re

from torch_mlir import ir

from steelyard.dialect.types import tensor_info
from steelyard.formats.dtypes import FLOAT_DTYPES
from steelyard.ir.attributes import PARAMETER
from steelyard.ir.functions import argument_attributes, functions_of, is_private
from steelyard.ir.locations import layer_of
from steelyard.passes.pipeline.registry import register_pass

_KEY = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")
_PATH = re.compile(rf"\w+((?:{_KEY.pattern})+)")
_WRAPPER, _COLLECTION = "value", "params"


@register_pass
def name_parameters(module: ir.Operation) -> None:
    """Find the parameters of a function that JAX wrote as text, by the places of its arguments.

    Takes public functions whose arguments have the locations that `jax.jit(f).lower(...).as_text(debug_info=True)`
    gives them: `loc("params['up']['kernel']")`. Leaves `scaled.parameter`, "up.kernel", on float tensors with at least
    two dims that are a leaf of an argument. An argument that is an array itself, as inputs are, is none. A first
    `params` and a last `value`, which flax adds, are left out of the name.
    """
    for function in functions_of(module):
        if is_private(function):
            continue
        attributes = argument_attributes(function)
        for argument, own in zip(function.regions[0].blocks[0].arguments, attributes, strict=True):
            name = _name(layer_of(argument.location))
            info = tensor_info(argument.type)
            if name and info is not None and info.dtype in FLOAT_DTYPES and len(info.shape) > 1:
                own.setdefault(PARAMETER, ir.StringAttr.get(name))
        if any(attributes):
            function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(own) for own in attributes])


def _name(path: str) -> str:
    """The keys of a path below its argument, joined by dots; empty for what is no path."""
    match = _PATH.fullmatch(path)
    if match is None:
        return ""
    keys = [key[1] or key[2] or key[3] for key in _KEY.finditer(match[1])]
    keys = keys[:-1] if len(keys) > 1 and keys[-1] == _WRAPPER else keys
    return ".".join(keys[1:] if len(keys) > 1 and keys[0] == _COLLECTION else keys)
