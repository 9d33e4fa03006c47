"""Predictions beside published figures: the bounds that the simulator keeps."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from d2lpar.machines.hardware import Accelerator, Host, Link, Machine
from d2lpar.parallelism.pipeline.costs import StageCost
from d2lpar.parallelism.planner import uncertainty
from d2lpar.validation import boxes, groups, main, predict, read_rows, recorded, validate
from d2lpar.validation.parameters import Parameters, SimulatedRun
from d2lpar.validation.recording import predicted_blind
from d2lpar.validation.report import Comparison, Errors, Report
from d2lpar.validation.rows import PublishedFigure
from d2lpar.validation.workloads import measuring, pipelines, scaling, stages
from d2lpar.validation.workloads.nets import amoebanet, bert, networks, transformers

ROWS = {row.id: row for row in read_rows()}

EACH = 8  # rows of a workload, of which one is simulated here; all take minutes

# More than five on two cores that others slow down.
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def published() -> Report:
    """All rows, as `make validate` has recorded them."""
    return recorded()


def test_the_bounds_hold(published):
    assert published.holds, published.text()[-3000:]


def sample() -> list[PublishedFigure]:
    """Rows of each workload, from all over its list."""
    found = []
    for workload in dict.fromkeys(row.workload for row in ROWS.values()):
        found += [row for row in ROWS.values() if row.workload == workload][::EACH]
    return found


@pytest.mark.parametrize("rows", [sample, pytest.param(ROWS.values, marks=pytest.mark.slow)])
def test_what_lessons_quote_is_what_is_simulated_now(published, rows):
    """Else: `make validate` records it anew, and the lessons that call `trust` are run again."""
    pytest.importorskip("torchvision", reason="most published figures are of torchvision's nets")
    quoted = {p.row.id: (p.group, p.predicted) for p in published.predictions}
    assert quoted.keys() == ROWS.keys()
    moved = {
        p.row.id: (p.predicted, quoted[p.row.id])
        for p in validate(rows()).predictions
        if quoted[p.row.id] != (p.group, pytest.approx(p.predicted, rel=1e-5))
    }
    assert not moved


def test_plans_say_the_error_of_transformers_held_apart(published):
    said = {
        groups.TRANSFORMERS_A100: uncertainty.UP_TO_A100,
        groups.TRANSFORMERS_H100: uncertainty.FROM_H100,
    }
    for group, error in said.items():
        apart = [p for p in published.tests if p.group == group and p.row.apart]
        assert Errors.of(apart).median == pytest.approx(error, abs=0.006)


def test_only_rows_far_off_say_why(published):
    commented = {row.id for row in ROWS.values() if row.comment}
    assert commented <= {p.row.id for p in published.misses}


def test_most_rows_are_tests_and_every_one_is_of_a_group(published):
    assert len(published.tests) >= 0.9 * len(published.predictions)
    assert {p.group for p in published.predictions} <= set(groups.GROUPS)
    without = {p.row.workload for p in published.predictions if p.naive is None}
    assert without <= {"training_memory", "peak_memory", "replicate"}


def test_half_of_the_sources_are_held_apart_and_nothing_is_fitted_to_them():
    apart, kinds = {}, {}
    for row in ROWS.values():
        apart.setdefault(row.origin, set()).add(row.apart)
        kinds.setdefault((row.origin, row.workload), set()).add(row.apart)
        assert not (row.apart and row.fitted), row.id
    # Of what it says of one kind of work, all was seen while that was modelled, or nothing.
    assert all(len(uses) == 1 for uses in kinds.values())
    assert 0.4 <= sum(uses != {""} for uses in apart.values()) / len(apart) <= 0.6


def test_what_was_fitted_fits(published):
    for p in published.predictions:
        if p.row.fitted:
            assert abs(p.error) <= 0.07, p.row.id


def test_the_textbooks_products():
    assert f"{predict(ROWS['d2l-products-one-gpu']).predicted:.4f}" == "0.4608"


@pytest.mark.parametrize(
    "name",
    ["torch-model-parallel-resnet50", "torchgpipe-amoebanet-n2-m32", "dp-dlperf-tf-v100-32"],
)
def test_the_same_row_comes_out_the_same(name):
    """Also where nothing is known from other rows."""
    before = predict(ROWS[name]).predicted
    stages.costs_of.cache_clear()
    scaling.simulated.cache_clear()
    assert predict(ROWS[name]).predicted == before


def test_precision_is_put_back():
    before = torch.get_float32_matmul_precision()
    predict(ROWS["hf-bert-large-seq512-3090ti-tf32"])
    assert torch.get_float32_matmul_precision() == before


def test_scales_of_fp8_products_are_there_before_they_are_timed():
    # With a kernel beside each product that makes its scale the host set the time: 52 % off.
    assert abs(predict(ROWS["azure-cublaslt-fp8-1024x1024x1024-h100"]).error) < 0.15


# --- the report -----------------------------------------------------------------------------------


def of(error: float, naive: float | None = None, **change: object) -> Comparison:
    row = dataclasses.replace(ROWS["torch-matmul-8000-v100-fp64"], published=1.0, unit="GB/s")
    row = dataclasses.replace(row, **{"fitted": "", "comment": "", "apart": "", **change})
    return Comparison(row, 1 + error, groups.KERNELS, None if naive is None else 1 + naive)


def test_a_report_counts_tests_and_names_misses():
    found = Report((of(0.02), of(-0.10), of(0.06), of(0.9, fitted="X")))
    assert Errors.of(found.tests).median == pytest.approx(0.06)
    assert found.holds
    assert "3 rows tested, 1 fitted; 2 predictions are too fast" in found.text()
    assert "fitted: X" in found.text()
    missed = Report((*[of(0.02), of(-0.04)] * 3, of(0.5, id="far")))
    assert [p.row.id for p in missed.misses] == ["far"]
    assert not Report((*[of(0.02)] * 3, of(0.5))).holds  # a quarter of the rows is far off
    assert "1 of 1 misses have no known cause" in missed.text()
    assert not Report((of(0.2), of(-0.2))).holds


def test_rows_held_apart_have_bounds_of_their_own():
    near = [of(0.02), of(-0.04)] * 9
    for far, holds in ((0.1, True), (0.2, False)):
        apart = [of(error, apart="yes") for error in (far, 0.0, -far)]
        assert Report((*near, *apart)).holds == holds


def test_a_cause_that_was_not_shown_is_a_hypothesis():
    near = [of(0.02), of(-0.04)] * 3
    guessed, shown = (Report((*near, of(0.5, comment=c))) for c in ("caches", "shown: row x"))
    assert guessed.holds
    assert "hypothesis: caches" in guessed.text()
    assert "hypothesis" not in shown.text()


def test_skill_is_what_a_naive_model_does_not_know():
    errors = Errors.of([of(0.1, naive=0.5), of(-0.1, naive=0.4), of(0.1, naive=0.3), of(0.9)])
    assert (errors.rows, errors.within, errors.naive) == (4, 0.75, pytest.approx(0.4))
    assert errors.skill == pytest.approx(1 - 0.1 / 0.4)
    assert Errors.of([of(0.1)]).skill is None


def test_the_bias_is_one_of_speed():
    # Twice the bandwidth flatters, twice the seconds do not.
    assert of(1.0).speed_error == 1.0
    assert of(1.0, unit="s").speed_error == -0.5
    assert Errors.of([of(0.1), of(1.0, unit="s"), of(0.3)]).bias == pytest.approx(0.1)


def test_rows_are_counted_by_source_and_by_what_they_are_given():
    anchored = of(0.2, parameters={"single_gpu_images_per_s": "100"})
    found = Report((of(0.1), of(0.3, apart="yes"), anchored))
    assert [p.error for p in found.apart] == [pytest.approx(0.3)]
    assert found.anchored == [anchored]
    lines = {line[:28].strip(): line[28:].split() for line in found.text().splitlines()}
    assert lines["all"][:3] == ["3", "1", "20.0%"]
    assert lines["sources held apart"][:3] == ["1", "1", "30.0%"]
    assert lines["not anchored"][:3] == ["2", "1", "20.0%"]
    assert lines["anchored"][:3] == ["1", "1", "20.0%"]


def test_a_source_of_many_rows_counts_as_one_of_few():
    many = [of(error, url="https://github.com/a/many/x") for error in (0.0, 0.1, 0.2, 0.3, 0.4)]
    few = [of(-0.6, url="https://github.com/a/few/y"), of(0.7, url="https://example.org/z")]
    errors = Errors.of([*many, *few])
    assert (errors.sources, errors.by_source) == (3, pytest.approx(0.6))
    assert (errors.median, errors.mean) == (pytest.approx(0.3), pytest.approx(2.3 / 7))


def test_the_newest_blind_round_stands_by_itself():
    old, new = of(0.1, apart="2026-11-26"), of(0.5, apart="2026-11-27")
    found = Report((of(0.0), of(0.2, apart="yes"), old, new))
    assert found.blind == [new]
    assert len(found.apart) == 3
    assert "blind, 2026-11-27" in found.text()
    assert not Report((of(0.0), of(0.2, apart="yes"))).blind
    newer = of(0.3, apart="2026-11-29")
    assert Report(found.predictions, (newer,)).blind == [newer]


def test_a_blind_round_is_kept_as_it_was_predicted():
    before = predicted_blind()
    assert len({p.row.apart for p in before}) == 1
    assert {p.group for p in before} <= set(groups.GROUPS)
    assert not {p.row.id for p in before} & set(ROWS)  # what is predicted again is no such round
    known = {row.origin for row in ROWS.values()}
    assert not {p.row.origin for p in before} & known


def test_units():
    run = SimulatedRun(2.0, samples=6, flops=4e12, bytes=8e9, gpus=3, ratio=0.5)
    assert run.in_unit("s") == 2.0
    assert run.in_unit("images/s") == 3.0
    assert run.in_unit("images/s/gpu") == 1.0
    assert run.in_unit("TFLOP/s") == 2.0
    assert run.in_unit("GB/s") == 4.0
    assert run.in_unit("speedup") == 0.5


def test_the_command(capsys, tmp_path):
    assert main(["--only", "d2l-products-one-gpu"]) == 0
    assert "d2l-products-one-gpu" in capsys.readouterr().out
    assert main(["--only", "nothing"]) == 2
    assert "no row and no workload called 'nothing'" in capsys.readouterr().err
    assert main(["--csv", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
    rows = tmp_path / "rows.csv"
    rows.write_text(
        "id,workload,parameters,machine,published,unit,source,url,table,note\n"
        "slow,matmul,m=4000; n=4000; k=4000; dtype=float32,1x-v100-nvswitch,9,s,a,https://b,c,\n"
    )
    assert main(["--csv", str(rows)]) == 1
    assert "1 of 1 misses have no known cause" in capsys.readouterr().out


# --- networks and schedules -----------------------------------------------------------------------


def count(net: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def test_networks_have_the_published_number_of_parameters():
    with torch.device("meta"):
        assert round(count(amoebanet.amoebanet_d(layers=18, filters=208)) / 1e6, 1) == 81.5
        assert round(count(bert.Bert(layers=24, hidden=1024, heads=16)) / 1e6) == 335


def test_networks_are_made_anew_on_their_device_as_their_makers_make_them():
    models = pytest.importorskip("torchvision").models
    with torch.device("meta"):
        expected = models.resnet18().state_dict()
    with measuring.gpus(boxes.machine("1x-v100-nvswitch")) as (device,):
        one, other = (networks.network("resnet18", device) for _ in range(2))
        found = one.state_dict()
        assert {k: (t.shape, t.dtype, t.stride()) for k, t in found.items()} == {
            k: (t.shape, t.dtype, t.stride()) for k, t in expected.items()
        }
        assert {t.device for t in found.values()} == {device}
        assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in one.parameters())
        assert not {*map(id, one.parameters())} & {*map(id, other.parameters())}
        assert one(torch.empty(2, 3, 64, 64, device=device)).shape == (2, 1000)


TWO = Machine(
    "two",
    (Accelerator("a", {"float32": 1.0}, 1.0, 1),) * 2,
    Host("host"),
    Link("bus", 0.0, 1.0),
    Link("peer", 0.0, 1.0),
)


def test_gpipe_by_hand():
    stage = StageCost(forward_s=1.0, backward_s=2.0, sent_bytes=0)
    # One stage and two micro-batches: 2 forwards, 2 + 2 backwards, 1 forward again.
    assert pipelines.gpipe_s([stage], 2, TWO) == 7.0
    assert pipelines.gpipe_s([stage], 2, TWO, keeps_last=False) == 8.0
    # Two stages: forwards end at 3; the last stage goes back from 3 to 5, and to 8 with a forward
    # again; the first stage from 5 to 7, computes again and is ready when the gradient comes at 8.
    assert pipelines.gpipe_s([stage] * 2, 2, TWO) == 10.0
    # What is sent takes a second a byte: forwards end at 4 (1, sent at 2, 3, 4), the last stage is
    # back at 6 and 9, and the first has the second gradient at 10.
    slow = dataclasses.replace(stage, sent_bytes=1)
    assert pipelines.gpipe_s([slow] * 2, 2, TWO) == 12.0


def test_flops_of_a_transformer_are_those_of_its_authors():
    # Narayanan et al. 2021: 1.7 billion parameters, 32 GPUs at 137 TFLOP/s.
    model, layouts = transformers.model_and_layouts(
        Parameters(ROWS["megatron-1.7b-t1-p1"].parameters)
    )
    expected = 96 * 512 * 2048 * 24 * 2304**2 * (1 + 2048 / (6 * 2304) + 51200 / (16 * 24 * 2304))
    assert model.flops(layouts[0].samples, recompute=True) == pytest.approx(expected)
    assert [layout.micro_batch for layout in layouts] == [1, 2, 4, 8, 16]
    assert {layout.mesh.size for layout in layouts} == {32}
    assert round(model.parameters / 1e9, 1) == 1.7


def test_a_row_may_say_how_replicas_share_and_attention_is_computed():
    text = {
        "layers": "2",
        "hidden": "512",
        "heads": "8",
        "sequence": "256",
        "dropout": "0",
        "tensor": "1",
        "pipeline": "1",
        "data": "8",
        "micro_batch": "2",
        "micro_batches": "3",
        "zero": "3",
        "overlap": "true",
        "gradient_bytes": "2",
        "attention": "fused",
    }
    machine = boxes.machine("8x-a100-sxm4-80gb")
    runs = {}
    for counts in ("computed", "model"):
        p = Parameters({**text, "recompute": "true", "counts": counts})
        runs[counts] = transformers.megatron(p, machine)
        assert p.unused() == []
    model, (layout,) = transformers.model_and_layouts(Parameters(text))
    assert (layout.zero, layout.attention, layout.overlap, layout.gradient_bytes) == (
        *(3, "fused", True),
        2,
    )
    assert model.dropout == 0
    assert runs["computed"].seconds == runs["model"].seconds
    assert runs["model"].flops == pytest.approx(model.flops(48) / 8)
    assert runs["computed"].flops == pytest.approx(model.flops(48, recompute=True) / 8)
