"""Memory of large results is used again once nobody holds them, and never before."""

import torch

from steelyard.runtime.results import LEAST, ResultMemory, result_maker

make = result_maker(torch.float32, None)
ROWS = LEAST // 4 // 256


def result(rows=ROWS):
    return make((rows, 256), (256, 1))


def test_memory_of_a_call_is_used_by_the_next():
    memory = ResultMemory()
    with memory.call():
        first = [result(), result()]
        addresses = {tensor.data_ptr() for tensor in first}
        del first
    assert memory.nbytes() == 2 * LEAST
    with memory.call():
        second = [result(), result()]
        assert {tensor.data_ptr() for tensor in second} == addresses
        del second
        third = result()
        assert third.data_ptr() in addresses, "what is gone within a call is used again, too"


def test_what_somebody_holds_is_not_used_again():
    memory = ResultMemory()
    with memory.call():
        held = result().fill_(7)
        view = result().fill_(8)[3:]
        array = result().fill_(9).numpy()
    assert memory.nbytes() == 0, "it belongs to who holds it"
    with memory.call():
        for _ in range(4):
            result().fill_(0)
    assert (held == 7).all()
    assert (view == 8).all()
    assert (array == 9).all()


def test_what_a_call_does_not_use_is_given_back():
    memory = ResultMemory()
    with memory.call():
        made = [result() for _ in range(3)]
        del made
    with memory.call():
        result()
    assert memory.nbytes() == LEAST
    with memory.call():
        pass
    assert memory.nbytes() == 0


def test_a_tensor_that_grows_finds_its_memory_until_it_is_a_sixteenth_larger():
    memory = ResultMemory()
    addresses = []
    for rows in (ROWS + 1, ROWS + ROWS // 16, ROWS + ROWS // 16 + 1):
        with memory.call():
            addresses.append(result(rows).data_ptr())
    assert addresses[0] == addresses[1]
    assert memory.nbytes() == LEAST + LEAST // 8


def test_storages_that_were_changed_and_small_results_are_left_alone():
    memory = ResultMemory()
    with memory.call():
        result().untyped_storage().resize_(16)
        result().share_memory_()
        make((8, 8), (8, 1))
    assert memory.nbytes() == 0


def test_shapes_strides_and_other_contexts():
    made = result_maker(torch.bfloat16, [4, LEAST])((4, LEAST), (1, 4))
    assert (made.shape, made.stride(), made.dtype) == ((4, LEAST), (1, 4), torch.bfloat16)
    memory = ResultMemory()
    with memory.call(), torch.inference_mode():
        made = result_maker(torch.bfloat16, [4, LEAST])((4, LEAST), (1, 4))
        assert (made.shape, made.stride(), made.dtype) == ((4, LEAST), (1, 4), torch.bfloat16)
        assert made.is_inference()
