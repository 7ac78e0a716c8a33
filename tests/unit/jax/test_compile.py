"""Compiled functions compute what `dense` by hand computes, say what they did, and refuse what they cannot do."""

import re
import tomllib
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_cases import (
    WIDTH,
    assert_same,
    difference,
    loss_of,
    mlp,
    mlp_by_hand,
    mlp_parameters,
    nested,
    normal,
    stack,
    stack_by_hand,
    stack_parameters,
)

import steelyard.jax as sj
from steelyard import recipes
from steelyard.errors import RecipeError, SteelyardError, SteelyardWarning, TargetError, UnsupportedModelError
from steelyard.jax import internals

X = normal(0, 2, 16, WIDTH)
NEAREST = recipes.NVFP4BlockScaling(stochastic_rounding=False)
DELAYED = recipes.DelayedScaling(amax_history_len=2)


def sets_of(recipe):
    return {name: sj.QuantizerSet.from_recipe(recipe) for name in ("up", "down")}


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "recipe",
    [
        "mxfp8",
        NEAREST,
        pytest.param("fp8-current", marks=pytest.mark.slow),
        pytest.param("fp8-block", marks=pytest.mark.slow),
    ],
    ids=lambda recipe: recipes.get(recipe).name,
)
def test_values_and_gradients_are_those_of_dense_by_hand(recipe):
    fast = sj.compile(mlp, recipe)
    found = jax.jit(jax.value_and_grad(loss_of(fast), argnums=(0, 1)))(mlp_parameters(), X)
    by_hand = loss_of(lambda parameters, x: mlp_by_hand(parameters, x, sets_of(recipe)))
    assert_same(found, jax.jit(jax.value_and_grad(by_hand, argnums=(0, 1)))(mlp_parameters(), X))


def test_weights_and_their_gradients_are_not_transposed():
    step = jax.jit(jax.grad(loss_of(sj.compile(mlp, "mxfp8"))))
    program = step.lower(mlp_parameters(), X).compile().as_text()
    assert "steelyard_gemm" in program
    assert not re.findall(r"f32\[(?:64,96|96,64)\]\S* (?:copy|transpose)\(", program)


def test_donated_parameters_and_state_are_overwritten():
    fast, parameters = sj.compile(mlp, DELAYED), mlp_parameters()
    state = fast.init_state(parameters, X)

    def step(parameters, state):
        gradients, state = jax.grad(lambda p, s: loss_of(fast)(p, X, state=s), argnums=(0, 1))(parameters, state)
        return jax.tree.map(lambda p, g: p - g, parameters, gradients), state

    expected = jax.jit(step)(parameters, state)
    assert_same(jax.jit(step, donate_argnums=(0, 1))(parameters, state), expected)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((parameters, state)))


def test_delayed_scales_move_as_those_of_quantizer_sets():
    fast = sj.compile(mlp, DELAYED)
    parameters, sets = mlp_parameters(), sets_of(DELAYED)
    state = fast.init_state(parameters, X)
    ours = jax.jit(jax.value_and_grad(lambda p, s, x: loss_of(fast)(p, x, state=s), argnums=(0, 1)))
    by_hand = jax.jit(jax.value_and_grad(lambda p, s, x: loss_of(mlp_by_hand)(p, x, s), argnums=(0, 1)))
    for scale in (1.0, 3.0):
        value, (gradients, state) = ours(parameters, state, scale * X)
        expected, (wanted, sets) = by_hand(parameters, sets, scale * X)
        assert_same((value, gradients), (expected, wanted))
    for layer, quantizers in sets.items():
        for role, quantizer in (
            ("input", quantizers.x),
            ("weight", quantizers.kernel),
            ("grad_output", quantizers.dgrad),
        ):
            np.testing.assert_array_equal(state[f"{layer}.{role}.scale"], quantizer.scale)
            np.testing.assert_array_equal(state[f"{layer}.{role}.amax_history"], quantizer.amax_history)


def test_loops_have_state_for_each_trip():
    fast, parameters = sj.compile(stack, DELAYED), stack_parameters()
    state = fast.init_state(parameters, X)
    assert {name: value.shape for name, value in state.items() if "input" in name} == {
        "layers.input.scale": (3,),
        "layers.input.amax_history": (2, 3),
    }
    sets = [sj.QuantizerSet.from_recipe(DELAYED) for _ in range(3)]
    ours = jax.jit(jax.value_and_grad(lambda p, s: loss_of(fast)(p, X, state=s), argnums=(0, 1)))
    by_hand = jax.jit(jax.value_and_grad(lambda p, s: loss_of(stack_by_hand)(p, X, s), argnums=(0, 1)))
    for _ in range(2):
        value, (gradients, state) = ours(parameters, state)
        expected, (wanted, sets) = by_hand(parameters, sets)
        assert_same((value, gradients), (expected, wanted))
    for trip, quantizers in enumerate(sets):
        for role, quantizer in (
            ("input", quantizers.x),
            ("weight", quantizers.kernel),
            ("grad_output", quantizers.dgrad),
        ):
            assert float(state[f"layers.{role}.scale"][trip]) == float(quantizer.scale)
            np.testing.assert_array_equal(state[f"layers.{role}.amax_history"][:, trip], quantizer.amax_history)


def linear(x, kernels):
    """Layers in a loop; of more than one dim, in as many loops."""
    body = lambda x, kernel: (x @ kernel if kernel.ndim == 2 else linear(x, kernel), None)  # noqa: E731
    return jax.lax.scan(body, x, kernels)[0]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("recipe", "trips"),
    [("mxfp8", (3,)), ("nvfp4", (3,)), (DELAYED, (3,)), ("mxfp8", (3, 1)), (DELAYED, (1, 3)), ("mxfp8", (1, 3, 1))],
    ids=str,
)
def test_loops_keep_quantized_inputs_for_the_backward(recipe, trips):
    fast = sj.compile(lambda parameters, x: linear(x, parameters["layers"]["kernel"]), recipe)
    parameters = {"layers": {"kernel": normal(4, *trips, WIDTH, WIDTH) / 8}}
    state = fast.init_state(parameters, X)
    before = sum(each.nbytes for each in jax.tree.leaves((parameters, state)))
    _, pullback = jax.vjp(lambda p: fast(p, X, state=state), parameters)
    # The copy for wgrad of three inputs: codes, a scale for each block, and less than a kilobyte of amaxes and state.
    bits = {"mxfp8": 8 + 8 / 32, "nvfp4": 4 + 8 / 16}.get(recipe, 8)
    kept = sum(each.nbytes for each in jax.tree.leaves(pullback)) - before
    assert 0 <= kept - 3 * X.size * bits / 8 < 1024


def nested_in_one(parameters, x):
    kernels = parameters["layers"]["kernel"].reshape(2, 2, WIDTH, WIDTH)
    return nested({"layers": {"kernel": kernels}}, x)


def test_loops_in_loops_have_state_for_each_trip_of_both():
    parameters = stack_parameters(4)
    flat, fast = sj.compile(stack, DELAYED), sj.compile(nested_in_one, DELAYED)
    states = [each.init_state(parameters, X) for each in (flat, fast)]
    assert states[1]["layers.input.amax_history"].shape == (2, 2, 2)
    steps = [
        jax.jit(jax.value_and_grad(lambda p, s, each=each: loss_of(each)(p, X, state=s), argnums=(0, 1)))
        for each in (flat, fast)
    ]
    for _ in range(2):
        found = [step(parameters, state) for step, state in zip(steps, states, strict=True)]
        states = [each[1][1] for each in found]
        assert_same(found[1][0], found[0][0])
        assert_same(found[1][1][0], found[0][1][0])
    for name, value in states[0].items():
        np.testing.assert_array_equal(states[1][name].reshape(value.shape), value)


def test_a_layer_in_and_outside_of_a_loop_has_state_for_each_place():
    def shared(parameters, x):
        kernel = parameters["layer"]["kernel"]
        x = jax.lax.scan(lambda x, _: (jnp.tanh(x @ kernel), None), x, length=2)[0]
        return x @ kernel

    def by_hand(parameters, x, sets):
        kernel = parameters["layer"]["kernel"]
        for quantizers in sets[:2]:
            x = jnp.tanh(sj.dense(x, kernel, None, quantizers))
        return sj.dense(x, kernel, None, sets[2])

    fast, parameters = sj.compile(shared, DELAYED), {"layer": {"kernel": normal(1, WIDTH, WIDTH) / 4}}
    state, sets = fast.init_state(parameters, X), [sj.QuantizerSet.from_recipe(DELAYED) for _ in range(3)]
    ours = jax.jit(jax.value_and_grad(lambda p, s: loss_of(fast)(p, X, state=s), argnums=(0, 1)))
    wanted = jax.jit(jax.value_and_grad(lambda p, s: loss_of(by_hand)(p, X, s), argnums=(0, 1)))
    for _ in range(2):
        value, (gradients, state) = ours(parameters, state)
        expected, (gradients_by_hand, sets) = wanted(parameters, sets)
        assert float(value) == float(expected)
        # The three gradients of one kernel are added in another order.
        assert difference(gradients, gradients_by_hand) < 1e-6
    for role, name in (("input", "x"), ("weight", "kernel"), ("grad_output", "dgrad")):
        scales = [*state[f"layer.loop2.{role}.scale"], state[f"layer.{role}.scale"]]
        assert [float(each) for each in scales] == [float(getattr(each, name).scale) for each in sets]
    assert fast(parameters, X, state=state).shape == X.shape


@pytest.mark.slow
def test_stochastic_rounding_is_unbiased_and_draws_anew_in_each_step():
    fast, parameters = sj.compile(stack, "nvfp4"), stack_parameters(2)
    start = fast.init_state(parameters, X, key=jax.random.key(5))
    step = jax.jit(jax.grad(lambda p, s: loss_of(fast)(p, X, state=s), argnums=(0, 1)))
    gradients, state = [], start
    for _ in range(24):
        gradient, state = step(parameters, state)
        gradients.append(gradient["layers"]["kernel"])
    assert_same(step(parameters, start)[0]["layers"]["kernel"], gradients[0])
    assert float(jnp.max(jnp.abs(gradients[0] - gradients[1]))) > 0
    exact = jax.grad(lambda p: loss_of(sj.compile(stack, NEAREST))(p, X))(parameters)["layers"]["kernel"]
    mean = sum(gradients) / len(gradients)
    spread = float(jnp.std(jnp.stack(gradients), axis=0).mean())
    assert float(jnp.std(mean - jnp.stack(gradients[:12]).mean(axis=0))) < 0.5 * spread
    assert float(jnp.linalg.norm(mean - exact)) < float(jnp.linalg.norm(gradients[0] - exact))


def test_a_recipe_with_state_must_be_given_it():
    with pytest.raises(RecipeError, match=r"state must hold 'up\.input\.scale'|state must hold 'up\.weight\.scale'"):
        sj.compile(mlp, "fp8-delayed")(mlp_parameters(), X)
    with pytest.raises(RecipeError, match=r"state must hold 'rng', got none; pass state=fast\.init_state"):
        jax.grad(loss_of(sj.compile(mlp, "nvfp4")))(mlp_parameters(), X)


def dots_of(jaxpr, trips=1):
    """The products of a jaxpr and of what it calls: how often each runs, and its FLOPs."""
    for eqn in jaxpr.eqns:
        times = trips * eqn.params["length"] if eqn.primitive.name == "scan" else trips
        if eqn.primitive.name == "dot_general":
            (reduced, _), _ = eqn.params["dimension_numbers"]
            size = np.prod([eqn.invars[0].aval.shape[dim] for dim in reduced]) * np.prod(eqn.outvars[0].aval.shape)
            yield int(2 * size * times)
        if eqn.primitive.name == "ragged_dot_general":
            # Each row meets one matrix [K, N] or makes a part of one, whichever of the three is the result.
            arrays = [atom.aval.shape for atom in (*eqn.invars[:2], *eqn.outvars)]
            (matrices,) = (shape for shape in arrays if len(shape) == 3)
            yield 2 * arrays[0][0] * matrices[1] * matrices[2] * times
        for value in eqn.params.values():
            for each in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(each, "jaxpr", each)
                if hasattr(inner, "eqns"):
                    yield from dots_of(inner, times)


def assert_rows_are_the_products(fast, fn, *arguments):
    fast.lower(*arguments)
    gradient = jax.make_jaxpr(jax.value_and_grad(loss_of(fn), argnums=(0, 1)))(*arguments)
    found = sorted(row.flops for row in fast.explain().rows)
    assert found == sorted(dots_of(gradient.jaxpr))
    assert found


def test_rows_are_the_products_of_branches_and_of_experts():
    def branched(parameters, x):
        kernel = parameters["layer"]["kernel"]
        return jax.lax.cond(jnp.sum(x) > 0, lambda x: x @ kernel, lambda x: jnp.tanh(x @ kernel) @ kernel, x)

    def experts(parameters, x, sizes):
        return jnp.tanh(jax.lax.ragged_dot(x[0], parameters["up"], sizes)) @ parameters["layer"]["kernel"]

    parameters = {"layer": {"kernel": normal(1, WIDTH, WIDTH)}, "up": normal(2, 3, WIDTH, WIDTH)}
    assert_rows_are_the_products(sj.compile(branched, "mxfp8"), branched, parameters, X)
    assert_rows_are_the_products(sj.compile(experts, "mxfp8"), experts, parameters, X, jnp.array([5, 0, 11]))


def test_rows_are_the_products_of_flax_modules():
    linen, nnx = pytest.importorskip("flax.linen"), pytest.importorskip("flax.nnx")
    module = linen.Sequential([linen.Dense(96), linen.gelu, linen.Dense(WIDTH)])
    variables = module.init(jax.random.key(0), X)
    assert_rows_are_the_products(sj.compile(module.apply, "mxfp8"), module.apply, variables, X)
    rngs = nnx.Rngs(0)
    attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
    # The jaxpr to count has gradients of floats only.
    graph, state = nnx.split(nnx.Sequential(nnx.Linear(WIDTH, WIDTH, rngs=rngs), attention))
    floats, others = state.split(nnx.Param, ...)
    apply = lambda floats, x: nnx.merge(graph, floats, others)(x)  # noqa: E731
    assert_rows_are_the_products(sj.compile(apply, "mxfp8"), apply, floats, X)


@pytest.mark.parametrize("remat", [False, True], ids=["plain", "remat"])
def test_rows_are_the_products_of_the_function_and_none_is_missing(remat):
    def attention(parameters, x):
        x = stack(parameters, x)
        weights = jax.nn.softmax(jnp.einsum("btd,bsd->bts", x, x))
        return jnp.einsum("bts,bsd->btd", weights, x)

    fn = jax.checkpoint(attention) if remat else attention
    fast, parameters = sj.compile(fn, "mxfp8"), stack_parameters()
    fast.lower(parameters, X)
    rows = fast.explain().rows
    gradient = jax.make_jaxpr(jax.value_and_grad(loss_of(fn), argnums=(0, 1)))(parameters, X)
    assert sorted(row.flops for row in rows) == sorted(dots_of(gradient.jaxpr))
    kinds = [row.kind for row in rows if row.is_quantized]
    assert kinds.count("dgrad") == kinds.count("wgrad") == 1
    assert {row.reason for row in rows if not row.is_quantized} == {"a batched product, such as those of attention"}


def test_explanations_name_layers_formats_and_reasons():
    fast = sj.compile(mlp, "nvfp4", overrides={"down": None, "u*": "mxfp8"})
    fast.lower(mlp_parameters(), X, training=False)
    up, down = fast.explain().rows
    assert (up.layer, up.kind, up.M, up.N, up.K, up.lhs, up.weight) == (
        *("up", "fprop", "32", "96", str(WIDTH)),
        *("e4m3 1x32", "up.kernel"),
    )
    assert (down.layer, down.kernel, down.reason) == ("down", "xla", "override 'down' asks for high precision")


def test_an_override_must_match_a_layer():
    with pytest.raises(RecipeError, match=r"override pattern 'sideways' matches no layer; the layers .*: down, up"):
        sj.compile(mlp, "mxfp8", overrides={"sideways": None})(mlp_parameters(), X)


def test_layers_of_two_matrices_are_named_after_them():
    def fn(parameters, x):
        return x @ parameters["params"]["gate"]["wi"] + x @ parameters["params"]["gate"]["wo"]

    fast = sj.compile(fn, "mxfp8")
    fast.lower({"params": {"gate": {"wi": normal(1, WIDTH, 8), "wo": normal(2, WIDTH, 8)}}}, X, training=False)
    assert [row.layer for row in fast.explain().rows] == ["gate.wi", "gate.wo"]
    bare = sj.compile(lambda kernel, x: x @ kernel, "mxfp8")
    bare.lower(normal(1, WIDTH, 8), X, training=False)
    assert [row.layer for row in bare.explain().rows] == ["kernel"]


def test_a_router_stays_in_high_precision():
    def fn(parameters, x):
        scores = jax.nn.softmax(x @ parameters["router"]["kernel"])
        best, which = jax.lax.top_k(scores, 2)
        return (x @ parameters["expert"]["kernel"]) * best[..., :1] + which[..., :1]

    parameters = {"router": {"kernel": normal(1, WIDTH, 8)}, "expert": {"kernel": normal(2, WIDTH, WIDTH)}}
    fast = sj.compile(fn, "mxfp8")
    fast.lower(parameters, X)
    reasons = {(row.layer, row.kind): row.reason for row in fast.explain().rows}
    ranked = "its result is ranked, like a router's: a small error could change the choice"
    assert {reasons["router", kind] for kind in ("fprop", "dgrad", "wgrad")} == {ranked}
    assert {reasons["expert", kind] for kind in ("fprop", "dgrad", "wgrad")} == {""}


def test_little_that_is_quantized_is_a_warning():
    def fn(parameters, x):
        return jnp.einsum("btd,bsd->bts", x, x) @ jnp.ones((16, 256)) @ parameters["kernel"]

    with pytest.warns(SteelyardWarning, match=r"only \d+% of the FLOPs of GEMMs are quantized .*no operand is a para"):
        sj.compile(fn, "mxfp8")({"kernel": normal(1, 256, 4)}, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sj.compile(mlp, "mxfp8")(mlp_parameters(), X)


def test_every_stage_and_pass_can_be_read(tmp_path):
    fast = sj.compile(mlp, "mxfp8")
    with pytest.raises(SteelyardError, match="nothing is compiled yet"):
        fast.ir("raised")
    fast.lower(mlp_parameters(), X)
    counts = {
        stage: [
            len(re.findall(op, fast.ir(stage)))
            for op in (r"stablehlo\.dot_general", r"scaled\.matmul", r"scaled\.gemm")
        ]
        for stage in ("traced", "raised", "quantized", "partitioned")
    }
    assert counts == {"traced": [6, 0, 0], "raised": [0, 6, 0], "quantized": [0, 0, 6], "partitioned": [0, 0, 6]}
    # Each tensor is quantized once for all products that read it: inputs, weights and gradients of two layers.
    assert len(re.findall(r"scaled\.quantize", fast.ir("quantized"))) == 6
    names = [path.name for path in fast.ir_dump(tmp_path / "ir")]
    assert names[:2] == ["graph0_00_traced.mlir", "graph0_01_scaled-raise-gemms.mlir"]
    with pytest.raises(SteelyardError, match="stage must be one of traced, raised, quantized, fused, partitioned"):
        fast.ir("lowered")


def test_what_cannot_be_compiled_is_refused():
    with pytest.raises(UnsupportedModelError, match="takes a function, got int"):
        sj.compile(3, "mxfp8")
    with pytest.raises(RecipeError, match="recipe mxfp4 must have formats that JAX has kernels for"):
        sj.compile(mlp, "mxfp4")
    with pytest.raises(RecipeError, match="parameters must be numbers of arguments"):
        sj.compile(mlp, "mxfp8", parameters="first")
    with pytest.raises(RecipeError, match="overrides must map patterns"):
        sj.compile(mlp, "mxfp8", overrides=["up"])

    def stateful(parameters, ref):
        ref[...] = ref[...] @ parameters["kernel"]
        return ref[...]

    with pytest.raises(UnsupportedModelError, match="the function must be pure but for collectives and debug"):
        sj.compile(stateful, "mxfp8")({"kernel": normal(1, WIDTH, WIDTH)}, jax.new_ref(X))


def test_debug_prints_are_kept_in_the_forward(capfd):
    def fn(parameters, x):
        jax.debug.print("first {}", x[0, 0, 0])
        return mlp(parameters, x)

    jax.jit(jax.grad(loss_of(sj.compile(fn, "mxfp8"))))(mlp_parameters(), jnp.full_like(X, 2.5))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("first 2.5") == 1


def test_flags_are_static_and_keywords_work():
    def fn(parameters, x, *, double=False):
        return mlp(parameters, x) * (2 if double else 1)

    fast = sj.compile(fn, "mxfp8")
    once, twice = fast(mlp_parameters(), X), fast(mlp_parameters(), X, double=True)
    assert_same(twice, 2 * once)


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", ["fp8-current", "fp8-block", "mxfp8", NEAREST], ids=lambda recipe: recipes.get(recipe).name
)
def test_kernels_agree_with_the_reference_path(recipe):
    results = []
    for path in ("native", "reference"):
        with sj.use_path(path):
            fast = sj.compile(mlp, recipe)
            results.append(jax.jit(jax.value_and_grad(loss_of(fast)))(mlp_parameters(), X))
    assert difference(*results) < 1e-6


def test_private_parts_of_jax_are_used_in_one_module():
    root = Path(sj.__file__).parent
    users = [path.name for path in root.rglob("*.py") if re.search(r"\bjax\._src\b", path.read_text())]
    assert users == ["internals.py"]


def test_a_jax_without_what_we_use_is_refused(monkeypatch):
    from jax._src import shard_map

    source = Path(internals.__file__).read_text()
    monkeypatch.delattr(shard_map, "_as_manual_mesh")
    with pytest.raises(
        TargetError, match=r"parts of JAX that jax \S+ does not have .*_as_manual_mesh.*; install jax 0"
    ):
        exec(compile(source, internals.__file__, "exec"), {"__name__": "internals"})


def test_a_jax_that_was_not_tested_is_a_warning(monkeypatch):
    source = Path(internals.__file__).read_text()
    for version in ((0, 9, 2), (0, 11, 0)):
        monkeypatch.setattr(jax, "__version_info__", version)
        with pytest.warns(SteelyardWarning, match=r"tested with jax 0\.10\.2, got jax .*; install jax>=0\.10,<0\.11"):
            exec(compile(source, internals.__file__, "exec"), {"__name__": "internals"})
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(source, internals.__file__, "exec"), {"__name__": "internals"})
    root = Path(__file__).parents[3]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["jax"] == ["jax>=0.10,<0.11"]
