"""A call that is like an earlier one goes past torch's wrappers, and notices all that the long way notices."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from block_stacks import Stack
from torch import nn

import steelyard
from steelyard.driver import net as nets
from steelyard.driver.captured import CapturedGraph
from steelyard.errors import UnsupportedModelError


class Scaled(nn.Module):
    """Reads a number of Python's, a flag of torch's, a default and a closure."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(48, 32)
        self.norm = nn.LayerNorm(32)
        self.factor = 2.0

    def forward(self, x, shift=1.0, *others, names=None):
        made = self.norm(self.linear(x)) * self.factor + shift
        made = -made if self.training else made
        for other in others:
            made = made + other
        return {"made": made, "names": names} if names is not None else made


@pytest.fixture
def model():
    return Scaled().eval()


@pytest.fixture
def net(model):
    """A net that has settled for calls without gradients."""
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        for _ in range(3):
            net(example())
    return net


def example(rows=3):
    return torch.randn(rows, 48, generator=torch.Generator().manual_seed(rows))


@pytest.fixture
def long_ways(monkeypatch):
    """Counts the calls that go the long way."""
    counts = []
    run = nets.CompiledModule._run

    def counted(self, *arguments, **keywords):
        counts.append(1)
        return run(self, *arguments, **keywords)

    monkeypatch.setattr(nets.CompiledModule, "_run", counted)
    return counts


def by_the_long_way(net, *arguments, **keywords):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nets, "is_plain_call", lambda *_: False)
        return net(*arguments, **keywords)


@torch.no_grad()
def test_a_settled_call_goes_the_short_way(net, long_ways):
    expected = by_the_long_way(net, example())
    assert len(long_ways) == 1
    assert torch.equal(net(example()), expected)
    assert len(long_ways) == 1


@torch.no_grad()
def test_calls_of_several_kinds_each_find_their_own(net, long_ways):
    other = torch.ones(3, 32)
    calls = [
        ((example(),), {}),
        ((example(5),), {}),
        ((example(), 3.0), {}),
        ((example(), 1.0, other, other), {}),
        ((example(),), {"names": ("a", "b")}),
        ((), {"x": example(), "shift": 0.5}),
    ]
    for _ in range(2):
        expected = [by_the_long_way(net, *arguments, **keywords) for arguments, keywords in calls]
    found = [net(*arguments, **keywords) for arguments, keywords in calls]
    assert torch.equal(found[3], found[0] + 2)
    assert found[4]["names"] == ("a", "b")
    found[4], expected[4] = found[4]["made"], expected[4]["made"]
    assert all(map(torch.equal, found, expected))
    long_ways.clear()
    for _ in range(2):
        assert torch.equal(net(example()), found[0])
    assert len(long_ways) <= 1, "at most the first of its kind after others"


class Sharing(nn.Module):
    """Reads a parameter that others read, too, before its own."""

    def __init__(self, shared):
        super().__init__()
        self.shared = shared
        self.linear = nn.Linear(48, 48)

    def forward(self, x):
        return self.linear(x * self.shared)


@torch.no_grad()
def test_layers_that_share_a_parameter_settle_each(monkeypatch):
    shared = nn.Parameter(torch.randn(48))
    model = Stack()
    model.blocks = nn.ModuleList(Sharing(shared) for _ in range(4))
    net, x = steelyard.compile(model.eval(), "mxfp8", blocks=["blocks"]), example()
    expected = [net(x) for _ in range(3)][-1]
    assert len(net._steelyard.backend.compilations) == 4
    looked_up = []
    run = CapturedGraph._run
    monkeypatch.setattr(CapturedGraph, "_run", lambda self, *given: looked_up.append(1) or run(self, *given))
    assert torch.equal(net(x), expected)
    assert not looked_up
    model.blocks[2].linear.weight.neg_()
    written = [net(x) for _ in range(3)][-1]
    assert not torch.equal(written, expected)
    looked_up.clear()
    assert torch.equal(net(x), written)
    assert not looked_up


class OddNames(nn.Linear):
    """Calls its parent's forward, and has parameters that are named as code might name things of its own."""

    def forward(self, x, cells, locals_of=1.0, *, cells_=2.0):
        return super().forward(x) * cells + locals_of * cells_


@torch.no_grad()
def test_parameters_may_have_any_names(long_ways):
    net = steelyard.compile(OddNames(48, 32).eval(), "mxfp8")
    factor = torch.tensor(3.0)
    first = net(example(), factor)
    for _ in range(3):
        assert torch.equal(net(example(), factor), first)
    torch.testing.assert_close(net(example(), cells=factor, cells_=4.0), first + 2)
    assert len(long_ways) <= 3


def load(model):
    model.load_state_dict({name: -2 * tensor for name, tensor in model.state_dict().items()})


CHANGES = {
    "a weight is written": lambda model: model.linear.weight.mul_(-3),
    "a weight is written through data": lambda model: model.linear.weight.data.mul_(-3),
    "a weight is replaced": lambda model: setattr(model.linear, "weight", nn.Parameter(torch.randn(32, 48))),
    "a bias is taken away": lambda model: setattr(model.linear, "bias", None),
    "a norm is written": lambda model: model.norm.weight.mul_(-3),
    "a norm is replaced": lambda model: setattr(model.norm, "weight", nn.Parameter(torch.randn(32))),
    "a state dict is loaded": load,
    "an attribute is changed": lambda model: setattr(model, "factor", 3.0),
    "the mode is changed": lambda model: model.train(),
    "a module is replaced": lambda model: setattr(model, "norm", nn.Identity()),
    "an inner hook is added": lambda model: model.linear.register_forward_hook(lambda *given: given[-1] * 2),
    "a hook is added": lambda model: model.register_forward_hook(lambda *given: given[-1] * 2),
    "a hook before it is added": lambda model: model.register_forward_pre_hook(lambda _, given: (given[0] * 2,)),
    "the instance gets a forward": lambda model: setattr(model, "forward", lambda x: x * 2),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_what_changes_is_noticed_at_the_next_call(change, model, net):
    before = net(example())
    CHANGES[change](model)
    found = net(example())
    assert found.shape != before.shape or not torch.equal(found, before)
    assert torch.equal(found, by_the_long_way(net, example()))
    # Independently of how it was noticed: MXFP8 has two to three digits.
    exact = model(example())
    assert (found - exact).norm() <= 0.1 * exact.norm()


def test_gradients_and_autocast_are_noticed(net):
    with torch.no_grad():
        plain = net(example())
    assert not plain.requires_grad
    assert net(example()).requires_grad
    with torch.inference_mode():
        assert net(example()).is_inference()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cast = net(example())
        assert torch.equal(cast, by_the_long_way(net, example()))
    with torch.no_grad():
        assert torch.equal(net(example()), plain)


@torch.no_grad()
def test_conversions_and_kinds_of_tensors_are_noticed(net, model):
    class Own(torch.Tensor):
        pass

    plain = net(example())
    assert torch.equal(net(example().as_subclass(Own)).as_subclass(torch.Tensor), plain)
    apart = torch.randn(48, 3, generator=torch.Generator().manual_seed(1)).t()
    assert torch.equal(net(apart), net(apart.contiguous()))
    net.to(torch.bfloat16)
    assert net(example().bfloat16()).dtype is torch.bfloat16


@torch.no_grad()
def test_hooks_of_all_modules_and_a_forward_of_the_net_are_called(net):
    plain = net(example())
    with nn.modules.module.register_module_forward_hook(lambda module, _, made: made * 2 if module is net else made):
        assert torch.equal(net(example()), plain * 2)
    net.forward = lambda x: x * 2
    assert torch.equal(net(example()), example() * 2)
    del net.forward
    assert torch.equal(net(example()), plain)


CALL_HOOKS = {
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
}
"""Where torch keeps what it calls around a forward: a short way must look at each of them."""
ABOUT_CALL_HOOKS = {
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
    "_global_forward_hooks_with_kwargs",
    "_global_forward_hooks_always_called",
}
"""What torch keeps of some of those: how it calls them."""
OTHER_HOOKS = {
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
}
"""What torch calls elsewhere."""


def test_torch_has_no_other_kind_of_hooks():
    """A kind that torch gains belongs into one of these sets, and into `is_plain_call` if calls run its hooks."""
    own = {name for name, held in vars(nn.Module()).items() if "hook" in name and isinstance(held, dict)}
    of_all = {name for name, held in vars(nn.modules.module).items() if "hook" in name and isinstance(held, dict)}
    assert own | of_all == CALL_HOOKS | ABOUT_CALL_HOOKS | OTHER_HOOKS
    code = nets.is_plain_call.__code__
    looked_at = {name for name in (*code.co_names, *code.co_consts) if isinstance(name, str) and name.endswith("hooks")}
    assert looked_at == CALL_HOOKS


@torch.no_grad()
def test_tracers_are_refused_as_ever(net):
    with pytest.raises(UnsupportedModelError, match=r"torch\.jit\.trace"):
        torch.jit.trace(lambda x: net(x), example())
    with pytest.raises(UnsupportedModelError, match="vmap"):
        torch.func.vmap(lambda x: net(x) if x.dim() == 2 else net(example()))(example()[None])


@torch.no_grad()
def test_a_stance_of_torch_and_a_reset_are_followed(net, long_ways):
    plain = net(example())
    assert not long_ways
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(net(example()), plain)
    assert len(long_ways) == 1
    torch.compiler.reset()
    assert torch.equal(net(example()), plain)
    assert len(long_ways) == 2


def test_wrong_arguments_raise_as_the_model_does(net):
    with torch.no_grad(), pytest.raises(TypeError):
        net(example(), unknown=1)


def results_while(write, net, x, calls=200):
    """What threads get of a net while another goes on writing."""
    is_over = []

    def write_on():
        count = 0
        while not is_over:
            write(count)
            count += 1
        return count

    @torch.no_grad()
    def call(_):
        return [net(x) for _ in range(calls // 4)]

    with ThreadPoolExecutor(5) as pool:
        writing = pool.submit(write_on)
        found = [made for results in pool.map(call, range(4)) for made in results]
        is_over.append(True)
    assert writing.result() > 1
    return found


@pytest.mark.parametrize("recipe", ["mxfp8", "fp8-current"])
def test_threads_that_call_while_another_replaces_a_weight(recipe):
    """Each result is that of one of the weights, and the last is that of the last."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
    net, x = steelyard.compile(model, recipe), example()
    weights = [nn.Parameter(torch.randn(32, 48)) for _ in range(2)]
    expected = []
    with torch.no_grad():
        for weight in weights:
            model[0].weight = weight
            expected.append([net(x) for _ in range(3)][-1])
    assert not torch.equal(*expected)

    def replace(count):
        model[0].weight = weights[count % 2]

    found = results_while(replace, net, x)
    assert all(torch.equal(made, expected[0]) or torch.equal(made, expected[1]) for made in found)
    for weight, made in zip(weights, expected, strict=True):
        model[0].weight = weight
        with torch.no_grad():
            assert torch.equal(net(x), made)
