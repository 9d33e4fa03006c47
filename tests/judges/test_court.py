"""The court: others' predictions beside the simulator's, and what the table makes of them."""

from __future__ import annotations

import dataclasses
from datetime import date

import pytest
from book import court as court_page

from d2lpar.validation import RowError, boxes, main, predict, read_rows
from d2lpar.validation.court import (
    COURT,
    OURS,
    ROOFLINE,
    Case,
    Court,
    hold,
    read_predictions,
    under_the_roof,
)
from d2lpar.validation.report import Comparison
from d2lpar.validation.runner import WORKLOADS

ROWS = {row.id: row for row in read_rows(COURT)}
ROW = next(iter(ROWS.values()))
HEADER = "row,predictor,predicted,url,read\n"


def compared(published: float, predicted: float) -> Comparison:
    row = dataclasses.replace(ROW, published=published, unit="s")
    return Comparison(row, predicted, "kernels")


def case(published: float, ours: float, roofline: float, **others: float) -> Case:
    said = {name: compared(published, value) for name, value in others.items()}
    return Case(compared(published, ours), compared(published, roofline), said)


def test_the_table_is_what_is_computed_by_hand():
    # Measured 10, 20, 40 s. A is off by +10 %, -50 %, 0 %; d2lpar by +20 %, +10 %, 0 %.
    court = Court(
        (case(10, 12, 5, A=11), case(20, 22, 10, A=10, B=21), case(40, 40, 20, A=40)),
    )
    table = {(of, name): columns for of, name, columns in court.verdicts()}
    # A: median of 10, 50 and 0 %, their mean, two in 30 %; in speed -9.1 %, +100 %, 0 %: median 0.
    # It is nearer in the first row alone: in the last both are right.
    assert table["A", "A"] == ("3", "10.0%", "20.0%", "67%", "+0.0%", "1 of 3")
    # In speed: 10/12, 20/22 and 1, less 1.
    assert table["A", OURS] == ("3", "10.0%", "10.0%", "100%", "-9.1%", "")
    assert table["A", ROOFLINE] == ("3", "50.0%", "50.0%", "0%", "+100.0%", "0 of 3")
    # B has predicted the second row only, so that ours is judged by that one beside it.
    assert table["B", "B"] == ("1", "5.0%", "5.0%", "100%", "-4.8%", "1 of 1")
    assert table["B", OURS] == ("1", "10.0%", "10.0%", "100%", "-9.1%", "")


def test_every_row_is_predicted_by_somebody_and_every_prediction_is_of_a_row():
    predictions = read_predictions()
    assert {one.row for one in predictions} == set(ROWS)
    assert {one.predictor for one in predictions} == {"NeuSight", "Habitat", "Li et al.", "SimuMax"}


def test_every_row_names_its_source_a_machine_and_a_workload():
    for row in ROWS.values():
        assert row.url.startswith("https://"), row.id  # that there is a source is read_rows' to see
        assert row.workload in WORKLOADS, row.id
        assert boxes.machine(row.machine).accelerators, row.id
        assert not row.fitted, row.id
    for one in read_predictions():
        assert one.url == ROWS[one.row].url  # measured and predicted stand in one table
        assert date(2026, 1, 1) < one.read <= date.today()


def test_no_row_counts_in_the_table_of_published_figures():
    published = read_rows()
    assert not {row.id for row in published} & set(ROWS)
    # The same people may have published both: NeuSight's kernels are in the one, its models here.
    assert not {row.url for row in published} & {row.url for row in ROWS.values()}


@pytest.mark.parametrize(
    ("name", "predictor", "error"),
    [
        # As their authors have printed them: nvidia_inf.csv and nvidia_train.csv of NeuSight.
        ("ns-t4-bert-large-inf-b8", "NeuSight", 0.353),
        ("ns-h100-opt-1.3b-train-b2", "NeuSight", 0.001),
        ("ns-v100-gpt2-large-inf-b4", "Habitat", 0.020),
        ("ns-l4-gpt2-large-train-b1", "Li et al.", 2.800),
        # The column "rel err" of SimuMax's summary.
        ("sm-b200-llama3-70b-tp8-pp1-m8", "SimuMax", 0.1137),
        ("sm-b200-llama3-405b-tp1-pp2-m4", "SimuMax", 0.0018),
    ],
)
def test_others_are_off_by_what_they_say_themselves(name, predictor, error):
    (said,) = (p for p in read_predictions() if (p.row, p.predictor) == (name, predictor))
    assert abs(said.predicted / ROWS[name].published - 1) == pytest.approx(error, abs=6e-4)


def test_the_roofline_takes_the_longer_of_arithmetic_and_traffic():
    gpu = boxes.machine("1x-v100").accelerators[0]
    product = {"m": "4096", "n": "4096", "k": "4096", "dtype": "float32"}
    row = dataclasses.replace(
        ROW, workload="matmul", machine="1x-v100", unit="TFLOP/s", parameters=product
    )
    assert predict(row, under_the_roof).predicted == pytest.approx(gpu.rate("float32") / 1e12)
    traffic = {"bytes": "1073741824", "kind": "copy", "dtype": "float32"}
    copied = dataclasses.replace(row, workload="stream", unit="GB/s", parameters=traffic)
    rate = predict(copied, under_the_roof).predicted
    assert rate == pytest.approx(gpu.memory_bytes_per_s / 1e9)
    assert predict(copied).predicted < rate


def test_a_model_whose_heads_share_many_keys_can_be_predicted():
    """Torch's kernel for the processor divides by the heads of keys: with none it ends a process,
    and small sizes that stood for 128 heads and 16 had none."""
    row = ROWS["sm-b200-llama3-405b-tp1-pp2-m4"]
    assert predict(row).predicted > predict(row, under_the_roof).predicted


def test_the_command_prints_the_table_and_each_row(capsys):
    name = "ns-t4-bert-large-inf-b8"
    assert main(["--court", "--rows", "--only", name]) == 0
    printed = capsys.readouterr().out
    for word in (name, "NeuSight", "Habitat", "Li et al.", ROOFLINE, "+35.3%"):
        assert word in printed
    assert "SimuMax" not in printed


def test_the_page_has_the_same_table():
    page = "\n".join(court_page.lines(Court((case(10, 12, 5, A=11),))))
    assert "| rows of A | A | 1 | 10.0% | 10.0% | 100% | -9.1% | 1 of 1 |" in page
    assert f"| `{ROW.id}` | `{ROW.machine}` | 10 s | +20.0% | -50.0% | +10.0% |" in page
    for predictor in {one.predictor for one in read_predictions()}:
        assert f"* **{predictor}**" in page  # what it needs is told


def test_rows_without_the_court_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--rows"])
    assert "--court" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("a,N,-1,https://x,2026-11-27\n", "predicted must be a number above zero, not '-1'"),
        ("a,N,1,https://x,soon\n", "read must be a date, not 'soon'"),
        ("a,N,1,https://x,2026-11-27\n" * 2, "N predicts a twice"),
        ("a,N,1,,2026-11-27\n", "url is empty"),
    ],
)
def test_predictions_that_cannot_be_used_are_refused(tmp_path, line, told):
    file = tmp_path / "predictions.csv"
    file.write_text(HEADER + line)
    with pytest.raises(RowError, match=told):
        read_predictions(file)


def test_a_row_that_nobody_has_predicted_is_refused():
    with pytest.raises(RowError, match="has no prediction of it"):
        hold([ROW], [])
