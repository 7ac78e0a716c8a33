"""Everything that we use of JAX's private modules, in one place.

JAX has no public way to name what it derives from an equation, to bind an equation of a shard_map again, or to give a
primitive of ours the devices when it is lowered.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import jax

from steelyard.errors import SteelyardWarning, TargetError

TESTED = "0.10.2"
"""The version of JAX that the tests run with."""
RANGE = ((0, 10), (0, 11))
"""From which version on, and before which, private parts are taken to do what they do in that one."""

if not RANGE[0] <= jax.__version_info__[:2] < RANGE[1]:
    warnings.warn(
        f"steelyard.jax uses private parts of JAX, and was tested with jax {TESTED}, got jax {jax.__version__}; "
        "install jax>=0.10,<0.11",
        SteelyardWarning,
        stacklevel=2,
    )

try:
    from jax._src import config, dispatch, shard_map, source_info_util
    from jax._src.core import ShardingTypeError
    from jax._src.interpreters.partial_eval import dce_jaxpr
    from jax._src.mesh import use_abstract_mesh
    from jax._src.source_info_util import NameStack, Scope, Transform, current_name_stack, user_context

    _extend_axis_env, _as_manual_mesh = shard_map._extend_axis_env, shard_map._as_manual_mesh
    _check_vma = config._check_vma
    _summarize = source_info_util.summarize
    trace_settings = config.trace_context
    """What JAX traces a function again for beside other arguments: meshes, named axes, x64 and the like."""
    devices_at_lowering = dispatch.prim_requires_devices_during_lowering
    """The primitives that get the devices when they are lowered."""
except (ImportError, AttributeError) as error:
    raise TargetError(
        f"steelyard.jax uses parts of JAX that jax {jax.__version__} does not have ({error}); install jax {TESTED}, "
        "with which it was tested"
    ) from error

__all__ = [
    "NameStack",
    "Scope",
    "ShardingTypeError",
    "Transform",
    "axes_of",
    "bind",
    "devices_at_lowering",
    "source_of",
    "trace_settings",
    "with_scope",
    "without_dead_code",
]


def without_dead_code(closed: Any) -> Any:
    """A jaxpr without what its results do not depend on, in bodies too: flax.nnx returns parameters from loops."""
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.out_avals), instantiate=True)
    return closed.replace(jaxpr=jaxpr)


def source_of(eqn: Any) -> str:
    """The line of the user's code that an equation comes from."""
    return _summarize(eqn.source_info)


def with_scope(eqn: Any, name: str) -> Any:
    """An equation with another name at the end of its name stack."""
    stack = eqn.source_info.name_stack.extend(name)
    return eqn.replace(source_info=eqn.source_info.replace(name_stack=stack))


def bind(eqn: Any, operands: list[Any], params: dict[str, Any]) -> list[Any]:
    """The results of an equation for other operands and parameters, with its names and its source."""
    stack = current_name_stack() + eqn.source_info.name_stack
    with user_context(eqn.source_info.traceback, name_stack=stack), eqn.ctx.manager:
        made = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(params))
    return list(made) if eqn.primitive.multiple_results else [made]


@contextlib.contextmanager
def axes_of(eqn: Any) -> Iterator[None]:
    """The mesh axes that the body of an equation is traced with, if it is a shard_map."""
    if eqn.primitive.name != "shard_map":
        yield
        return
    mesh, axes = eqn.params["mesh"], eqn.params["newly_manual_axes"]
    with (
        _extend_axis_env(mesh, axes),
        use_abstract_mesh(_as_manual_mesh(mesh, axes)),
        _check_vma(eqn.params["check_vma"]),
    ):
        yield
