"""A frozen net that is cut into blocks calls them in one program, if its calls are no more than that."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import steelyard
from steelyard.driver import net as driver_net
from steelyard.errors import UnsupportedModelError

pytestmark = pytest.mark.usefixtures("with_tapes")


class Around(nn.Module):
    """A model whose code around its blocks computes something, too."""

    def __init__(self, blocks: int = 5):
        super().__init__()
        self.table = nn.Embedding(40, 48)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48)) for _ in range(blocks)
        )
        self.register_buffer("shift", torch.full((48,), 0.25))

    def forward(self, tokens, scale=2.0):
        x = self.table(tokens) * scale + self.shift
        for block in self.blocks:
            x = x + block(x)
        return x, tokens.shape[0]


@pytest.fixture
def whole(monkeypatch):
    """Counts the nets that are captured as a whole."""
    counts = []
    run = driver_net.freeze

    def counted(*arguments):
        counts.append(1)
        return run(*arguments)

    monkeypatch.setattr(driver_net, "freeze", counted)
    return counts


@pytest.mark.every(2)
@pytest.mark.parametrize(("recipe", "weights"), [("nvfp4", "quantized"), ("mxfp8", "cached"), ("nvfp4", "cached")])
def test_each_call_of_a_block_is_a_step(recipe, weights, whole):
    torch.manual_seed(0)
    net = steelyard.compile(Around().eval(), recipe, weights=weights)
    tokens, others = torch.randint(0, 40, (2, 3, 7))
    frozen = net.freeze(tokens, scale=0.5)
    assert not whole
    with torch.no_grad():
        for given in (others, tokens):
            found, expected = frozen(given, scale=0.5), net(given, scale=0.5)
            assert torch.equal(found[0], expected[0])
            assert found[1] == 3
    text = frozen.tape
    assert [f"block_{number}(" in text for number in range(6)] == [True] * 5 + [False]
    outer, blocks = text.split("\n\n")
    assert outer.count("lookup_0(") == 1
    assert blocks.startswith("block 0, block 1, block 2, block 3, block 4: ")
    assert blocks.count("gemm_0(") == 2


def test_threads_share_calls_of_blocks(whole):
    torch.manual_seed(0)
    net = steelyard.compile(Around().eval(), "nvfp4")
    inputs = torch.randint(0, 40, (8, 3, 7))
    frozen = net.freeze(inputs[0])
    expected = [frozen(x)[0] for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        runs = pool.map(lambda number: torch.equal(frozen(inputs[number % 8])[0], expected[number % 8]), range(200))
        assert all(runs)
    assert not whole


class Asking(Around):
    """A model that looks at a value before its blocks."""

    def forward(self, tokens, scale=2.0):
        return super().forward(tokens, scale if tokens.max().item() > 3 else 1.0)


class Counting(Around):
    """A model that writes a buffer around its blocks."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens, scale=2.0):
        self.calls.add_(1)
        return super().forward(tokens, scale)


@pytest.mark.every(2)
@pytest.mark.parametrize("model", [Counting, Asking], ids=["counting", "asking"])
def test_a_call_that_is_more_than_blocks_is_captured_as_a_whole_or_refused(model, whole):
    net = steelyard.compile(model().eval(), "mxfp8")
    tokens = torch.randint(4, 40, (3, 7))
    if model is Asking:
        with pytest.raises(UnsupportedModelError, match="must be one graph"):
            net.freeze(tokens)
    else:
        frozen, before = net.freeze(tokens), net.calls.item()
        with torch.no_grad():
            # What stands around blocks is fused with them where the whole is captured.
            torch.testing.assert_close(frozen(tokens)[0], net(tokens)[0], rtol=1e-3, atol=1e-3)
        assert net.calls.item() == before + 2
    assert whole


class Pair(nn.Module):
    """A block that returns something which its model does not read."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(48, 48)

    def forward(self, x):
        y = self.project(x)
        return y, torch.cat([x, y], -1)


class Reading(Around):
    """A model that reads what its last block returns, and of the others a part."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Pair() for _ in range(5))

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x, both = block(x)
        return x, both


def test_blocks_do_not_compute_what_nobody_reads(whole):
    torch.manual_seed(0)
    net = steelyard.compile(Reading().eval(), "mxfp8")
    tokens = torch.randint(0, 40, (3, 7))
    frozen = net.freeze(tokens)
    with torch.no_grad():
        found, expected = frozen(tokens), net(tokens)
    assert all(map(torch.equal, found, expected))
    outer, partly, all_read = frozen.tape.split("\n\n")
    assert "block_3(" in outer
    assert partly.startswith("block 0, block 1, block 2, block 3: ")
    assert "3x7x96" not in partly
    assert "3x7x96" in all_read
    assert not whole


class Masking(Around):
    """A model whose blocks get as many rows as a mask has."""

    def forward(self, tokens, mask):
        return super().forward(tokens[mask])[0]


def test_sizes_that_depend_on_values_are_not_taken_for_known():
    net = steelyard.compile(Masking().eval(), "mxfp8")
    tokens, mask = torch.randint(0, 40, (64,)), torch.arange(64) < 2
    # torch breaks the whole graph there, too.
    with pytest.raises(UnsupportedModelError, match="must be one graph"):
        net.freeze(tokens, mask)


class Picking(Around):
    """A model whose blocks get the rows that numbers say."""

    def forward(self, tokens, rows):
        return super().forward(tokens[rows])[0]


def test_rows_by_number_have_known_sizes(whole):
    torch.manual_seed(0)
    net = steelyard.compile(Picking().eval(), "mxfp8")
    tokens, rows, others = torch.randint(0, 40, (64,)), torch.tensor([3, 1, 4]), torch.tensor([6, 2, 2])
    frozen = net.freeze(tokens, rows)
    with torch.no_grad():
        assert torch.equal(frozen(tokens, others), net(tokens, others))
    assert not whole


class Reshaping(Around):
    """A model that reads sizes from a tensor, without an op."""

    def forward(self, tokens, counts):
        return super().forward(tokens, float(counts.tolist()[0]))[0]


class Measuring(Around):
    """A model that reads values through numpy."""

    def forward(self, tokens, counts):
        return super().forward(tokens, float(counts.numpy()[0]))[0]


@pytest.mark.parametrize("model", [Reshaping, Measuring])
def test_values_that_python_reads_are_not_taken_for_constants(model):
    net = steelyard.compile(model().eval(), "mxfp8")
    with pytest.raises(UnsupportedModelError, match="must be one graph"):
        net.freeze(torch.randint(0, 40, (3, 7)), torch.tensor([2, 6]))


class Noting(Around):
    """A model that notes the result of its blocks in a buffer of which it holds a view."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3, 7, 48))

    def forward(self, tokens):
        seen = self.last.view(-1)
        x, _ = super().forward(tokens)
        self.last.copy_(x)
        return x, seen + 1


class Overwriting(Around):
    """A model that writes one argument twice, first by another argument."""

    def forward(self, tokens, first, second):
        x, _ = super().forward(tokens)
        first.copy_(second)
        first.copy_(x)
        return x


class Writing(nn.Module):
    """A block that writes its second argument."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(48, 48)

    def forward(self, x, kept):
        kept.copy_(x)
        return self.project(x)


class Remembering(Around):
    """A model that writes what a block writes over later into an argument."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Writing() for _ in range(4))

    def forward(self, tokens, kept):
        x = self.table(tokens)
        caches = [torch.zeros_like(x) for _ in self.blocks]
        kept.copy_(caches[0])
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)
        return x


@pytest.mark.parametrize(("model", "arguments"), [(Noting, 0), (Overwriting, 2), (Remembering, 1)])
def test_what_is_written_around_blocks_is_what_the_net_writes(model, arguments):
    torch.manual_seed(0)
    net = steelyard.compile(model().eval(), "mxfp8")
    tokens, others = torch.randint(0, 40, (2, 3, 7))
    given = torch.randn(arguments, 3, 7, 48)
    frozen = net.freeze(tokens, *given.clone())
    found, expected = given.clone(), given.clone()
    with torch.no_grad():
        results = net(others, *expected)
        buffers = [buffer.clone() for buffer in net.buffers()]
        if model is Noting:
            net.last.zero_()
        made = frozen(others, *found)
    # Some are captured as a whole, where what stands around blocks is fused with them.
    pairs = [(found, expected), (made, results), ([*net.buffers()], buffers)]
    torch.testing.assert_close(*map(list, zip(*pairs, strict=True)), rtol=1e-3, atol=1e-3)


class Turning(Around):
    """A model that goes through its blocks the other way in every second call."""

    calls = 0

    def forward(self, tokens):
        self.calls += 1
        x = self.table(tokens)
        for block in list(self.blocks)[:: 1 if self.calls % 2 else -1]:
            x = x + block(x)
        return x


def test_calls_with_other_parameters_are_not_alike():
    with pytest.raises(UnsupportedModelError, match="must be one graph"):
        steelyard.compile(Turning().eval(), "mxfp8").freeze(torch.randint(0, 40, (3, 7)))


class Striding(Around):
    """A model with an op around its blocks that torch writes again in whatever module holds it."""

    def forward(self, tokens):
        x = self.table(tokens)
        return super().forward(tokens)[0] + x.as_strided(x.shape, x.stride())


def test_any_op_may_stand_around_blocks():
    torch.manual_seed(0)
    net = steelyard.compile(Striding().eval(), "mxfp8")
    tokens = torch.randint(0, 40, (3, 7))
    frozen = net.freeze(tokens)
    with torch.no_grad():
        torch.testing.assert_close(frozen(tokens), net(tokens), rtol=1e-3, atol=1e-3)


def test_a_net_that_had_calls_of_many_sizes_is_frozen_for_one(whole):
    torch.manual_seed(0)
    net = steelyard.compile(Around().eval(), "mxfp8")
    with torch.no_grad():
        for length in (3, 5, 9, 17):
            net(torch.randint(0, 40, (2, length)))
    assert "?" in net.ir("traced")
    tokens, others = torch.randint(0, 40, (2, 2, 6))
    frozen = net.freeze(tokens)
    with torch.no_grad():
        assert torch.equal(frozen(others)[0], net(others)[0])
    assert "block_0(" in frozen.tape
    assert "heap" not in frozen.tape, "all sizes are known"
    assert not whole


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.share_memory(),
        lambda net: [setattr(p, "data", p.data.clone()) for p in net.parameters()],
        lambda net: net.bfloat16().float(),
    ],
    ids=["share", "replace", "there-and-back"],
)
def test_memory_of_parameters_that_is_freed_is_not_read(change, whole):
    torch.manual_seed(0)
    net = steelyard.compile(Around().eval(), "mxfp8")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter.bfloat16().float())
    tokens = torch.randint(0, 40, (3, 7))
    frozen = net.freeze(tokens)
    expected = frozen(tokens)[0]
    change(net)
    junk = [torch.full((48,), 7e8) for _ in range(4000)]
    assert torch.equal(frozen(tokens)[0], expected)
    assert len(junk) == 4000
    assert not whole


def test_threads_may_freeze_a_net_at_once(whole):
    torch.manual_seed(0)
    net = steelyard.compile(Around().eval(), "mxfp8")
    tokens = torch.randint(0, 40, (3, 7))
    expected = net.freeze(tokens)(tokens)[0]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda _: torch.equal(net.freeze(tokens)(tokens)[0], expected), range(16)))
    finally:
        sys.setswitchinterval(interval)
    assert not whole


class Halving(Around):
    """A model that takes parts of a tensor before its blocks."""

    def forward(self, tokens):
        x = self.table(tokens)
        first, second = x.chunk(2, -1)
        third, fourth, rest = x.split([8, 16, 24], -1)
        for block in self.blocks:
            x = x + block(torch.cat([second, first], -1) + torch.cat([rest, fourth, third], -1))
        return x


def test_parts_of_tensors_may_stand_around_blocks(whole):
    torch.manual_seed(0)
    net = steelyard.compile(Halving().eval(), "mxfp8")
    tokens, others = torch.randint(0, 40, (2, 3, 7))
    frozen = net.freeze(tokens)
    with torch.no_grad():
        assert torch.equal(frozen(others), net(others))
    assert not whole


@torch.compile(backend="aot_eager")
def add_one(x):
    x.add_(1.0)


class Adding(Around):
    """A model in which code that torch compiled writes a tensor before the blocks."""

    def forward(self, tokens):
        x = self.table(tokens)
        add_one(x)
        for block in self.blocks:
            x = x + block(x)
        return x


def test_what_compiled_code_writes_around_blocks_is_not_lost(whole):
    torch.manual_seed(0)
    net = steelyard.compile(Adding().eval(), "mxfp8")
    tokens, others = torch.randint(0, 40, (2, 3, 7))
    frozen = net.freeze(tokens)
    with torch.no_grad():
        torch.testing.assert_close(frozen(others), net(others), rtol=1e-3, atol=1e-3)
    assert whole


class Held:
    """Something that holds a tensor, and that nobody else knows."""

    def __init__(self, x):
        self.x = x


class Holding(Around):
    """A model that returns such a thing."""

    def forward(self, tokens):
        x, _ = super().forward(tokens)
        return x, Held(x)


def test_what_holds_results_of_one_call_is_not_returned_by_others():
    net = steelyard.compile(Holding().eval(), "mxfp8")
    with pytest.raises(UnsupportedModelError, match=r"returns .*Held.*, which holds what the first call made"):
        net.freeze(torch.randint(0, 40, (3, 7)))


def test_expanded_arguments_and_keywords_in_any_order(whole):
    torch.manual_seed(0)
    net = steelyard.compile(Around().eval(), "mxfp8")
    tokens, others = torch.randint(0, 40, (2, 3, 1)).expand(2, 3, 7)
    frozen = net.freeze(tokens=tokens, scale=0.5)
    with torch.no_grad():
        assert torch.equal(frozen(scale=0.5, tokens=others)[0], net(others, 0.5)[0])
    assert not whole
