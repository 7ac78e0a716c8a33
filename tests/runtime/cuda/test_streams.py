"""Weights that one stream makes and others, or CUDA graphs, read; torch's streams are mocks that record calls."""

import pytest
import torch

from steelyard.runtime.cuda.streams import Moment
from steelyard.runtime.weights import WeightArgument, Weights


class Stream:
    def __init__(self):
        self.waited = []

    def record_event(self):
        return self, "event"

    def wait_event(self, event):
        self.waited.append(event)


class Tensor:
    def __init__(self):
        self.streams = []

    def record_stream(self, stream):
        self.streams.append(stream)


def test_other_streams_wait_for_what_one_made(monkeypatch):
    first, second = Stream(), Stream()
    current = [first]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[0])
    moment, tensor = Moment(torch.device("cuda:0")), Tensor()
    moment.wait([tensor])
    assert (first.waited, tensor.streams) == ([], [])
    current[0] = second
    moment.wait([tensor])
    assert second.waited == [(first, "event")]
    assert tensor.streams == [second]


@pytest.mark.parametrize("is_trained", [True, False])
def test_a_graph_quantizes_what_is_trained_itself(is_trained):
    made = []

    def make(parameter):
        made.append(parameter.clone())
        return (made[-1],)

    weights, parameter = Weights(), torch.nn.Parameter(torch.ones(4))
    weight = WeightArgument("@weight", make, [0], is_trained=is_trained)
    (before,) = weights.get(weight, [parameter])
    (captured,) = weights._get_captured(weight, [parameter])
    assert len(made) == (2 if is_trained else 1)
    assert (captured is before) == (not is_trained)
    weights.forget()
    assert [part is captured for (part,) in weights._captured] == ([] if is_trained else [True])
