"""A net in several programs draws the random bits of the same net in one: once per backward, not once per program."""

import copy
import threading

import pytest
import torch
from torch import nn

import steelyard
from steelyard.ir.attributes import RNG
from steelyard.runtime.state import State


class Layers(nn.Module):
    """An MLP, with graph breaks between its layers or without; its activation has the same bits anywhere."""

    def __init__(self, *, breaks: bool):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.breaks = breaks

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
            if self.breaks:
                torch._dynamo.graph_break()
        return x


def make_net(*, breaks: bool):
    model = Layers(breaks=breaks)
    torch.manual_seed(5)
    return steelyard.compile(model, "nvfp4")


def inputs(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(64, 64, generator=generator) for _ in range(count)]


def state_of(net) -> list[int]:
    return net._steelyard.backend.state.tensors[RNG].tolist()


def plain_steps(net, xs) -> None:
    for x in xs:
        net(x).square().mean().backward()


def accumulated(net, xs) -> None:
    losses = [net(x).square().mean() for x in xs]
    for loss in losses:
        loss.backward()


def with_optimizer(net, xs) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for x in xs:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def retained(net, xs) -> None:
    """Two backwards of one forward."""
    for x in xs:
        loss = net(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()


def with_validation(net, xs) -> None:
    for x in xs:
        with torch.no_grad():
            net(x)
        net(x).square().mean().backward()
        with torch.no_grad():
            net(x)


@pytest.mark.every(4)
@pytest.mark.parametrize("run", [plain_steps, accumulated, with_optimizer, retained, with_validation])
def test_a_net_in_pieces_has_the_bits_of_the_whole(run):
    pieces, whole = make_net(breaks=True), make_net(breaks=False)
    xs = inputs(2)
    for net in (pieces, whole):
        run(net, xs)
    counts = [len(net._steelyard.backend.compilations) for net in (pieces, whole)]
    assert counts == [6, 2] if run is with_validation else counts == [3, 1]
    assert state_of(pieces) == state_of(whole) == [5, 4 if run is retained else 2]
    for (name, a), b in zip(pieces.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert torch.equal(a.grad, b.grad), name
    # The last forward, and one more backward from where it was left.
    for net in (pieces, whole):
        net.zero_grad()
    left, right = pieces(xs[0]), whole(xs[0])
    assert torch.equal(left, right)
    left.sum().backward()
    right.sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(pieces.parameters(), whole.parameters(), strict=True))


def test_bits_differ_from_backward_to_backward():
    net = make_net(breaks=True)
    (x,) = inputs(1)
    gradients = []
    for _ in range(2):
        net.zero_grad()
        net(x).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
    assert not any(torch.equal(a, b) for a, b in zip(*gradients, strict=True) if a.dim() == 2)


def test_state_that_is_loaded_is_where_the_next_backward_begins():
    net, whole = make_net(breaks=True), make_net(breaks=False)
    (x,) = inputs(1)
    for each in (net, whole):
        each(x).sum().backward()
        saved = each.state_dict()
        each(x).sum().backward()
        each.load_state_dict(saved)
        each.zero_grad()
        each(x).sum().backward()
    assert state_of(net) == state_of(whole) == [5, 2]
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(net.parameters(), whole.parameters(), strict=True))


def read_and_move(state: State, reader: object, phase: str = "backward") -> list[int]:
    state.get(RNG, (2,))
    read = state.draw(reader, phase)
    state.put({RNG: read + torch.tensor([0, 1])})
    return read.tolist()


@pytest.fixture
def state() -> State:
    torch.manual_seed(3)
    return State()


def test_readers_of_one_phase_read_the_same(state):
    assert [read_and_move(state, reader) for reader in "abc"] == [[3, 0]] * 3
    assert [read_and_move(state, reader) for reader in "ba"] == [[3, 1]] * 2
    assert state.tensors[RNG].tolist() == [3, 2]


def test_another_phase_begins_anew(state):
    assert read_and_move(state, "a", "forward") == [3, 0]
    assert read_and_move(state, "b", "backward") == [3, 1]
    assert read_and_move(state, "c", "forward") == [3, 2]


def test_state_from_outside_begins_anew(state):
    assert read_and_move(state, "a") == [3, 0]
    state.load({RNG: torch.tensor([9, 9])})
    assert read_and_move(state, "b") == [9, 9]
    assert state.tensors[RNG].tolist() == [9, 10]


def test_a_reader_that_failed_has_left_what_it_read(state):
    state.get(RNG, (2,))
    assert state.draw("a", "backward").tolist() == [3, 0]
    assert read_and_move(state, "b") == [3, 0]
    assert read_and_move(state, "a") == [3, 1]


def test_threads_draw_by_themselves(state):
    assert read_and_move(state, "a") == [3, 0]
    found = []
    thread = threading.Thread(target=lambda: found.append(read_and_move(state, "b")))
    thread.start()
    thread.join()
    assert found == [[3, 1]]


def test_a_copy_has_drawn_nothing(state):
    read_and_move(state, "a")
    twin = copy.deepcopy(state)
    assert read_and_move(twin, "b") == [3, 1]
    assert read_and_move(state, "b") == [3, 0]


@pytest.fixture
def elsewhere(monkeypatch):
    """Let all memory count as that of another device, where state is written in place."""
    monkeypatch.setattr("steelyard.runtime.draws._is_written_in_place", lambda tensor: True)


def test_state_that_is_written_in_place_is_read_as_it_was(state, elsewhere):
    def move(reader: str) -> list[int]:
        state.get(RNG, (2,))
        read = state.draw(reader, "backward")
        state.write({RNG: read + torch.tensor([0, 1])})
        return read.tolist()

    assert [move(reader) for reader in "abab"] == [[3, 0], [3, 0], [3, 1], [3, 1]]
    # Written from outside, where it lies.
    state.tensors[RNG].copy_(torch.tensor([7, 7]))
    assert [move(reader) for reader in "cdc"] == [[7, 7], [7, 7], [7, 8]]


def lengths_one_after_the_other(net, xs) -> None:
    for count, x in zip((64, 48), xs, strict=True):
        net(x[:count]).square().mean().backward()


def two_lengths_in_one_backward(net, xs) -> None:
    sum(net(x[:count]).square().mean() for count, x in zip((64, 48), xs, strict=True)).backward()


@pytest.mark.every(2)
@pytest.mark.parametrize("run", [lengths_one_after_the_other, two_lengths_in_one_backward])
def test_calls_that_run_different_programs_draw_by_themselves(run):
    pieces, whole = make_net(breaks=True), make_net(breaks=False)
    for net in (pieces, whole):
        run(net, inputs(2))
    assert state_of(pieces) == state_of(whole) == [5, 2]
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(pieces.parameters(), whole.parameters(), strict=True))
