"""A part of PyTorch's operator database; `make opinfo` runs all of it."""

import re
import sys
from contextlib import nullcontext

import opinfo
import pytest
import torch

import d2lpar as par


@pytest.fixture(autouse=True, scope="module")
def flags_that_can_be_set():
    """torch's utilities for tests freeze the flags of its backends when they are imported."""
    flags = torch.backends.flags_frozen.__globals__
    before = dict(flags)
    yield
    flags |= before


def test_one_operator_in_forty_gives_the_results_of_the_cpu(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["opinfo.py", "--fast", "--jobs", "1"])
    status = opinfo.main()
    said = capsys.readouterr().out
    assert status == 0, said
    counts = re.findall(r"(\w+): (\d+) of (\d+) operators", said)
    assert [name for name, *_ in counts] == ["forward", "gradient"], said
    for _, passed, judged in counts:
        assert passed == judged, said
        assert int(judged) >= 12


def test_an_operator_that_fails_counts_as_failed(capsys):
    number = next(i for i, op in enumerate(opinfo.operators()) if op.name == "abs")
    verdicts = {number: {"forward": "wrong", "gradient": opinfo.OK}}
    assert not opinfo.report(verdicts)
    assert "abs: wrong" in capsys.readouterr().out
    assert opinfo.report({number: {"forward": opinfo.OK, "gradient": opinfo.OK}})


def test_the_judge_sees_differences(gpus):
    a = torch.ones(2, device=gpus[0])
    opinfo._check_equal(torch.ones(2), a)
    for wrong in (
        torch.ones(2),  # not on the device
        torch.ones(2, device=gpus[1]),
        torch.ones(3, device=gpus[0]),
        torch.ones(2, device=gpus[0], dtype=torch.float64),
        torch.tensor([1.0, 1.1], device=gpus[0]),
        a.to_sparse(),
        (a, a),
    ):
        with pytest.raises(AssertionError):
            opinfo._check_equal(torch.ones(2), wrong)


# A gradient that is given no numbers, but a mask, and one made of sums of products by elements.
OF_OTHER_KERNELS = ("native_dropout_backward", "nn.functional.bilinear")


def of_the_cpu_alone():
    """Operators with a type of whole numbers that the database gives the CPU, and not CUDA."""
    for op in opinfo.operators():
        types = op.dtypes - (op.dtypesIfCUDA or op.dtypes)
        if op.name not in OF_OTHER_KERNELS:
            yield from ((op, dtype) for dtype in types & {torch.int64, torch.uint8})


@pytest.mark.filterwarnings("ignore:.nn.functional.upsample_bilinear")
@pytest.mark.parametrize("shape_only", [False, True])
def test_types_that_cuda_has_no_kernel_for_are_refused(gpus, shape_only):
    def moved(value):
        return value.to(gpus[0]) if isinstance(value, torch.Tensor) else value

    def refused(op, sample):
        try:
            op(sample.input, *sample.args, **sample.kwargs)
        except NotImplementedError as error:
            return "CUDA" in str(error)
        return False

    judged = list(of_the_cpu_alone())
    assert len(judged) > 40
    with par.shape_only() if shape_only else nullcontext():
        for op, dtype in judged:
            samples = (each.transform(moved) for each in op.sample_inputs("cpu", dtype))
            assert any(refused(op, sample) for sample in samples), (op.full_name, dtype)
