"""A jaxpr as MLIR: `stablehlo` for products and views, `jax.<primitive>` for everything else, a function for each body.

An op that stands for an equation has the attribute `jax.eqn`, its number in `Imported.equations`: what runs is that
equation. jit, custom_jvp, custom_vjp and checkpoints without a backward are replaced by what they call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.ir.attributes import BODIES, GRADIENT, KIND, PARAMETER, SWAPPED, TANGENT, TRAINED, TRIPS
from steelyard.ir.locations import flops_location, with_layer
from steelyard.ir.stablehlo_ops import CONVERT, DOT, RESHAPE, TRANSPOSE, DotDims
from steelyard.ir.torch_ops import LITERAL, info_of, parameter_of, view_root
from steelyard.jax.compiler import equations
from steelyard.jax.compiler.backward import body_gradients, gradient_variables, kind_of_dot, kind_of_ragged_dot
from steelyard.jax.compiler.marks import is_view, mark_of, scopes_of
from steelyard.jax.compiler.parameters import Parameter
from steelyard.jax.internals import NameStack, source_of

EQN, NUMBER = "jax.eqn", "jax.number"
_ELEMENTS = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float64": "f64",
    "bool": "i1",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e5m2": "f8E5M2",
    "complex64": "complex<f32>",
}


@dataclass
class Imported:
    """A module, and what its ops refer to by number."""

    module: ir.Module
    equations: list[Any] = field(default_factory=list)
    literals: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Signature:
    """What the arguments and results of a function are."""

    parameters: Sequence[Parameter | None]
    tangents: Sequence[bool]
    gradients: Sequence[str | None]
    """For each result, the argument whose gradient it is."""

    @property
    def is_training(self) -> bool:
        return any(self.tangents)


@dataclass
class _Scope:
    """What is known of the variables of a jaxpr that is being imported."""

    values: dict[Any, ir.Value]
    parameters: dict[Any, Parameter | None]
    gradients: set[Any]
    stack: NameStack
    trips: int
    dots: list["_Dot"]


@dataclass(frozen=True)
class _Dot:
    """A dot without a mark: jax.grad may have been called inside of the function."""

    op: ir.Operation
    is_gradient: list[bool]


def import_jaxpr(closed: Any, signature: Signature) -> Imported:
    """The module of a jaxpr, whose function is `@main`."""
    context = make_context()
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        imported = Imported(ir.Module.create())
        _Importer(imported, signature.is_training).main(closed, signature)
    return imported


class _Importer:
    def __init__(self, imported: Imported, is_training: bool):
        self._imported = imported
        self._is_training = is_training
        self._bodies = 0
        self._layers: dict[str, str] = {}

    def main(self, closed: Any, signature: Signature) -> None:
        arguments = [
            _argument_attributes(parameter, is_tangent)
            for parameter, is_tangent in zip(signature.parameters, signature.tangents, strict=True)
        ]
        results: list[dict[str, ir.Attribute]] = [
            {} if name is None else {GRADIENT: ir.StringAttr.get(name)} for name in signature.gradients
        ]
        own: dict[str, ir.Attribute] = {"arg_attrs": _dictionaries(arguments), "res_attrs": _dictionaries(results)}
        gradients = [*signature.tangents]
        self._function("main", closed, list(signature.parameters), gradients, NameStack(), 1, own)

    def _function(
        self,
        name: str,
        closed: Any,
        parameters: list[Parameter | None],
        gradients: list[bool],
        stack: NameStack,
        trips: int,
        attributes: dict[str, ir.Attribute],
    ) -> None:
        jaxpr, consts = equations.opened(closed)
        types = [tensor_type(variable.aval) for variable in jaxpr.invars]
        outs = [tensor_type(atom.aval) for atom in jaxpr.outvars]
        function = ir.Operation.create(
            "func.func",
            regions=1,
            attributes={
                "sym_name": ir.StringAttr.get(name),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, outs)),
                **attributes,
            },
            ip=ir.InsertionPoint(self._imported.module.body),
        )
        block = ir.Block.create_at_start(function.regions[0], types, [ir.Location.unknown()] * len(types))
        for parameter in parameters:
            if parameter is not None:
                self._layers[parameter.name] = parameter.layer
        scope = _Scope(
            dict(zip(jaxpr.invars, block.arguments, strict=True)),
            dict(zip(jaxpr.invars, parameters, strict=True)),
            {variable for variable, flag in zip(jaxpr.invars, gradients, strict=True) if flag},
            stack,
            trips,
            [],
        )
        with ir.InsertionPoint(block):
            for variable, value in zip(jaxpr.constvars, consts, strict=True):
                scope.values[variable] = self._literal(value, variable.aval)
            self._equations(jaxpr, scope)
            operands = [self._read(atom, scope) for atom in jaxpr.outvars]
            ir.Operation.create("func.return", operands=operands)
        self._tell_unmarked(scope.dots)

    def _read(self, atom: Any, scope: _Scope) -> ir.Value:
        return self._literal(atom.val, atom.aval) if isinstance(atom, jex.Literal) else scope.values[atom]

    def _literal(self, value: Any, aval: Any) -> ir.Value:
        self._imported.literals.append(value)
        attributes: dict[str, ir.Attribute] = {NUMBER: _integer(len(self._imported.literals) - 1)}
        if np.ndim(value) == 0 and not jnp.issubdtype(aval.dtype, jax.dtypes.extended):
            attributes["value"] = ir.StringAttr.get(str(value))
        return ir.Operation.create(LITERAL, [tensor_type(aval)], [], attributes).result

    def _equations(self, jaxpr: Any, scope: _Scope) -> None:
        for eqn in jaxpr.eqns:
            body = equations.inlined_body(eqn)
            if body is None:
                self._equation(eqn, scope)
            else:
                self._inline(eqn, body, scope)

    def _inline(self, eqn: Any, body: Any, scope: _Scope) -> None:
        inner, consts = equations.opened(body)
        own = _Scope({}, {}, set(), scope.stack + eqn.source_info.name_stack, scope.trips, scope.dots)
        for variable, value in zip(inner.constvars, consts, strict=True):
            own.values[variable] = self._literal(value, variable.aval)
        for variable, atom in zip(inner.invars, eqn.invars, strict=True):
            own.values[variable] = self._read(atom, scope)
            if not isinstance(atom, jex.Literal):
                own.parameters[variable] = scope.parameters.get(atom)
                own.gradients |= {variable} if atom in scope.gradients else set()
        self._equations(inner, own)
        for variable, atom in zip(eqn.outvars, inner.outvars, strict=True):
            scope.values[variable] = self._read(atom, own)
            if not isinstance(atom, jex.Literal):
                scope.parameters[variable] = own.parameters.get(atom)
                scope.gradients |= {variable} if atom in own.gradients else set()

    def _equation(self, eqn: Any, scope: _Scope) -> None:
        operands = [self._read(atom, scope) for atom in eqn.invars]
        self._imported.equations.append(eqn)
        attributes: dict[str, ir.Attribute] = {EQN: _integer(len(self._imported.equations) - 1)}
        stack = scope.stack + eqn.source_info.name_stack
        if bodies := self._body_functions(eqn, scope):
            attributes[BODIES] = ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(name) for name in bodies])
            if (trips := equations.trips_of_equation(eqn)) is not None:
                attributes[TRIPS] = _integer(trips)
        with self._location(eqn, scope, stack):
            made = self._op(eqn, operands, attributes)
        if eqn.primitive.name in (equations.DOT, equations.RAGGED_DOT):
            self._tell(eqn, made, scope, stack)
        scope.values.update(zip(eqn.outvars, made.results, strict=True))
        names = None if self._is_training else stack
        scope.gradients.update(gradient_variables(eqn, scope.gradients, names))
        first = eqn.invars[0] if eqn.invars else None
        if is_view(eqn) and not isinstance(first, jex.Literal):
            scope.parameters.update(dict.fromkeys(eqn.outvars, scope.parameters.get(first)))

    def _location(self, eqn: Any, scope: _Scope, stack: NameStack) -> ir.Location:
        """Layer, work and source."""
        mark, flops = mark_of(stack), equations.flops_of_equation(eqn) * scope.trips
        location = ir.Location.name(source_of(eqn))
        location = flops_location(flops, location) if flops else location
        return ir.Location.name(mark.layer if mark else scopes_of(stack) or eqn.primitive.name, location)

    def _tell(self, eqn: Any, op: ir.Operation, scope: _Scope, stack: NameStack) -> None:
        """Say which product of its layer a dot is, if it is one; dots without a mark are looked at later."""
        is_gradient = [not isinstance(atom, jex.Literal) and atom in scope.gradients for atom in eqn.invars]
        mark = mark_of(stack)
        if eqn.primitive.name == equations.RAGGED_DOT:
            kind = None if mark is None else kind_of_ragged_dot(eqn, is_gradient)
            if kind is not None:
                _set_kind(op, *kind)
            return
        kind = None if mark is None else kind_of_dot(eqn, mark, is_gradient)
        if kind is not None:
            _set_kind(op, *kind)
        if mark is None or not any(is_gradient):
            scope.dots.append(_Dot(op, is_gradient))

    def _op(self, eqn: Any, operands: list[ir.Value], attributes: dict[str, ir.Attribute]) -> ir.Operation:
        types = [tensor_type(variable.aval) for variable in eqn.outvars]
        name, params = eqn.primitive.name, eqn.params
        spelled = f"jax.{name}"
        if name == equations.DOT:
            (left, right), (left_batch, right_batch) = params["dimension_numbers"]
            dims = DotDims(tuple(left_batch), tuple(right_batch), tuple(left), tuple(right))
            attributes["dot_dimension_numbers"] = dims.attribute()
            spelled = DOT
        elif name == "transpose":
            attributes["permutation"] = ir.DenseI64ArrayAttr.get(list(params["permutation"]))
            spelled = TRANSPOSE
        elif name in ("reshape", "squeeze", "expand_dims") and len(operands) == 1:
            spelled = RESHAPE
        elif name == "convert_element_type" and info_of(operands[0]) is not None and params.get("sharding") is None:
            spelled = CONVERT
        if spelled.startswith("stablehlo.") and not all(map(_is_tensor, [operands[0].type, *types])):
            spelled = f"jax.{name}"
        return ir.Operation.create(spelled, types, operands, attributes)

    def _body_functions(self, eqn: Any, scope: _Scope) -> list[str]:
        """Import the bodies of an equation; returns the names of their functions."""
        if eqn.primitive.name not in equations.WITH_BODIES:
            return []
        names = []
        flags = [not isinstance(atom, jex.Literal) and atom in scope.gradients for atom in eqn.invars]
        for body in equations.bodies_of(eqn):
            handed_on = equations.carried(eqn, body.parameter)
            atoms = [eqn.invars[i] for i in equations.body_operands(eqn, body.parameter)]
            parameters = [
                None if isinstance(atom, jex.Literal) or i in handed_on else scope.parameters.get(atom)
                for i, atom in enumerate(atoms)
            ]
            gradients = body_gradients(eqn, body, flags, not self._is_training)
            name = f"{eqn.primitive.name}_{self._bodies}"
            self._bodies += 1
            own: dict[str, ir.Attribute] = {
                "sym_visibility": ir.StringAttr.get("private"),
                "arg_attrs": _dictionaries(
                    [_argument_attributes(*each) for each in zip(parameters, gradients, strict=True)]
                ),
            }
            if self._is_training and not any(gradients):
                own[TRAINED] = ir.UnitAttr.get()
            trips = scope.trips * (equations.trips_of_equation(eqn) or 1)
            self._function(name, body.jaxpr, parameters, gradients, NameStack(), trips, own)
            names.append(name)
        return names

    def _tell_unmarked(self, dots: list[_Dot]) -> None:
        """Find the products of a backward whose forward was differentiated inside of the function.

        One with a parameter is its layer's dgrad. The other product of the same gradient is the layer's wgrad, and a
        gradient without a dgrad belongs to the layer that multiplies the same input by such a weight.
        """
        by_gradient: dict[tuple[ir.Value, int], str] = {}
        by_input: dict[tuple[ir.Value, int], list[str]] = {}
        for dot in dots:
            names = [parameter_of(value) for value in dot.op.operands]
            if sum(name is not None for name in names) != 1:
                continue
            weight = names.index(next(name for name in names if name is not None))
            layer, other = self._layers[names[weight] or ""], view_root(dot.op.operands[1 - weight])
            size = _size(dot.op.operands[weight])
            if dot.is_gradient[1 - weight]:
                by_gradient[other, size] = layer
                _set_kind(dot.op, "dgrad", weight == 0, layer)
            else:
                by_input.setdefault((other, size), []).append(layer)
        for dot in dots:
            if KIND in dot.op.attributes or sum(dot.is_gradient) != 1:
                continue
            number = dot.is_gradient.index(True)
            gradient, value = (view_root(dot.op.operands[i]) for i in (number, 1 - number))
            size = _size(dot.op.result)
            candidates = by_input.get((value, size), [])
            layer = by_gradient.get((gradient, size)) or (candidates[0] if len(candidates) == 1 else None)
            if layer is not None:
                _set_kind(dot.op, "wgrad", number == 1, layer)


def _size(value: ir.Value) -> int:
    info = info_of(value)
    return 0 if info is None else prod(size or 1 for size in info.shape)


def _set_kind(op: ir.Operation, kind: str, is_swapped: bool, layer: str | None = None) -> None:
    op.attributes[KIND] = ir.StringAttr.get(kind)
    if is_swapped:
        op.attributes[SWAPPED] = ir.UnitAttr.get()
    if layer is not None:
        op.location = with_layer(op.location, layer)


def tensor_type(aval: Any) -> ir.Type:
    """The type of a value; one that MLIR has no element type for, such as a PRNG key, is opaque."""
    name = getattr(getattr(aval, "dtype", None), "name", "")
    if name in _ELEMENTS:
        element = _ELEMENTS[name]
    elif name.startswith("uint"):
        element = f"ui{name.removeprefix('uint')}"
    elif name.startswith("int"):
        element = f"i{name.removeprefix('int')}"
    else:
        return ir.OpaqueType.get("jax", f'value<"{aval}">')
    return ir.Type.parse("tensor<" + "".join(f"{size}x" for size in aval.shape) + element + ">")


def _is_tensor(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType)


def _argument_attributes(parameter: Parameter | None, is_tangent: bool) -> dict[str, ir.Attribute]:
    attributes: dict[str, ir.Attribute] = {}
    if parameter is not None:
        attributes[PARAMETER] = ir.StringAttr.get(parameter.name)
    if is_tangent:
        attributes[TANGENT] = ir.UnitAttr.get()
    return attributes


def _dictionaries(attributes: Sequence[dict[str, ir.Attribute]]) -> ir.ArrayAttr:
    return ir.ArrayAttr.get([ir.DictAttr.get(one) for one in attributes])


def _integer(value: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
