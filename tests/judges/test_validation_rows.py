"""The published figures: that they are what they are said to be, and what is wrong is named."""

from __future__ import annotations

from collections import Counter
from statistics import mean, median

import pytest

from d2lpar import validation
from d2lpar.validation import RowError, boxes, groups, predict, read_rows, recorded
from d2lpar.validation.recording import record
from d2lpar.validation.report import Comparison, Report
from d2lpar.validation.rows import OPTIONAL, REQUIRED
from d2lpar.validation.runner import WORKLOADS
from d2lpar.vgpu.sim import constants

ROWS = read_rows()
GOOD = {
    "id": "a",
    "workload": "matmul",
    "parameters": "m=4; n=4; k=4; dtype=float32",
    "machine": "1x-v100-nvswitch",
    "published": "1.5",
    "unit": "s",
    "source": "somebody",
    "url": "https://example.org",
    "table": "1",
    "note": "",
}


@pytest.fixture
def csv(tmp_path):
    """A function that writes rows, each a change of a good one, and reads them."""

    def read(*changes: dict[str, str], header: tuple[str, ...] = REQUIRED):
        lines = [",".join(header)]
        for change in changes:
            fields = GOOD | change
            lines.append(",".join(f'"{fields[name]}"' for name in header))
        path = tmp_path / "rows.csv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return read_rows(path)

    return read


def test_there_are_many_rows_from_many_sources_and_few_from_one_table():
    assert len(ROWS) >= 40
    assert len({row.source for row in ROWS}) >= 15
    for table, count in Counter((row.source, row.table) for row in ROWS).items():
        assert count <= 12, table


def test_every_source_can_be_looked_up():
    assert all(row.url.startswith(("https://", "http://")) for row in ROWS)


def test_machines_and_workloads_are_known():
    for row in ROWS:
        assert row.workload in WORKLOADS, row.id
        assert boxes.machine(row.machine).accelerators, row.id


def test_rows_name_the_constants_that_are_fitted_on_them():
    fitted = {row.fitted for row in ROWS if row.fitted}
    assert fitted <= {name for name in vars(constants) if name.isupper()}


def test_fitting_used_few_of_the_rows():
    assert sum(bool(row.fitted) for row in ROWS) <= len(ROWS) / 10


def test_aliases_are_of_machines_of_the_catalogue():
    for name in (*boxes.NAMES, *boxes.PAIRS):
        assert boxes.machine(name).accelerators, name


def test_a_box_of_pairs_is_a_pair_or_more():
    assert boxes.machine("8x-a100-nvlink-pairs", 2).peer.name.startswith("NVLink")
    assert boxes.machine("8x-a100-nvlink-pairs", 3).peer.name.startswith("PCIe")


# --- reading --------------------------------------------------------------------------------------


def test_a_row_is_read_as_it_stands(csv):
    (row,) = csv({"fitted": "X", "comment": "why", "apart": "yes"}, header=REQUIRED + OPTIONAL)
    assert row.parameters == {"m": "4", "n": "4", "k": "4", "dtype": "float32"}
    assert (row.published, row.unit) == (1.5, "s")
    assert (row.fitted, row.comment, row.apart) == ("X", "why", "yes")
    assert csv({})[0].fitted == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"published": "fast"}, "line 2: published must be a number above zero, not 'fast'"),
        ({"published": "-1"}, "line 2: published must be a number above zero"),
        ({"published": "inf"}, "line 2: published must be a number above zero"),
        ({"machine": " "}, "line 2: machine is empty"),
        ({"source": ""}, "line 2: source is empty"),
        ({"parameters": "m=4; n"}, "line 2: parameters must read name=value.*not 'n'"),
        ({"parameters": "m=4; m=5"}, "line 2: parameters give m twice"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_field(csv, change, says):
    with pytest.raises(RowError, match=says):
        csv(change)


def test_columns_must_be_there(csv, tmp_path):
    with pytest.raises(RowError, match="line 1: the header lacks unit, url"):
        csv({}, header=tuple(name for name in REQUIRED if name not in ("unit", "url")))
    path = tmp_path / "long.csv"
    path.write_text(",".join(REQUIRED) + "\n" + ",".join(["1"] * 11) + "\n", encoding="utf-8")
    with pytest.raises(RowError, match="line 2: there are more fields than the header names"):
        read_rows(path)


def test_an_id_occurs_once(csv):
    with pytest.raises(RowError, match="line 3: id 'a' occurs twice"):
        csv({}, {})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"workload": "matmull"}, "row a: no workload is called 'matmull'; there is matmul"),
        ({"machine": "9x-v100"}, "row a .matmul.: no machine is called '9x-v100'"),
        ({"parameters": "m=4; n=4; dtype=float32"}, "row a .matmul.: it needs the parameter k"),
        ({"parameters": "m=4.5; n=4; k=4; dtype=float32"}, "m must be a whole number, not 4.5"),
        ({"parameters": "m=x; n=4; k=4; dtype=float32"}, "m must be a number, not 'x'"),
        ({"parameters": "m=4; n=4; k=4; dtype=int3"}, "dtype must be float32 or .*, not 'int3'"),
        ({"parameters": GOOD["parameters"] + "; kk=4"}, "matmul knows no parameter kk"),
        ({"unit": "images/s"}, "no result in 'images/s', but in s, TFLOP/s"),
        ({"unit": "furlongs"}, "no result in 'furlongs', but in s, TFLOP/s"),
    ],
)
def test_what_cannot_be_simulated_is_said(csv, change, says):
    with pytest.raises(RowError, match=says):
        predict(csv(change)[0])


def test_a_report_is_read_as_it_was_recorded(tmp_path):
    rows = read_rows()[:3]
    report = Report(
        (
            Comparison(rows[0], 1.25, groups.KERNELS, 2.5),
            Comparison(rows[1], 3e-6, groups.COPIES),
            Comparison(rows[2], 7e9, groups.SCALING, 1.0),
        )
    )
    record(report, tmp_path / "recorded.csv")
    assert recorded(tmp_path / "recorded.csv") == report


def test_a_row_that_is_gone_is_named(tmp_path):
    file = tmp_path / "recorded.csv"
    file.write_text("row,group,predicted,naive\nno-such-row,kernels,1,\n")
    with pytest.raises(RowError, match="no-such-row"):
        recorded(file)


def test_trust_counts_only_what_was_held_apart():
    apart = [p for p in recorded().tests if p.group == groups.COPIES and p.row.apart]
    errors = [abs(p.predicted / p.row.published - 1) for p in apart]
    said = validation.trust(groups.COPIES)
    assert f"{len(apart)} published" in said
    assert f"{median(errors):.0%}\n" in said
    assert f"{mean(errors):.0%} in the mean" in said


def test_another_group_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'kernel'.*kernels, copies"):
        validation.trust("kernel")


def test_a_part_of_the_rows_is_not_recorded(capsys):
    with pytest.raises(SystemExit):
        validation.main(["--record", "--only", "copy"])
    assert "--only" in capsys.readouterr().err
