"""Code that programs bring for CUDA itself is refused by name; what runs on the CPU is not."""

import importlib
import os
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

import d2lpar as par

NOT_HERE = "run no code of a program's own for CUDA"


@pytest.fixture
def x():
    with par.emulate_cuda(1, verbose=False):
        yield torch.ones(8, device="cuda")


def double(x):
    """The kernel of Triton that the tests launch."""
    import triton.language as tl

    i = tl.arange(0, 8)
    tl.store(x + i, 2 * tl.load(x + i))


CALLS = {
    "_compile_kernel": lambda: torch.cuda._compile_kernel("__global__ void f() {}", "f"),
    "_create_jit_fn": lambda: torch.cuda.jiterator._create_jit_fn("T f(T x) { return x; }"),
    "CUDAExtension": lambda: cpp_extension.CUDAExtension("own", ["own.cu"]),
    "load": lambda: cpp_extension.load("own", ["own.cpp", Path("own.cu")]),
    "load_inline": lambda: cpp_extension.load_inline("own", "", "__global__ void f() {}"),
    "load_inline of": lambda: cpp_extension.load_inline("own", "", with_cuda=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_refused_before_anything_is_built(name, x, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with pytest.raises(NotImplementedError, match=f"{name}.*{NOT_HERE}.*torch.library"):
        CALLS[name]()
    assert os.listdir(tmp_path) == []


def test_extensions_in_cpp_alone_are_left_to_torch(x, monkeypatch, tmp_path):
    """Torch says itself what it lacks to build one: here the file."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with pytest.raises((RuntimeError, OSError)) as raised:
        cpp_extension.load("own", [str(tmp_path / "absent.cpp")])
    assert not isinstance(raised.value, NotImplementedError)


def test_a_kernel_of_triton_is_refused_by_its_name(monkeypatch):
    triton = pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    runtime = importlib.import_module("triton.runtime.jit")
    theirs = runtime.JITFunction.run
    kernel = triton.jit(double)
    with par.emulate_cuda(1, verbose=False):
        ones = torch.ones(8, device="cuda")
        with pytest.raises(NotImplementedError, match=f"'double'.*{NOT_HERE}"):
            kernel[(1,)](ones)
        assert ones.tolist() == [1.0] * 8
    assert runtime.JITFunction.run is theirs


def test_who_asks_for_the_memory_of_a_tensor_is_told(x):
    for ask in (torch.utils.dlpack.from_dlpack, lambda x: hasattr(x, "__cuda_array_interface__")):
        with pytest.raises(BufferError, match=r"cuda:0.*no real GPU.*\.cpu\(\)"):
            ask(x)


def test_an_extension_that_asks_for_an_address_hears_what_to_do():
    words = "its data is not allocated yet"
    header = Path(torch.__file__).parent / "include" / "c10" / "core" / "TensorImpl.h"
    assert words in header.read_text().replace('"\n', "").replace('  "', "")  # torch's own
    with (
        pytest.raises(RuntimeError, match=f"{words}(.|\n)*{NOT_HERE}"),
        par.emulate_cuda(1, verbose=False),
    ):
        raise RuntimeError(f"The tensor has a non-zero number of elements, but {words}.")
