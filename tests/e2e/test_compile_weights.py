import copy
import weakref

import pytest
import torch
from oracle import assert_follows, make_oracle, nearest_oracle
from small_models import make_mlp
from torch import nn

import steelyard

WEIGHT_SHAPES = [(131, 37), (70, 131), (10, 70)]


@pytest.fixture
def compiled():
    """A model, a net of it that has been called, and an input."""
    model, arguments = make_mlp()
    with torch.no_grad():
        net = steelyard.compile(model, "mxfp8").lower(**arguments)
    return model, net, arguments["input"]


def give_gradients(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def write_in_place(model, net):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1.5)


def write_through_the_net(model, net):
    with torch.no_grad():
        net[2].weight.neg_()


def step_sgd(model, net):
    give_gradients(model)
    torch.optim.SGD(model.parameters(), lr=0.5).step()


def step_foreach_adam(model, net):
    give_gradients(model)
    torch.optim.Adam(model.parameters(), lr=0.1, foreach=True).step()


def step_fused_adamw(model, net):
    give_gradients(model)
    torch.optim.AdamW(model.parameters(), lr=0.1, fused=True).step()


def load_state_dict(model, net):
    model.load_state_dict({key: -value for key, value in model.state_dict().items()})


def load_state_dict_into_the_net(model, net):
    net.load_state_dict({key: -value for key, value in model.state_dict().items()})


def assign_state_dict(model, net):
    model.load_state_dict({key: -value for key, value in model.state_dict().items()}, assign=True)


def convert_there_and_back(model, net):
    # The conversion rounds the weights, and the factor changes them beyond doubt.
    model.to(torch.bfloat16).to(torch.float32)
    for parameter in model.parameters():
        parameter.data = parameter.data * 2


def set_data(model, net):
    model[0].weight.data = -model[0].weight.data


def replace_parameter(model, net):
    model[0].weight = nn.Parameter(-model[0].weight.detach())


def replace_layer(model, net):
    torch.manual_seed(7)
    model[4] = nn.Linear(70, 10)


def copy_into_data(model, net):
    model[2].weight.data.copy_(-model[2].weight.data)
    net.requantize()


def write_numpy(model, net):
    model[2].weight.detach().numpy()[...] *= -1
    net.requantize()


def replace_data_twice(model, net):
    # The second may have the address of the first: an equal address does not mean equal data.
    weight = model[0].weight
    value = (-weight.data).numpy().copy()
    weight.data = torch.zeros(1)
    weight.data = torch.from_numpy(value).clone()


def delete_and_replace(model, net):
    value = (-model[0].weight.data).numpy().copy()
    del model[0].weight
    model[0].weight = nn.Parameter(torch.from_numpy(value).clone())


WAYS = [
    write_in_place,
    write_through_the_net,
    step_sgd,
    step_foreach_adam,
    step_fused_adamw,
    load_state_dict,
    load_state_dict_into_the_net,
    assign_state_dict,
    convert_there_and_back,
    set_data,
    replace_parameter,
    replace_data_twice,
    delete_and_replace,
    replace_layer,
    copy_into_data,
    write_numpy,
]


@pytest.mark.parametrize("write", WAYS, ids=lambda write: write.__name__)
def test_next_call_sees_a_write(compiled, write):
    model, net, x = compiled
    with torch.no_grad():
        before = net(x)
    write(model, net)
    with torch.no_grad():
        got, exact = net(x), model(x)
        expected = make_oracle(model, "mxfp8")(x)
    assert_follows(got, expected, exact)
    # A net that kept the old weights would differ from the oracle by as much as the write changed.
    assert (got - before).norm() > 4 * (got - expected).norm()


def test_unchanged_weights_are_quantized_once(quantized_shapes):
    model, arguments = make_mlp()
    net = steelyard.compile(model, "nvfp4")
    with torch.no_grad():
        for _ in range(4):
            net(**arguments)
    assert [quantized_shapes.count(shape) for shape in WEIGHT_SHAPES] == [1, 1, 1]
    assert quantized_shapes.count((5, 37)) == 4


@torch.no_grad()
def test_programs_of_a_net_share_quantized_weights(quantized_shapes):
    model, arguments = make_mlp()
    net = steelyard.compile(model, "nvfp4").lower(**arguments)
    held = net.memory()["quantized_weights"]
    net.lower(torch.randn(8, 37))
    assert net.ir("traced").count("func.func @forward") == 2
    assert [quantized_shapes.count(shape) for shape in WEIGHT_SHAPES] == [1, 1, 1]
    assert net.memory()["quantized_weights"] == held
    # Units of 8 rows by 16 columns: two codes per byte, a scale per row. Whole lines of 64 bytes. An amax per tensor.
    units = [-(-n // 8) * -(-k // 16) for n, k in WEIGHT_SHAPES]
    assert held == sum(-(-unit * (8 * 8 + 8) // 64) * 64 + 4 for unit in units)


def test_programs_that_make_a_weight_differently_do_not_share_it(quantized_shapes):
    """Inference reads a rowwise copy of each weight; training also reads columnwise ones, except of the first layer."""
    model, arguments = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        expected = net(**arguments)
    assert torch.equal(net(**arguments).detach(), expected)
    assert [quantized_shapes.count(shape) for shape in WEIGHT_SHAPES] == [1, 2, 2]


def test_quantized_weights_go_with_their_parameters(compiled):
    model, net, _ = compiled
    held = net.memory()["quantized_weights"]
    model[4] = nn.Linear(70, 30)
    model[2].weight = None
    assert net.memory()["quantized_weights"] < held / 2


def replace_weights(model, net):
    for layer in (model[0], model[2], model[4]):
        layer.weight = nn.Parameter(layer.weight * 2)


def write_and_call(model, net):
    write_in_place(model, net)
    net(torch.randn(5, 37))


def convert_and_call(model, net):
    net.to(torch.bfloat16)
    net(torch.randn(5, 37).bfloat16())


def forget_all(model, net):
    net.requantize()


@pytest.mark.parametrize("change", [replace_weights, write_and_call, convert_and_call, forget_all])
@torch.no_grad()
def test_weights_that_calls_settled_on_are_freed(change, compiled):
    """Calls remember what they found, but keep none of it alive."""
    model, net, x = compiled
    for _ in range(3):
        net(x)
    parts = [weakref.ref(part) for kept in net._steelyard.backend.weights._kept.values() for part in kept.parts]
    assert len(parts) >= 3
    assert all(part() is not None for part in parts)
    change(model, net)
    assert [part() for part in parts] == [None] * len(parts)


@torch.no_grad()
def test_a_converted_net_holds_the_weights_of_one_dtype(compiled):
    _, net, x = compiled
    net.to(torch.bfloat16)
    net(x.bfloat16())
    held = net.memory()["quantized_weights"]
    net.requantize()
    net(x.bfloat16())
    assert held == net.memory()["quantized_weights"]


def test_a_write_quantizes_only_what_it_wrote(compiled, quantized_shapes):
    model, net, x = compiled
    with torch.no_grad():
        model[2].weight.neg_()
        model[0].bias.neg_()
        net(x)
    assert [quantized_shapes.count(shape) for shape in WEIGHT_SHAPES] == [0, 1, 0]


def test_requantize_quantizes_everything_again(compiled, quantized_shapes):
    _, net, x = compiled
    net.requantize()
    with torch.no_grad():
        net(x)
        net(x)
    assert [quantized_shapes.count(shape) for shape in WEIGHT_SHAPES] == [1, 1, 1]


def test_conversion_to_another_dtype_is_seen(compiled, gemm_calls):
    model, net, x = compiled
    exact_model = copy.deepcopy(model)
    model.to(torch.bfloat16)
    with torch.no_grad():
        got = net(x.bfloat16())
        assert_follows(got, nearest_oracle(got, model, "mxfp8", x.bfloat16()), exact_model(x))
    assert [result.dtype for *_, result in gemm_calls] == [torch.bfloat16] * 3


def test_weights_made_in_inference_mode_are_never_stale():
    with torch.inference_mode():
        model, arguments = make_mlp()
        net = steelyard.compile(model, "mxfp8")
        for _ in range(2):
            x = arguments["input"]
            assert_follows(net(x), make_oracle(model, "mxfp8")(x), model(x))
            model[2].weight.neg_()


def test_delayed_weights_are_kept_too(quantized_shapes):
    model, arguments = make_mlp()
    net = steelyard.compile(model, "fp8-delayed")
    with torch.no_grad():
        first, second = net(**arguments), net(**arguments)
    assert torch.equal(first, second)
    assert [quantized_shapes.count(shape) for shape in WEIGHT_SHAPES] == [1, 1, 1]


@pytest.mark.parametrize("write", ["in place", "data", "data of one row", "optimizer", "assigned", "another"])
def test_one_look_at_all_parameters_sees_each_write(write):
    """The first call quantizes weights, the second finds them, the third looks at all of them at once."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).eval()
    net, x = steelyard.compile(model, "mxfp8"), torch.randn(4, 64)
    with torch.no_grad():
        for _ in range(3):
            before = net(x)
        weight = model[1].weight
        match write:
            case "in place":
                weight.mul_(2)
            case "data":
                weight.data.mul_(2)
            case "data of one row":
                weight.data[0] += 1  # where words are sampled
            case "optimizer":
                weight.grad = torch.ones_like(weight)
                torch.optim.AdamW([weight], lr=0.1, fused=True).step()
            case "assigned":
                weight.data = weight.data * 2
            case "another":
                model[1].weight = nn.Parameter(weight * 2)
        after = net(x)
        expected = steelyard.compile(copy.deepcopy(model), "mxfp8")(x)
    assert torch.equal(after, expected)
    assert not torch.equal(after, before)
