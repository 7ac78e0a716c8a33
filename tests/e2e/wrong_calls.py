"""The functions and methods of the public API, each with arguments that it takes."""

import inspect
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import wrong_values as values

import steelyard
from steelyard import recipes
from steelyard.runtime import cpu
from steelyard.tensor import prepare_for_saving, restore_from_saved
from steelyard.tensor.reference import CurrentScalingTensorRef, current_scaling_ref_quantizer_factory

ROOTS = tuple(str(Path(inspect.getfile(module)).parent) for module in (steelyard, cpu))
"""The folders that Steelyard's own files are in."""
_MAKE = Callable[[random.Random], Any]


@dataclass
class Call:
    """A function of the API and how to make arguments that it takes."""

    name: str
    function: _MAKE
    arguments: list[_MAKE] = field(default_factory=list)
    keywords: dict[str, _MAKE] = field(default_factory=dict)
    weight: float = 1.0
    plain: _MAKE | None = None
    """What the plain model has in its place: what both raise is not for Steelyard to say."""


def always(value: Any) -> _MAKE:
    return lambda _: value


def _matrix(_: random.Random) -> torch.Tensor:
    return values.matrix()


def _folder(_: random.Random) -> str:
    return tempfile.mkdtemp(dir=scratch_folder())


_scratch_folder: list[tempfile.TemporaryDirectory] = []


def scratch_folder() -> str:
    if not _scratch_folder:
        _scratch_folder.append(tempfile.TemporaryDirectory())
    return _scratch_folder[0].name


def _kernel_calls() -> Iterator[Call]:
    """The CPU kernels."""
    row = lambda family: always(values.SCHEMES[family][0])  # noqa: E731
    col = lambda family: always(values.SCHEMES[family][1])  # noqa: E731
    beside = {"scale": always(torch.tensor(1.0)), "amax": always(None), "rng": always((1, 2))}
    yield Call("cpu.amax", always(cpu.amax), [_matrix], {"rht": always(False), "per_row": always(True)})
    for family in values.SCHEMES:
        one = lambda draw, family=family: values.copy(draw, family, columnwise=False)  # noqa: E731
        other = lambda draw, family=family: values.copy(draw, family, columnwise=True)  # noqa: E731
        empty = lambda draw, family=family: cpu.empty_copy(  # noqa: E731
            values.SCHEMES[family][0], (32, 64), columnwise=False
        )
        options = {
            "bias": always(torch.ones(32)),
            "accumulate": always(None),
            "residual": lambda _: values.matrix(32, 32),
            "epilogue": always("gelu"),
            "preactivation": always(True),
            "out_dtype": always(torch.float32),
            "out": lambda _: torch.empty(32, 32),
        }
        yield Call(f"cpu.quantize {family}", always(cpu.quantize), [_matrix, row(family), col(family)], beside)
        yield Call(f"cpu.quantize_into {family}", always(cpu.quantize_into), [_matrix, empty, always(None)], beside)
        yield Call(f"cpu.dequantize {family}", always(cpu.dequantize), [one], {"dtype": always(torch.float32)})
        out = {"out": lambda _: torch.empty(32, 64)}
        yield Call(f"cpu.dequantize into {family}", always(cpu.dequantize), [other], out)
        yield Call(f"cpu.qgemm {family}", always(cpu.qgemm), [one, one], options)
        yield Call(f"cpu.transpose {family}", always(cpu.transpose), [one])
        yield Call(f"cpu.swizzle {family}", always(cpu.swizzle), [other])
        shape = [row(family), always((32, 64))]
        yield Call(f"cpu.empty_copy {family}", always(cpu.empty_copy), shape, {"columnwise": always(True)})
    fp4 = lambda draw: values.copy(draw, "nvfp4", columnwise=False)  # noqa: E731
    packed = lambda draw: cpu.pack(fp4(draw))  # noqa: E731
    yield Call("cpu.pack", always(cpu.pack), [fp4])
    yield Call("cpu.unpack", always(cpu.unpack), [packed])
    yield Call("cpu.qgemm packed", always(cpu.qgemm), [fp4, packed])
    delayed = values.Scheme("f8E4M3FN", "tensor", "f32", source="delayed")
    options = {"margin": always(0), "algorithm": always("max")}
    history = [always(torch.tensor(1.0)), lambda _: torch.ones(4), always(delayed)]
    yield Call("cpu.update_scale", always(cpu.update_scale), history, options)
    for kind, count, vectors in (("gelu", 1, 0), ("add", 2, 0), ("layer_norm", 1, 2), ("rms_norm", 1, 1)):

        def inputs(draw: random.Random, count=count, vectors=vectors) -> tuple:
            made = [values.matrix() for _ in range(count)] + [torch.ones(64) for _ in range(vectors)]
            made += [1e-5] if vectors else []
            if draw.random() < 0.5:
                made[draw.randrange(len(made))] = values.pick(draw)[1]
            return tuple(made)

        dtype = always(torch.float32)
        yield Call(f"cpu.produce {kind}", always(cpu.produce), [always(kind), inputs, dtype])
        schemes = [row("mx"), col("mx")]
        yield Call(
            f"cpu.quantize_produced {kind}",
            always(cpu.quantize_produced),
            [always(kind), inputs, *schemes],
            {"dtype": dtype, **beside},
        )
    yield Call("cpu.set_isa", always(cpu.set_isa), [always(None)])
    yield Call("cpu.isa", always(cpu.isa))
    yield Call("cpu.instruction_sets", always(cpu.instruction_sets))


def _quantizer_calls() -> Iterator[Call]:
    """Quantizers and what they make."""
    constructors = {
        "Float8Quantizer": ([always(torch.ones(())), always(torch.zeros(())), always(values.E4M3)], {}),
        "Float8CurrentScalingQuantizer": ([always(values.E4M3)], {"device": None, "amax_epsilon": 0.0}),
        "Float8BlockQuantizer": ([always(values.E4M3)], {"block_scaling_dim": 1, "force_pow_2_scales": False}),
        "MXFP8Quantizer": ([always(values.E4M3)], {"with_2d_quantization": False, "scale_rule": "floor"}),
        "NVFP4Quantizer": ([], {"with_rht": False, "four_over_six": "mae", "row_scaled_nvfp4": False}),
    }
    usage = {"rowwise": True, "columnwise": True, "internal": False, "optimize_for_gemm": False}
    for name, (arguments, options) in constructors.items():
        keywords = {key: always(value) for key, value in {**options, **usage}.items()}
        yield Call(name, always(getattr(steelyard.tensor, name)), arguments, keywords)
    for family in values.QUANTIZERS:
        make = lambda _draw, family=family: values.QUANTIZERS[family]()  # noqa: E731
        made = lambda _draw, family=family: values.QUANTIZERS[family]()(values.matrix())  # noqa: E731
        bare = lambda _draw, family=family: values.QUANTIZERS[family](internal=True)(values.matrix())  # noqa: E731
        yield from _methods_of_quantizers(family, make, made)
        yield from _methods_of_tensors(f"{family} tensor", made, make)
        yield from _methods_of_tensors(f"{family} storage", bare, make)
        yield from _constructors(family, made, bare)


def _bound(make: _MAKE, name: str) -> _MAKE:
    return lambda draw: getattr(make(draw), name)


def _methods_of_quantizers(family: str, make: _MAKE, made: _MAKE) -> Iterator[Call]:
    flag = always(None)
    float32 = always(torch.float32)
    for name, arguments, keywords in (
        ("__call__", [_matrix], {"dtype": float32}),
        ("quantize", [_matrix], {"out": made}),
        ("update_quantized", [_matrix, made], {"noop_flag": flag}),
        ("make_empty", [always((32, 64))], {"dtype": float32, "device": flag, "requires_grad": always(False)}),
        ("qgemm", [made, made], {"kind": always("fprop"), "bias": flag, "accumulate": flag, "out_dtype": float32}),
        ("is_quantizable", [_matrix], {}),
        ("set_usage", [], {"rowwise": always(True), "columnwise": always(True)}),
        ("calibrate", [_matrix], {}),
        ("scheme", [always("rowwise")], {}),
        ("copy", [], {}),
        ("schemes", [], {}),
        ("get_usages", [], {}),
    ):
        yield Call(f"{family} quantizer.{name}", _bound(make, name), arguments, keywords)


def _methods_of_tensors(what: str, made: _MAKE, make: _MAKE) -> Iterator[Call]:
    float32, yes = always(torch.float32), always(True)
    for name, arguments, keywords in (
        ("dequantize", [], {"dtype": float32}),
        ("quantize_", [_matrix], {"noop_flag": always(None)}),
        ("update_quantizer", [make], {}),
        ("update_usage", [], {"rowwise_usage": yes, "columnwise_usage": yes}),
        ("get_data_tensors", [], {"rowwise_data": yes, "columnwise_data": yes}),
        ("view", [always((64, 32))], {}),
        ("to_dtype", [always(torch.bfloat16)], {}),
        ("get_metadata", [], {}),
        ("get_usages", [], {}),
        ("prepare_for_saving", [], {}),
        ("restore_from_saved", [lambda draw, made=made: made(draw).prepare_for_saving()[0]], {}),
        ("make_like", [made], {"shape": always((64, 32)), "dtype": float32, "requires_grad": always(False)}),
        ("size", [always(0)], {}),
    ):
        if _is_our_own(getattr(made(random.Random(0)), name, None)):
            yield Call(f"{what}.{name}", _bound(made, name), arguments, keywords, weight=0.5)


def _is_our_own(method: Any) -> bool:
    """Whether Steelyard has written a method: what torch's own methods raise is torch's."""
    code = getattr(getattr(method, "__func__", None), "__code__", None)
    return code is not None and code.co_filename.startswith(ROOTS)


def _constructors(family: str, made: _MAKE, bare: _MAKE) -> Iterator[Call]:
    """The classes of tensors, given their parts."""
    for what, source in (("tensor", made), ("storage", bare)):
        example = source(random.Random(0))
        if isinstance(example, CurrentScalingTensorRef):
            continue
        keywords: dict[str, _MAKE] = {
            name: lambda draw, source=source, name=name: source(draw).get_metadata()[name]
            for name in example.get_metadata()
        }
        yield Call(f"{family} {what} class", always(type(example)), [], keywords, weight=2)


def _saving_calls() -> Iterator[Call]:
    bare = lambda draw: values.quantized(draw, internal=True)  # noqa: E731
    yield Call("prepare_for_saving", always(prepare_for_saving), [bare, _matrix])

    def saved(draw: random.Random) -> Any:
        return prepare_for_saving(bare(draw), values.matrix())

    tensors, objects = (lambda draw: saved(draw)[0]), (lambda draw: saved(draw)[1])
    yield Call("restore_from_saved", always(restore_from_saved), [tensors, objects])
    factory = always(current_scaling_ref_quantizer_factory)
    yield Call("current_scaling_ref_quantizer_factory", factory, [always("input")])


def _recipe_calls() -> Iterator[Call]:
    yield Call("recipes.get", always(recipes.get), [always("mxfp8")])
    yield Call("Overrides.parse", always(recipes.Overrides.parse), [always("head=none")])
    yield Call("Role", always(recipes.Role), [always("input"), always("head"), always("linear")])
    every = [recipes.get(name) for name in recipes.NAMES] + [recipes.CustomRecipe(lambda role: None)]
    for recipe in every:
        name = type(recipe).__name__
        fields = {key: always(getattr(recipe, key)) for key in recipe.__dataclass_fields__}
        yield Call(name, always(type(recipe)), [], fields)
        yield Call(f"{name}.schemes", always(recipe.schemes), [always("input")])
        yield Call(f"{name}.set_quantizer_factory", always(recipe.set_quantizer_factory), [always(lambda _: None)])
        if recipe.name != "custom":
            yield Call(f"{name}.from_dict", always(recipe.from_dict), [always(recipe.to_dict())])
            yield Call(f"{name}.from_toml", always(recipe.from_toml), [always(recipe.to_toml())])
    # What a user's factory returns is an argument, too.
    returning = lambda draw: recipes.CustomRecipe(always(values.pick(draw)[1])).schemes  # noqa: E731
    yield Call("CustomRecipe.factory", returning, [always("input")])
    scheme = {"source": "current", "rounding": "nearest", "rule": "rceil", "epsilon": 0.0, "layout": "compact"}
    arguments = [always("f8E4M3FN"), always("1x32"), always("f8E8M0FNU")]
    yield Call("Scheme", always(values.Scheme), arguments, {key: always(value) for key, value in scheme.items()})


def _model(_: random.Random) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 32))


class _Nets:
    """A net that was called once; another one after each call that may have changed it."""

    def __init__(self):
        self._net: Any = None

    def fresh(self, draw: random.Random) -> Any:
        torch._dynamo.reset()
        net = steelyard.compile(_model(draw), draw.choice(recipes.NAMES))
        with torch.no_grad():
            net(values.matrix())
        return net

    def kept(self, draw: random.Random) -> Any:
        self._net = self._net or self.fresh(draw)
        return self._net


def _net_calls() -> Iterator[Call]:
    nets = _Nets()
    options = {
        "target": "cpu",
        "overrides": None,
        "attention": False,
        "save": None,
        "check_finite": False,
        "weights": "cached",
        "kv_cache": None,
        "kv_scales": None,
    }
    keywords = {key: always(value) for key, value in options.items()}
    yield Call("compile", always(steelyard.compile), [_model, always("mxfp8")], keywords, weight=3)
    yield Call("net.ir", _bound(nets.kept, "ir"), [always("lowered"), always(None)])
    yield Call("net.ir_dump", _bound(nets.kept, "ir_dump"), [_folder])
    for name in ("explain", "memory", "requantize"):
        yield Call(f"net.{name}", _bound(nets.kept, name))
    state = lambda draw: nets.kept(draw).state_dict()  # noqa: E731
    yield Call("plain_state_dict", always(steelyard.plain_state_dict), [state], weight=2)
    yield Call("plain_state_dict of wrong values", always(steelyard.plain_state_dict), [_wrong_state], weight=2)
    # These compile, which takes a second each.
    yield Call("net", nets.fresh, [_matrix], weight=0.7, plain=_model)
    yield Call("net.lower", _bound(nets.fresh, "lower"), [_matrix], weight=0.3, plain=_model)
    load = "load_state_dict"
    yield Call(f"net.{load}", _bound(nets.fresh, load), [_wrong_state], weight=0.3, plain=_bound(_model, load))


def _wrong_state(draw: random.Random) -> dict:
    """The state of a net with quantized parameters, some of it replaced."""
    torch._dynamo.reset()
    net = steelyard.compile(_model(draw), draw.choice(recipes.NAMES), weights="quantized")
    with torch.no_grad():
        net(values.matrix())
    state = dict(net.state_dict())
    for key in draw.sample(list(state), k=min(2, len(state))):
        state[key] = values.pick(draw)[1]
    return state


def torch_calls() -> Iterator[Call]:
    """Every call of the API for torch."""
    for group in (_kernel_calls, _quantizer_calls, _saving_calls, _recipe_calls, _net_calls):
        yield from group()
