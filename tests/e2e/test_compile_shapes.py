"""How often a net compiles, and that beyond torch's limit it raises instead of running uncompiled."""

import itertools
import threading

import pytest
import torch
from oracle import assert_follows, make_oracle
from small_models import make_bert, make_mlp
from torch import nn

import steelyard
from steelyard.errors import UnsupportedModelError


def graphs(net) -> list[str]:
    return net.ir("traced").split("func.func @forward")[1:]


class Flagged(nn.Module):
    """Compiles again for every flag, because Python values are part of the program."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(33, 20)

    def forward(self, x, flag):
        return self.linear(x) if flag == "plain" else self.linear(x) + len(flag)


def call_until_refused(net, calls) -> int:
    """How many of the calls run before one is refused."""
    ran = 0
    try:
        for arguments in calls:
            with torch.no_grad():
                net(*arguments)
            ran += 1
    except UnsupportedModelError as refused:
        message = str(refused)
    else:
        return ran
    assert "at most 8 times (torch._dynamo.config.recompile_limit)" in message
    return ran


def test_twenty_flags_are_refused_at_the_limit_and_never_run_uncompiled(gemm_calls):
    net = steelyard.compile(Flagged(), "mxfp8")
    x = torch.randn(4, 33)
    calls = [(x, "flag" * i) for i in range(20)]
    ran = call_until_refused(net, calls)
    assert ran == torch._dynamo.config.recompile_limit
    assert len(gemm_calls) == ran
    # What is compiled still runs.
    with torch.no_grad():
        net(*calls[0])
    assert len(gemm_calls) == ran + 1


def test_twenty_ranks_compile_where_the_limit_allows_it(gemm_calls):
    model = Flagged()
    net = steelyard.compile(model, "mxfp8")
    calls = [(torch.randn(*(1,) * rank, 33), "plain") for rank in range(20)]
    with torch._dynamo.config.patch(recompile_limit=32):
        assert call_until_refused(net, calls) == 20
    assert len(gemm_calls) == 20
    assert len(graphs(net)) == 20


def test_nets_of_one_class_do_not_use_up_each_others_limits(gemm_calls):
    model, arguments = make_mlp()
    nets = [steelyard.compile(model, "mxfp8") for _ in range(4)]
    limits = torch._dynamo.config.patch(accumulated_recompile_limit=3, recompile_limit=1)
    with limits, torch.no_grad():
        for net in nets:
            net(**arguments)
    assert len(gemm_calls) == 12


def test_parts_of_a_forward_after_a_graph_break_are_refused_too(gemm_calls):
    class Broken(Flagged):
        def forward(self, x, flag):
            x = x + 1
            torch._dynamo.graph_break()
            return super().forward(x, flag)

    net = steelyard.compile(Broken(), "mxfp8")
    ran = call_until_refused(net, [(torch.randn(4, 33), "flag" * i) for i in range(20)])
    assert ran == torch._dynamo.config.recompile_limit == len(gemm_calls)


def test_threads_leave_each_others_settings_alone():
    net = steelyard.compile(Flagged(), "mxfp8")
    seen = []

    def call():
        with torch.no_grad():
            net(torch.randn(4, 33), "plain")
        seen.append(torch._dynamo.config.fail_on_recompile_limit_hit)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [False] * 3
    assert torch._dynamo.config.fail_on_recompile_limit_hit is False


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([(batch, 6) for batch in range(2, 10)], marks=pytest.mark.slow),
        pytest.param([(3, length) for length in (6, 9, 5, 17, 2)], marks=pytest.mark.slow),
        [(2, 6), (3, 7), (4, 9), (9, 4), (5, 3)],
    ],
    ids=["batch", "length", "both"],
)
def test_a_new_size_leads_to_one_more_compilation(sizes):
    model, _ = make_bert()
    net, oracle = steelyard.compile(model, "mxfp8", blocks=False), make_oracle(model, "mxfp8")
    for batch, length in sizes:
        tokens = torch.randint(0, 101, (batch, length))
        with torch.no_grad():
            assert_follows(net(tokens)[0], oracle(tokens)[0], model(tokens)[0])
    static, dynamic = graphs(net)
    assert "?" not in static
    varies = [len(set(column)) > 1 for column in zip(*sizes, strict=True)]
    expected = ["?" if vary else str(size) for vary, size in zip(varies, sizes[0], strict=True)]
    assert f"!torch.vtensor<[{','.join(expected)}],si64>" in dynamic


@pytest.mark.slow
def test_sizes_that_change_one_after_the_other_compile_once_each():
    model, _ = make_bert()
    net = steelyard.compile(model, "mxfp8", blocks=False)
    counts = []
    for batch, length in ((2, 6), (3, 6), (4, 6), (4, 9), (5, 12), (8, 3)):
        with torch.no_grad():
            net(torch.randint(0, 101, (batch, length)))
        counts.append(len(graphs(net)))
    assert counts == [1, 2, 2, 3, 3, 3]


def test_sizes_one_and_zero_have_programs_of_their_own():
    model, _ = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    for size in itertools.chain((5, 7), (1, 0), (1, 0, 12)):
        with torch.no_grad():
            assert net(torch.randn(size, 37)).shape == (size, 10)
    assert len(graphs(net)) <= 4
