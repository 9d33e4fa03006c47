"""The core of a lesson, which students write: the answer folded under each stub is right."""

import ast
import math
import time
from functools import partial
from pathlib import Path

import cells
import nbformat
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import d2lpar as par
from d2lpar import checks

ROOT = Path(__file__).parents[2]
NAMES = {"torch": torch, "dist": dist, "nn": nn, "F": F, "par": par, "np": np, "math": math}
NAMES |= {
    "TwoParts": None,
    "program": None,
    "partial": partial,
    "time": time,
    "loss": nn.CrossEntropyLoss(reduction="none"),
}


def cores():
    """(lesson, function to write) of all lessons and their deeper halves."""
    folder = ROOT / "notebooks"
    for path in sorted([*folder.glob("[0-9]*.ipynb"), *folder.glob("deeper/[0-9]*.ipynb")]):
        for cell in nbformat.read(path, as_version=4).cells:
            if "core" in cell.metadata.get("tags", []):
                yield path.name[:2], ast.parse(cell.source).body[0].name


@pytest.mark.parametrize(("lesson", "name"), list(cores()))
def test_the_folded_answer_is_right_and_shows_what_it_did(lesson, name):
    par.devices(2, kind="virtual", verbose=False)
    verdict = getattr(checks, name)(getattr(cells.functions(lesson, **NAMES), name))
    assert verdict.status == checks.RIGHT, verdict
    assert verdict.picture, "students see what their version did"


def test_a_verdict_draws_what_the_answer_did(capsys):
    picture = {"kind": "bars", "unit": "images", "bars": {"vgpu:0": {"sent": 2.0}}}
    shown = []
    verdict = checks.Verdict(checks.WRONG, "too few", picture, "your split")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("d2lpar.plots.Picture._ipython_display_", lambda self: shown.append(self))
        verdict._ipython_display_()
    assert "too few" in capsys.readouterr().out
    assert [ax.get_title(loc="left") for ax in shown[0].axes] == ["your split"]
    with pytest.raises(NotImplementedError):  # IPython then shows the text
        checks.Verdict(checks.WRONG, "too few")._ipython_display_()
