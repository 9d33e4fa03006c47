"""Errors in cells: the learner's lines, and those of libraries that the learner calls."""

import contextlib
import re
import textwrap
import traceback

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import d2lpar as par
from d2lpar.lesson import cell_tracebacks

# What a cell does; what its traceback says, line for line, without rules and blank lines.
CELLS = {
    "import torch, d2lpar as par\ngpus = par.devices(2, verbose=False)": "",
    "torch.ones(2, device=gpus[0]) + torch.ones(2, device=gpus[1])": """
        RuntimeError Traceback (most recent call last)
        Cell In[2], line 1
        ----> 1 torch.ones(2, device=gpus[0]) + torch.ones(2, device=gpus[1])
        RuntimeError: Expected all tensors to be on the same device, but found at least two \
devices, vgpu:0 and vgpu:1!
    """,
    "par.run_ranks(lambda: 1 / 0, gpus)": """
        ZeroDivisionError Traceback (most recent call last)
        Cell In[3], line 1
        ----> 1 par.run_ranks(lambda: 1 / 0, gpus)
        Cell In[3], line 1, in <lambda>()
        ----> 1 par.run_ranks(lambda: 1 / 0, gpus)
        ZeroDivisionError: division by zero
        raised by rank 0 of 2, on vgpu:0
    """,
    "with par.simulate('none') as gpus:\n    pass": """
        ValueError Traceback (most recent call last)
        Cell In[4], line 1
        ----> 1 with par.simulate('none') as gpus:
        2 pass
        ValueError: no machine is called 'none'; `print(*par.machines.CATALOGUE)` lists the names
    """,
    "1 / 0": """
        ZeroDivisionError Traceback (most recent call last)
        Cell In[5], line 1
        ----> 1 1 / 0
        ZeroDivisionError: division by zero
    """,
    "batches": """
        NameError Traceback (most recent call last)
        Cell In[6], line 1
        ----> 1 batches
        NameError: name 'batches' is not defined
        If a cell above makes it, run those first: Run > Run All Above Selected Cell.
    """,
}


def test_a_cell_shows_the_lines_of_the_learner():
    sources = [*CELLS, "%xmode Verbose", "par.devices(2, kind='none')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    NotebookClient(notebook, timeout=60, allow_errors=True).execute()
    for cell, said in zip(notebook.cells, CELLS.values(), strict=False):
        assert _lines(cell) == textwrap.dedent(said).strip().splitlines()
    whole = "\n".join(_lines(notebook.cells[-1]))
    assert "device_choice.py" in whole, "Verbose shows the frames of the engine, too"


def _lines(cell):
    """The lines of a cell's traceback, without colours, rules and runs of blanks."""
    errors = [output for output in cell.outputs if output.output_type == "error"]
    text = "\n".join(line for error in errors for line in error.traceback)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    return [" ".join(line.split()) for line in plain if line.strip("- ")]


def test_libraries_that_the_learner_calls_stay(gpus):
    net = torch.nn.Linear(3, 2, device=gpus[0])
    with pytest.raises(RuntimeError) as caught:
        net(torch.ones(4, device=gpus[0]))
    assert "d2lpar/vgpu" in str(_files(caught.value))
    cell_tracebacks.cut(caught.value)
    files = _files(caught.value)
    assert files[0] == __file__
    assert files[-1].endswith("torch/nn/modules/linear.py")
    assert "d2lpar/vgpu" not in str(files)


def test_code_of_the_learner_that_the_package_calls_stays(gpus):
    def fails():
        raise RuntimeError("of the learner")

    with pytest.raises(RuntimeError) as caught:
        par.run_ranks(fails, gpus[:2])
    cell_tracebacks.cut(caught.value)
    assert _files(caught.value) == [__file__, __file__]


def test_a_mistake_of_the_engine_is_shown_whole(monkeypatch):
    def mistaken(name):
        raise KeyError(name)

    code = mistaken.__code__.replace(co_filename=cell_tracebacks.__file__)
    monkeypatch.setattr(mistaken, "__code__", code)
    with pytest.raises(KeyError) as caught:
        mistaken("nothing")
    cell_tracebacks.cut(caught.value)
    assert _files(caught.value) == [__file__, cell_tracebacks.__file__]


def test_a_name_that_is_not_there_is_the_learners_mistake():
    with pytest.raises(AttributeError) as caught:
        par.devicez  # noqa: B018
    cell_tracebacks.cut(caught.value)
    assert _files(caught.value) == [__file__]


def test_context_managers_of_the_learner_stay():
    @contextlib.contextmanager
    def own():
        raise ValueError("of the learner")
        yield

    with pytest.raises(ValueError, match="of the learner") as caught, own():
        pass
    before = _files(caught.value)
    cell_tracebacks.cut(caught.value)
    assert _files(caught.value) == before
    assert contextlib.__file__ in before


def _files(error):
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
