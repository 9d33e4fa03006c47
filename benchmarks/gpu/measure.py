"""Predict the figures of a file, or measure them on the GPU: a process of `make gpu`.

`measure.py FILE --part 0/4` predicts every fourth row, `measure.py FILE --from ID` measures that
row and those after it. It never writes the file: it answers on its standard output.
"""

import argparse
import csv
import gc
import math

import torch
from children import answer

from d2lpar.validation import PublishedFigure, measure, predict
from d2lpar.validation.rows import row_of

BUDGET_S = 0.4  # for the repeats of one program


def predict_part(rows: list[PublishedFigure], part: str) -> None:
    """Answer with the predictions of every n-th row."""
    first, step = map(int, part.split("/"))
    for row in rows[first::step]:
        try:
            answer(id=row.id, predicted=f"{predict(row).predicted:.5g}")
        except Exception as error:  # of one row: the others are to have theirs
            answer(id=row.id, no_figure=f"no prediction: {_text(error)}")


def measure_all(rows: list[PublishedFigure], budget_s: float) -> None:
    """Answer with the figures measured; the process ends where the GPU can no longer be used."""
    if not torch.cuda.is_available():
        answer(refused=f"torch {torch.__version__} finds no GPU: install a torch built for CUDA")
        return
    device = torch.device("cuda", torch.cuda.current_device())
    answer(torch=torch.__version__, cuda=str(torch.version.cuda))
    for row in rows:
        answer(begin=row.id)
        try:
            figure, spread = measure(row, device, budget_s)
        except Exception as error:  # of one row: the others are to have theirs
            answer(id=row.id, no_figure=f"failed: {_text(error)}")
            torch.cuda.synchronize()  # raises where an error has made the GPU useless
        else:
            shown = "" if math.isnan(spread) else f"{spread:.3f}"
            answer(id=row.id, published=f"{figure:.6g}", spread=shown, no_figure="")
        gc.collect()
        torch.cuda.empty_cache()


def rows_of(file: str) -> list[PublishedFigure]:
    """The rows of a file; what stands for figures that are not there yet is looked at by nobody."""
    with open(file, encoding="utf-8", newline="") as lines:
        return [row_of({**row, "published": "1"}, file) for row in csv.DictReader(lines)]


def _text(error: Exception) -> str:
    """The first line of an error, and its kind."""
    words = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {words[0][:300]}"


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--part")
    parser.add_argument("--from", dest="first")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S)
    options = parser.parse_args()
    rows = rows_of(options.file)
    if options.part:
        predict_part(rows, options.part)
        return
    first = next(i for i, row in enumerate(rows) if row.id == options.first)
    measure_all(rows[first:], options.budget_s)


if __name__ == "__main__":
    main()
