"""Tables of recorded results: what they tell, going on where one was stopped, and damage."""

import re
import threading
from importlib.metadata import version

import pytest

from d2lpar import recorded

COLUMNS = ("net", "batch", "loss")
KEY = ("net", "batch")
TOLD = ("python try.py", "two nets, by hand")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "table.csv"


def recorder(file, **changed):
    options = {"columns": COLUMNS, "key": KEY, "told": TOLD} | changed
    return recorded.Recorder(file, options.pop("columns"), **options)


def damage(file, change):
    file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")


def test_the_heading_tells_command_machine_versions_and_day(file):
    recorder(file)
    table = recorded.read(file)
    assert table.rows == ()
    assert table.heading[:2] == TOLD
    assert f"PyTorch {version('torch')}" in table.heading[2]
    assert re.fullmatch(r"begun \d{4}-\d\d-\d\d", table.heading[3])
    assert str(table) == "recorded: " + "; ".join(table.heading)


def test_rows_come_back_in_their_order_numbers_as_float(file):
    recorder(file).add([("mlp", 16, 0.25), ("lenet", 8, 1e-30), ("mlp", 8, float("inf"))])
    first, second, third = recorded.read(file).rows
    assert first == {"net": "mlp", "batch": 16.0, "loss": 0.25}
    assert isinstance(first["batch"], float)
    assert second["loss"] == 1e-30
    assert third["loss"] == float("inf")


def test_rows_are_found_by_values_in_their_order(file):
    recorder(file).add([("mlp", 16, 1), ("lenet", 16, 2), ("mlp", 8, 3), ("mlp", 16, 4)])
    table = recorded.read(file)
    assert [row["loss"] for row in table.where(net="mlp", batch=16)] == [1, 4]
    assert table.where(net="vgg") == []
    with pytest.raises(KeyError, match="width"):
        table.where(width=4)


@pytest.mark.parametrize("text", ["a, b", 'say "so"', "2 x V100"])
def test_text_with_commas_and_quotes_comes_back(file, text):
    recorder(file).add([(text, 1, 2)])
    assert recorded.read(file).rows[0]["net"] == text
    assert recorder(file).has(text, 1)


def test_a_script_goes_on_where_it_was_stopped(file):
    wanted = [("mlp", 8), ("mlp", 16), ("lenet", 8)]
    first = recorder(file)
    assert not any(first.has(*key) for key in wanted)
    first.add([("mlp", 8, 0.5)])
    assert first.has("mlp", 8)
    again = recorder(file)
    done = [key for key in wanted if again.has(*key)]
    assert done == [("mlp", 8)]
    for key in wanted:
        if not again.has(*key):
            again.add([(*key, 0.1)])
    rows = recorded.read(file).rows
    assert [(row["net"], row["batch"]) for row in rows] == wanted
    assert file.read_text(encoding="utf-8").count("begun") == 1


@pytest.mark.parametrize("row", [("mlp", 8), ("mlp", 8, 0.5, 1), ()])
def test_a_row_that_does_not_fit_is_refused_and_nothing_of_it_kept(file, row):
    table = recorder(file)
    with pytest.raises(ValueError, match=r"table\.csv.*3 fields.*net.*batch.*loss"):
        table.add([("mlp", 16, 0.25), row])
    assert recorded.read(file).rows == ()


def test_a_table_of_other_columns_is_refused(file):
    recorder(file).add([("mlp", 8, 0.5)])
    with pytest.raises(ValueError, match=r"table\.csv.*loss.*accuracy"):
        recorder(file, columns=("net", "batch", "accuracy"))


@pytest.mark.parametrize("row", ["mlp,8", "mlp,8,0.5,7", "mlp"])
def test_a_row_with_missing_or_spare_fields_is_named(file, row):
    recorder(file).add([("mlp", 8, 0.5)])
    damage(file, lambda text: f"{text}{row}\nlenet,8,0.1\n")
    expected = re.escape(str(row.split(",")))
    with pytest.raises(ValueError, match=rf"table\.csv.*3 fields.*{expected}"):
        recorded.read(file)
    with pytest.raises(ValueError, match=expected):
        recorder(file)


@pytest.mark.parametrize("lost", range(1, len("lenet,16,0.125\n")))
def test_a_last_line_that_was_cut_anywhere_is_named(file, lost):
    """Even where what is left looks like a row: 0.12 for 0.125."""
    recorder(file).add([("mlp", 8, 0.5), ("lenet", 16, 0.125)])
    damage(file, lambda text: text[:-lost])
    last = file.read_text(encoding="utf-8").splitlines()[-1]
    assert last.startswith("l")
    for use in (recorded.read, recorder):
        with pytest.raises(ValueError, match=rf"table\.csv.*{re.escape(last)}"):
            use(file)


def test_a_file_without_names_of_columns_is_refused(file):
    for text in ("", "# only a heading\n"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"table\.csv.*names"):
            recorded.read(file)


def test_nothing_is_lost_when_two_runs_add_rows_at_once(file):
    columns, start = ("run", "step", "text"), threading.Barrier(2)

    def run(name):
        table = recorder(file, columns=columns, key=columns[:2])
        start.wait()
        for step in range(200):
            table.add([(name, step, "x" * 50), (name, step + 0.5, "y" * 50)])

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    recorder(file, columns=columns, key=columns[:2])
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = recorded.read(file)
    assert len(table.rows) == 800
    for name in "ab":
        rows = table.where(run=name)
        assert [row["step"] for row in rows] == [i / 2 for i in range(400)]
        assert [row["text"][0] for row in rows] == ["x", "y"] * 200


def test_a_run_that_begins_later_keeps_what_is_there(file, monkeypatch):
    """Even one that saw no file when another was just beginning it."""
    recorder(file).add([("mlp", 8, 0.5)])
    monkeypatch.setattr(type(file), "exists", lambda self: False)
    assert recorder(file).has("mlp", 8)
