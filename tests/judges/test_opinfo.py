"""A part of PyTorch's operator database; `make opinfo` runs all of it."""

import re
import sys

import opinfo
import pytest
import torch


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
