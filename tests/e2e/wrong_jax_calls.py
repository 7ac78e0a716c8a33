"""The functions of `steelyard.jax`, each with arguments that it takes."""

import random
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import wrong_values as values
from wrong_calls import Call, always

from steelyard import jax as steelyard_jax
from steelyard.jax import QuantizeLayout, QuantizerSet, ScalingMode

MODES = [mode for mode in ScalingMode if mode is not ScalingMode.NO_SCALING]
X, KERNEL = jnp.ones((32, 64)), jnp.ones((64, 32))


def _mode(draw: random.Random) -> ScalingMode:
    return draw.choice(MODES)


def _quantized(array: jax.Array) -> Any:
    def make(draw: random.Random) -> Any:
        return steelyard_jax.quantize(array, draw.choice(MODES), rowwise=True, colwise=True, scale=jnp.ones(()))

    return make


def _one_copy(draw: random.Random) -> Any:
    return _quantized(X)(draw).get_tensor(is_colwise=draw.random() < 0.5)


def jax_calls() -> Iterator[Call]:
    """Every call of the API for JAX."""
    none, key, array = always(None), always(jax.random.key(0)), always(X)
    sizes = always(jnp.array([16, 16], jnp.int32))
    quantizers = always(QuantizerSet.from_recipe("mxfp8"))
    yield Call(
        "jax.quantize",
        always(steelyard_jax.quantize),
        [array, _mode],
        {
            "q_dtype": none,
            "rowwise": always(True),
            "colwise": always(True),
            "flatten_axis": always(-1),
            "dq_dtype": always(jnp.float32),
            "scale": always(jnp.ones(())),
            "amax": none,
            "key": key,
        },
        weight=3,
    )
    yield Call("jax.quantize groups", always(steelyard_jax.quantize), [array, _mode], {"group_sizes": sizes})
    yield Call("jax.dequantize", always(steelyard_jax.dequantize), [_quantized(X)])
    beside = {"bias": always(jnp.ones(32)), "out_dtype": always(jnp.float32)}
    yield Call("jax.dot", always(steelyard_jax.dot), [_quantized(X), _quantized(KERNEL)], beside, weight=2)
    yield Call("jax.dense", always(steelyard_jax.dense), [array, always(KERNEL), always(jnp.ones(32)), quantizers])
    kernels = always(jnp.ones((2, 64, 32)))
    yield Call("jax.grouped_dense", always(steelyard_jax.grouped_dense), [array, kernels, sizes, none, quantizers])
    options = {"overrides": always({"layer": None}), "parameters": always(0)}
    yield Call("jax.compile", always(steelyard_jax.compile), [always(lambda p, x: x @ p), always("mxfp8")], options)
    yield from _compiled_calls()
    yield from _tensor_calls()
    yield from _quantizer_calls()


def _linear(parameters: Any, x: Any, *_: Any) -> jax.Array:
    try:
        return x @ parameters["layer"]["kernel"]
    except Exception as error:
        raise ArithmeticError("a user's function fails") from error


def _compiled_calls() -> Iterator[Call]:
    """A compiled function, and all that it can be asked. What the function itself refuses is the user's."""
    fast = steelyard_jax.compile(_linear, "mxfp8")
    parameters = {"layer": {"kernel": KERNEL}}
    both = [always(parameters), always(X)]
    weights = fast.quantize(parameters, X)
    state = {"state": always(None)}
    yield Call("jax.compiled", always(fast), both, state, 0.3)
    yield Call("jax.compiled weights", always(fast), [always(weights), always(X)], state, 0.3)
    yield Call("jax.compiled.quantize", always(fast.quantize), both, state, 0.3)
    yield Call("jax.compiled.init_state", always(fast.init_state), both, {"key": always(jax.random.key(0))}, 0.3)
    yield Call("jax.compiled.lower", always(fast.lower), both, {"training": always(False)}, 0.3)
    yield Call("jax.compiled.ir", always(fast.ir), [always("traced")])
    yield Call("jax.compiled.ir_dump", always(fast.ir_dump), [always("ir")], {}, 0.3)
    yield Call("jax.compiled.explain", always(fast.explain), [])
    options = {"logits": always(False), "state": always(None)}
    yield Call("jax.compiled.measure", always(fast.measure), [always([(parameters, X)])], options, 0.3)
    yield Call("jax.compiled.measure context", always(_enter(fast.measure)), [], {"output": always(True)})


def _tensor_calls() -> Iterator[Call]:
    for name in ("tensor_scale", "block_scale", "mxfp8", "nvfp4", "noop"):
        yield Call(
            f"jax.{name}_dequantizer", always(getattr(steelyard_jax, f"{name}_dequantizer")), [_one_copy], {}, 0.5
        )

    def parts(draw: random.Random) -> Any:
        return steelyard_jax.quantize(X, ScalingMode.MXFP8_1D_SCALING)

    options = {
        "amax": always(None),
        "scaling_mode": always(ScalingMode.MXFP8_1D_SCALING),
        "dq_dtype": always(jnp.float32),
        "is_colwise": always(False),
        "data_layout": always("N"),
        "flatten_axis": always(-1),
    }
    arrays = [lambda draw: parts(draw).data, lambda draw: parts(draw).scale_inv]
    yield Call("jax.ScaledTensor1x", always(steelyard_jax.ScaledTensor1x), arrays, options)
    yield Call("jax.ScaledTensorFactory.create", always(steelyard_jax.ScaledTensorFactory.create), arrays, options)
    yield Call(
        "jax.ScaledTensorFactory.create_1x", always(steelyard_jax.ScaledTensorFactory.create_1x), arrays, options
    )
    both = [_one_copy, _one_copy]
    yield Call("jax.ScaledTensor2x", always(steelyard_jax.ScaledTensor2x), both)
    yield Call("jax.NoScaleTensor", always(steelyard_jax.NoScaleTensor), [always(X), always(None)])
    yield Call("jax.get_tensor", lambda draw: _quantized(X)(draw).get_tensor, [always(True)])


def _quantizer_calls() -> Iterator[Call]:
    row, col = (always(scheme) for scheme in values.SCHEMES["mx"])
    delayed = values.Scheme("f8E4M3FN", "tensor", "f32", source="delayed")
    make = steelyard_jax.Quantizer(*values.SCHEMES["mx"])
    yield Call("jax.Quantizer", always(steelyard_jax.Quantizer), [row, col])
    options = {"rowwise": always(True), "colwise": always(True), "flatten_axis": always(-1)}
    yield Call("jax.Quantizer.quantize", always(make.quantize), [always(X)], options)
    delays = {"history_len": always(4), "margin": always(0), "algorithm": always("max")}
    schemes = [always(delayed), always(delayed)]
    yield Call("jax.DelayedQuantizer", always(steelyard_jax.DelayedQuantizer), schemes, delays)
    history = [always(jnp.ones(())), always(jnp.ones(4)), always(delayed)]
    options = {"margin": always(0), "algorithm": always("max")}
    yield Call("jax.update_scale", always(steelyard_jax.update_scale), history, options)
    each = always(make)
    seeds = {"key": always(jax.random.key(0)), "backward": always("normal")}
    yield Call("jax.QuantizerSet", always(QuantizerSet), [each, each, each], seeds)
    layer = {"key": always(None), "layer": always("")}
    yield Call("jax.QuantizerSet.from_recipe", always(QuantizerSet.from_recipe), [always("mxfp8")], layer)
    yield Call("jax.QuantizerSet.with_key", always(QuantizerSet.from_recipe("nvfp4").with_key), [seeds["key"]])
    factory = steelyard_jax.QuantizerFactory
    copies = {"q_dtype": always(None), "q_layout": always(QuantizeLayout.ROWWISE), "n_groups": always(None)}
    yield Call("jax.QuantizerFactory.create", always(factory.create), [always(1), _mode], copies)
    sets = {"fwd_dtype": always(None), "bwd_dtype": always(None), "is_2x2x": always(None), "fp8_recipe": always(None)}
    yield Call("jax.QuantizerFactory.create_set", always(factory.create_set), [always(1), _mode], sets)
    yield Call("jax.ScalingMode.scheme", lambda draw: _mode(draw).scheme, [], {"is_colwise": always(True)})
    shape = {"is_colwise": always(False), "is_padded": always(False), "flatten_axis": always(-1)}
    yield Call("jax.ScalingMode.get_scale_shape", lambda draw: _mode(draw).get_scale_shape, [always((32, 64))], shape)
    yield Call("jax.use_path", always(_enter(steelyard_jax.use_path)), [always("auto")])
    yield Call("jax.logical_axis_rules", always(_enter(steelyard_jax.logical_axis_rules)), [always([("a", None)])])


def _enter(manager: Any) -> Any:
    """A context manager does its work when it is entered."""

    def run(*arguments: Any) -> None:
        with manager(*arguments):
            pass

    return run
