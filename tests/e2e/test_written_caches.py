"""A cache of fixed size is written where it lies: a step copies its new rows, and nothing else."""

import pytest
import torch
from small_models import VOCABULARY, make_llama
from torch import nn
from transformers import StaticCache

import steelyard

ROWS, WIDTH = 12, 32


class Appends(nn.Module):
    """A projection that is kept in a cache, and what is read from it."""

    def __init__(self, read=lambda cache: cache.sum(0)):
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.read = read

    def forward(self, x, cache, position):
        cache.index_copy_(0, position, self.project(x))
        return self.read(cache)


class ReadsBefore(Appends):
    def forward(self, x, cache, position):
        before = cache * 2
        return before + super().forward(x, cache, position)


class Both(Appends):
    """Two caches, as keys and values are."""

    def forward(self, x, key, value, position):
        key.index_copy_(0, position, self.project(x))
        value.index_copy_(0, position, 2 * x)
        return (key * value).sum(0)


def unquantized(model: nn.Module):
    return steelyard.compile(model.eval(), "mxfp8", overrides={"*": None})


def step(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(seed)), torch.tensor([seed + 3])


def make_cache(seed: int = 9) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))


MODELS = {
    "reads": (Appends, True),
    "returns a copy": (lambda: Appends(torch.clone), None),
    "reads before": (ReadsBefore, False),
}


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:only 0% of the FLOPs")
@pytest.mark.parametrize("case", MODELS)
def test_a_cache_holds_what_the_model_writes(case):
    make, is_in_place = MODELS[case]
    torch.manual_seed(0)
    model = make()
    net, own, wanted = unquantized(model), make_cache(), make_cache()
    kept = []
    for seed in range(3):
        x, position = step(seed)
        kept.append((net(x, own, position), model(x, wanted, position)))
        torch.testing.assert_close(own, wanted)
    # What earlier steps returned is not what the last one wrote.
    for result, expected in kept:
        torch.testing.assert_close(result, expected)
    lowered = net.ir("lowered")
    assert "@write_rows" in lowered
    assert is_in_place in (None, "in_place = true" in lowered)


STRIDED = {
    "left half": lambda: torch.randn(ROWS, 2 * WIDTH)[:, :WIDTH],
    "every second column": lambda: torch.randn(ROWS, 2 * WIDTH)[:, ::2],
    "transposed": lambda: torch.randn(WIDTH, ROWS).t(),
}
READS = {
    "elements": lambda cache: torch.relu(cache) - 0.5,
    "rows of elements": lambda cache: cache * cache[0],
    "rows": lambda cache: cache.softmax(-1),
    "parts": lambda cache: torch.cat([cache, cache + 1], 0),
}


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:only 0% of the FLOPs")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("layout", STRIDED)
def test_a_cache_may_be_strided(layout, read):
    torch.manual_seed(0)
    model = Appends(READS[read])
    own = STRIDED[layout]()
    wanted = own.clone()
    x, position = step(1)
    torch.testing.assert_close(unquantized(model)(x, own, position), model(x, wanted, position))
    torch.testing.assert_close(own, wanted)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:only 0% of the FLOPs")
def test_keys_and_values_in_one_tensor():
    torch.manual_seed(0)
    model = Both()
    net = unquantized(model)

    own, wanted = (make_cache().split(ROWS // 2) for _ in range(2))
    x, position = step(1)
    torch.testing.assert_close(net(x, *own, position), model(x, *wanted, position))
    for one, expected in zip(own, wanted, strict=True):
        torch.testing.assert_close(one, expected)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:only 0% of the FLOPs")
def test_a_frozen_net_writes_its_arguments():
    torch.manual_seed(0)
    model = Appends()
    frozen = unquantized(model).freeze(*_arguments(make_cache(), 0))
    own, wanted = make_cache(), make_cache()
    for seed in range(3):
        found, expected = frozen(*_arguments(own, seed)), model(*_arguments(wanted, seed))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(own, wanted)


def _arguments(cache: torch.Tensor, seed: int) -> tuple[torch.Tensor, ...]:
    x, position = step(seed)
    return x, cache, position


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.filterwarnings("ignore:only 0% of the FLOPs")
def test_steps_over_a_static_cache():
    """What a net of a Llama writes is what the model writes, and neither the cache nor its heads are copied."""
    model, _ = make_llama()
    net = steelyard.compile(model.eval(), "mxfp8", overrides={"*": None})
    tokens = torch.randint(0, VOCABULARY, (2, 11), generator=torch.Generator().manual_seed(0))
    caches = [StaticCache(config=model.config, max_cache_len=16) for _ in range(2)]
    for part in (tokens[:, :9], tokens[:, 9:10], tokens[:, 10:]):
        found, expected = (
            run(part, past_key_values=cache).logits for run, cache in zip((net, model), caches, strict=True)
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for own, wanted in zip(caches[0].layers, caches[1].layers, strict=True):
        torch.testing.assert_close(own.keys, wanted.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(own.values, wanted.values, rtol=1e-4, atol=1e-4)
    lowered = net.ir("lowered").split("module @")[-1]
    assert lowered.count("call @write_rows_") == 2 * model.config.num_hidden_layers
    declared = [line for line in lowered.splitlines() if "private @write_rows_" in line]
    assert declared
    assert all("in_place" in line for line in declared)
    assert "torch.aten.index_copy" not in lowered
    assert "torch.aten.clone" not in lowered
