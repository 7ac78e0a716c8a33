"""Which cuBLASLt torch multiplies by, and what that means for GEMMs."""

import ctypes
from types import SimpleNamespace

import pytest
import torch
from mock_gpu import mock_gpu

import steelyard
from steelyard.errors import TargetError
from steelyard.runtime.cuda import libraries
from steelyard.targets.architectures import TARGETS, target_of
from steelyard.targets.gemm_paths import with_library


@pytest.fixture(autouse=True)
def _asked_again():
    libraries.cublaslt_version.cache_clear()
    yield
    libraries.cublaslt_version.cache_clear()


def library_of(number: int):
    def load(name: str):
        assert name == "libcublasLt.so.12"
        return SimpleNamespace(cublasLtGetVersion=Version(number))

    return load


class Version:
    """A C function, which takes its number for a C int until it is told otherwise."""

    restype = ctypes.c_int

    def __init__(self, number: int):
        self._number = number

    def __call__(self) -> int:
        assert self.restype is ctypes.c_size_t
        return self._number


@pytest.mark.parametrize(
    ("built", "loaded", "expected"),
    [
        ("12.9", 120905, (12, 9)),
        ("12.9", 120604, (12, 6)),  # somebody has an older one first on the path
        ("12.6", 121001, (12, 6)),
        ("12.8.1", 120803, (12, 8)),
    ],
)
def test_the_older_of_what_torch_knows_and_what_is_loaded(built, loaded, expected, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(ctypes, "CDLL", library_of(loaded))
    assert libraries.cublaslt_version() == expected


def test_a_library_that_cannot_be_asked_is_what_torch_was_built_for(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(libraries, "_loaded_version", lambda major: None)
    assert libraries.cublaslt_version() == (12, 8)


def test_torch_without_cuda_has_none(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert libraries.cublaslt_version() is None


def test_a_library_that_lacks_nothing_makes_no_other_target():
    hopper = TARGETS["sm_90a"]
    assert {with_library(hopper, version) for version in (None, (12, 9), (13, 1))} == {hopper}
    blackwell = TARGETS["sm_100a"]
    assert with_library(blackwell, (12, 8)) == blackwell  # only Hopper has what 12.8 lacks
    assert with_library(blackwell, (12, 6)).spelling == "sm_100a+cublaslt12.6"
    older = with_library(hopper, (12, 8))
    assert older.spelling == "sm_90a+cublaslt12.8"
    assert target_of(older.spelling) == older


def test_a_net_asks_for_the_library_of_its_gpu(monkeypatch, library):
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(libraries, "_loaded_version", lambda major: None)
    model, x = torch.nn.Linear(256, 128), torch.randn(128, 256)
    with mock_gpu(monkeypatch, library, "sm_90a", cublaslt=libraries.cublaslt_version()), torch.no_grad():
        net = steelyard.compile(model, "fp8-block", target="cuda")
        net(x)
        (row,) = net.explain().rows
        assert row.kernel == "cuda block emulated in f32"
        assert row.reason == "1x128 and 128x128 scales need cuBLASLt 12.9 or newer, and torch has 12.6"
        torch._dynamo.reset()
        fixed = steelyard.compile(model, "fp8-block", target="cuda:sm_90a")
        with pytest.raises(
            TargetError, match=r"compiled for cuda:sm_90a must run on .* got sm_90a\+cublaslt12\.6 .*\"cuda\""
        ):
            fixed(x)
    torch._dynamo.reset()


@pytest.mark.parametrize(("shown", "expected"), [("CXX_FLAGS= -DUSE_FBGEMM -DUSE_MSLK", True), ("-DUSE_FBGEMM", False)])
def test_torch_says_whether_it_was_built_with_mslk(shown, expected, monkeypatch):
    libraries.has_mslk.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.__config__, "show", lambda: shown)
    assert libraries.has_mslk() is expected
    libraries.has_mslk.cache_clear()
    for name in ("sm_90a", "sm_100a"):
        target = with_library(TARGETS[name], None, has_mslk=expected)
        # It matters on one architecture only.
        assert target.spelling == ("sm_100a+nomslk" if name == "sm_100a" and not expected else name)
        assert target_of(target.spelling) == target
