"""Ranks in a notebook: `%%px`, live reports and mistakes, the same in every execution."""

import os
import re
from importlib.util import find_spec

import psutil
import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

pytestmark = [
    pytest.mark.slow,  # lesson 06 starts ranks from a notebook, too
    pytest.mark.skipif(os.name != "posix", reason="needs Linux or macOS"),
    pytest.mark.skipif(find_spec("ipyparallel") is None, reason="needs ipyparallel"),
]

CELLS = [
    "import d2lpar as par\nranks = par.cluster(2)\nranks",
    "par.cluster(2) is ranks",
    "%%px\nx = torch.full((2,), float(rank + 1))\ndist.all_reduce(x)\nprint('sum', x)\nx.mean()",
    "%%px --rank 1\nprint(rank, 'of', world_size)",
    "factor = 10\ndef scaled(x):\n    print('on', rank)\n    return factor * x + rank",
    "ranks.run(scaled, 4)",
    "losses = []\ndef live(rank, values):\n    if rank == 0: losses.append(values['loss'])",
    "%%px --live live\nfor step in range(3):\n    par.report(loss=1 / 2**step)",
    "losses",
    "%px x * 2",
    "%%px --live nothing\n1",
    "%%px\n\nassert world_size == 3, 'too few'",
    "def bad(x):\n    if rank == 1:\n        raise ValueError('bad batch')\n    dist.barrier()",
    "ranks.run(bad, 1)",
    "%%px\nrank",
    "with par.cluster(2) as ranks:\n    ranks.run_cell('rank')\nranks",
    "ranks.stop()",
    "import warnings\nwarnings.warn('the only warning of this notebook')",
]
WRONG = {10, 11, 13, 14}


def executed():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in CELLS])
    for number in WRONG:
        notebook.cells[number].metadata["tags"] = ["raises-exception"]
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return [cell.outputs for cell in notebook.cells]


def text(outputs):
    """What a student sees of the outputs, without colours."""
    shown = []
    for output in outputs:
        if output.output_type == "error":
            shown.append("\n".join(output.traceback))
        else:
            shown.append(output.get("text") or output["data"]["text/plain"])
    return "".join(shown)


@pytest.fixture(scope="module")
def earlier():
    """What other tests of this process have started, and may go on using."""
    return psutil.Process().children(recursive=True)


@pytest.fixture(scope="module")
def outputs(earlier):
    os.environ["OMP_NUM_THREADS"] = "1"
    return executed()


def test_outputs_are_ordered_and_complete(outputs):
    shown = [text(one) for one in outputs]
    assert shown[0] == "2 ranks · gloo · 1 thread each · measured"
    assert shown[1] == "True"
    assert shown[2] == "".join(
        f"[rank {r}] sum tensor([3., 3.])\n[rank {r}] tensor(3.)\n" for r in range(2)
    )
    assert shown[3] == "[rank 1] 1 of 2\n"
    assert shown[5] == "[rank 0] on 0\n[rank 1] on 1\n[40, 41]"
    assert shown[8] == "[1.0, 0.5, 0.25]"
    assert shown[9] == "[rank 0] tensor([6., 6.])\n[rank 1] tensor([6., 6.])\n"
    assert shown[15] == "[rank 0] 0\n[rank 1] 1\n2 ranks, ended: they were stopped"
    silent = (4, 6, 7, 12, 16)
    assert [shown[number] for number in silent] == [""] * len(silent)


def test_mistakes_show_the_line_of_the_cell(outputs):
    shown = [text(one) for one in outputs]
    assert "and 'nothing' is not defined" in shown[10]
    assert "[rank 0] cell of the notebook, line 3\n" in shown[11]
    assert "RankError: rank 0 raised AssertionError: too few" in shown[11]
    assert "[rank 1] cell of the notebook, line 3, in bad\n" in shown[13]
    assert "[rank 1]     raise ValueError('bad batch')\n" in shown[13]
    assert "RankError: rank 1 raised ValueError: bad batch" in shown[13]
    assert "`ranks.restart()` starts them again" in shown[14]


def test_nothing_else_is_printed_and_nothing_is_left(outputs, earlier):
    streams = [
        output.text
        for one in outputs
        for output in one
        if output.output_type == "stream" and output.name == "stderr"
    ]
    assert len(streams) == 1
    assert "the only warning" in streams[0]
    left = set(psutil.Process().children(recursive=True)) - set(earlier)
    assert not [one for one in left if is_ours(one)]


def is_ours(process):
    try:
        return bool(re.search("d2lpar[./]processes[./]cluster", " ".join(process.cmdline())))
    except psutil.Error:
        return False


def test_a_second_execution_gives_the_same(outputs):
    def comparable(one):
        return [
            (output.get("text"), output.get("data"), output.get("ename"), output.get("evalue"))
            for output in one
            if output.get("name") != "stderr"  # the number of the kernel's process is in it
        ]

    assert list(map(comparable, executed())) == list(map(comparable, outputs))
