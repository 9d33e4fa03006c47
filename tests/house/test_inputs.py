"""What is no number, text or machine is refused by name, by every function of `par`."""

import inspect
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from math import inf, nan
from pathlib import Path

import pytest
import torch
from torch import nn

import d2lpar as par
from d2lpar.machines.collective_cost import collective_s, fabric_of
from d2lpar.timeline.inputs import Count, NotNegative, Share, check_fields, checked, require

machines, pipeline, planner, scaling = par.machines, par.pipeline, par.planner, par.scaling

# --- one argument ---------------------------------------------------------------------------------


@checked
def _asks(
    count: Count = 1,
    seconds: NotNegative = 0.0,
    text: str | None = None,
    flag: bool = False,
    counts: Iterable[Count] = (),
    table: Mapping[str, float] | None = None,
    exchange: Callable[[float], float] = abs,
    link: machines.Link | None = None,
) -> int:
    return count


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("count", 0, "a whole number from 1 on"),
        ("count", True, "a whole number from 1 on"),
        ("count", 1.5, "a whole number from 1 on"),
        ("seconds", -1e-9, "a number from zero on"),
        ("seconds", nan, "a number from zero on"),
        ("seconds", inf, "a number from zero on"),
        ("seconds", torch.tensor(1.0), "a number from zero on"),
        ("text", 7, "a text or None"),
        ("flag", 1, "True or False"),
        ("counts", "12", "an iterable, each member a whole number from 1 on"),
        ("counts", [2, 0], "an iterable, each member a whole number from 1 on"),
        ("counts", torch.tensor(1), "an iterable, each member a whole number from 1 on"),
        ("table", {"a": "b"}, "a mapping from a text to a number or None"),
        ("exchange", 3, "a function"),
        ("link", "nvlink", "a Link or None"),
    ],
)
def test_a_wrong_argument_is_named_with_what_it_may_be(name, value, what):
    with pytest.raises(ValueError, match=f"^{name} of asks must be {what}, not "):
        _asks(**{name: value})


def test_right_arguments_pass_as_they_are():
    once = iter([3, 4])
    assert _asks(2, 0.5, "a", True, once, {"a": inf}, len, None) == 2
    assert list(once) == [3, 4]
    with pytest.raises(TypeError, match="unexpected keyword argument 'counted'"):
        _asks(counted=3)


def test_numbers_of_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")
    assert _asks(numpy.int64(3), numpy.float32(0.5)) == 3


def test_a_field_of_a_dataclass_is_named_with_its_record():
    @dataclass(frozen=True)
    class Named:
        name: str
        __post_init__ = check_fields

    Named.__annotations__["name"] = str
    with pytest.raises(ValueError, match="name of Named must be a text, not 3"):
        Named(3)
    with pytest.raises(ValueError, match=r"latency_s of bus must be a number from zero on, not -1"):
        machines.Link("bus", -1, 1e9)
    require("a plan", Share, taken=1)


# --- all of `par` ---------------------------------------------------------------------------------

NODE = machines.machine("8x-a100-nvswitch")
GRADIENTS = (scaling.Gradient(1000, 0.1), scaling.Gradient(2000, 0.2))
STEP = scaling.DeviceStep(0.2, 0.3, GRADIENTS)
PROFILE = scaling.Profile.of({1: STEP, 32: STEP.scaled_to(3.0)})
NETWORK = scaling.Network.of(NODE, machines.NETWORKS["25gbe"])
EXCHANGE = scaling.ring(NETWORK)
CONVERGENCE = scaling.Convergence(100.0, 64.0)
MODEL = planner.model("gpt-2-124m")
LAYOUT = planner.Layout(planner.Mesh())
PLANS = planner.plans(MODEL, NODE, batch=8)
ORDERS = pipeline.orders(pipeline.gpipe(2, 4))
COSTS = [pipeline.StageCost(1.0, 2.0, sent_bytes=100)] * 2
STAGES = [nn.Linear(2, 2), nn.Linear(2, 2)]


def _fields(record: object) -> dict[str, object]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _all(schedule: Callable[..., Iterator]) -> Callable[..., list]:
    return lambda **options: list(schedule(**options))


def _step_of_net() -> object:
    return STAGES[0](torch.ones(1, 2)).sum().backward() or OPTIMIZER.step()


OPTIMIZER = torch.optim.SGD(STAGES[0].parameters(), lr=0.1)
ALL_NETWORK = {"nbytes": 100.0, "network": NETWORK, "devices": 8}
GOOD: dict[Callable, dict[str, object]] = {
    machines.Accelerator: _fields(NODE.accelerators[0]),
    machines.Host: _fields(NODE.host),
    machines.Link: _fields(NODE.host_link),
    machines.Machine: _fields(NODE),
    machines.machine: {"which": NODE},
    machines.save: {"machine": NODE},
    NODE.host_link.seconds: {"nbytes": 3},
    NODE.accelerators[0].rate: {"dtype": "float32"},
    NODE.accelerators[0].attainable: {"intensity": 1.0, "dtype": "float32"},
    NODE.accelerators[0].ridge_point: {"dtype": "float32"},
    NODE.with_accelerators: {"count": 4},
    NODE.with_peer: {"peer": None},
    NODE.only: {"numbers": [0, 1]},
    NODE.uplink_of: {"accelerator": 0},
    NODE.cluster: {"nodes": 2, "network": machines.NETWORKS["25gbe"], "network_shared_by": 4},
    planner.Experts: {"count": 8, "top_k": 2},
    planner.Layout: _fields(LAYOUT),
    planner.Mesh: {"data": 2, "pipeline": 2, "tensor": 2, "context": 2},
    planner.Transformer: _fields(MODEL) | {"name": "a", "source": ""},
    planner.Wiring.of: {"machine": NODE},
    planner.best: {"found": PLANS},
    planner.explain: {"found": PLANS},
    planner.gpus_that_do: {"plan": PLANS[0]},
    planner.memory: {"model": MODEL, "layout": LAYOUT},
    planner.model: {"which": MODEL},
    planner.plans: {
        name: parameter.default
        for name, parameter in inspect.signature(planner.plans).parameters.items()
    }
    | {"model": MODEL, "machine": NODE, "batch": 8},
    planner.relative_uncertainty: {"accelerator": NODE.accelerators[0]},
    planner.state_bytes: {"parameters": 100, "data": 2, "zero": 1},
    planner.step: {"model": MODEL, "layout": LAYOUT, "machine": NODE},
    planner.ties: {"found": PLANS},
    MODEL.flops: {"samples": 2, "recompute": False, "causal": False},
    MODEL.layer_parameters: {"tensor": 1, "expert": 1},
    scaling.Convergence: {"min_steps": 10.0, "critical_batch": 2.0},
    scaling.DeviceStep: _fields(STEP),
    scaling.Gradient: _fields(GRADIENTS[0]),
    scaling.Level: _fields(NETWORK.levels[0]),
    scaling.Network: _fields(NETWORK),
    scaling.Network.of: {
        "machine": NODE,
        "network": machines.NETWORKS["25gbe"],
        "ports": 1,
        "nodes_per_rack": 2,
        "oversubscription": 1.0,
    },
    scaling.Overhead: _fields(scaling.NO_OVERHEAD),
    scaling.Profile: _fields(PROFILE),
    scaling.Profile.of: {"steps": {1: STEP}},
    scaling.buckets: {"gradients": GRADIENTS, "bucket_bytes": 10},
    scaling.counts: {"most": 16, "node": 1},
    scaling.fit_convergence: {"steps": {64: 9000, 128: 5000, 512: 1600}},
    scaling.half_precision: {"exchange": EXCHANGE, "memory_bytes_per_s": 1e9},
    scaling.half_precision(EXCHANGE, 1e9): {"nbytes": 10, "devices": 8},
    **{method: {"network": NETWORK} for method in scaling.METHODS.values()},
    **{method(NETWORK): {"nbytes": 100.0, "devices": 8} for method in scaling.METHODS.values()},
    **dict.fromkeys(
        (scaling.hierarchical_bytes, scaling.ring_bytes, scaling.store_bytes), ALL_NETWORK
    ),
    scaling.runs: {
        "convergence": CONVERGENCE,
        "profile": PROFILE,
        "exchange": EXCHANGE,
        "batches": [1, 4],
        "devices": [1, 8],
        "bucket_bytes": None,
        "overhead": scaling.NO_OVERHEAD,
    },
    scaling.step_s: {"step": STEP, "exchange_s": float, "bucket_bytes": 10},
    scaling.strong: {"profile": PROFILE, "exchange": EXCHANGE, "samples": 32, "devices": [1, 8]},
    scaling.weak: {
        "profile": PROFILE,
        "exchange": EXCHANGE,
        "batch": 4,
        "devices": [1, 8],
        "accumulate": 1,
        "bucket_bytes": None,
        "overhead": scaling.NO_OVERHEAD,
    },
    scaling.timed_step: {
        "step": _step_of_net,
        "net": STAGES[0],
        "optimizer": OPTIMIZER,
        "repeats": 1,
    },
    CONVERGENCE.steps: {"samples": 2},
    CONVERGENCE.examples: {"samples": 2},
    STEP.accumulated: {"times": 2},
    STEP.scaled_to: {"seconds": 2.0},
    STEP.with_buckets: {"gathered": [[0, 1]]},
    NETWORK.sizes: {"devices": 8},
    NETWORK.fabric_of: {"devices": 8},
    PROFILE.at: {"batch": 4},
    PROFILE.bucketed: {"bucket_bytes": None},
    pipeline.Pipeline: {
        "stages": STAGES,
        "devices": ["cpu", "cpu"],
        "schedule": pipeline.one_f_one_b,
    },
    pipeline.StageCost: _fields(COSTS[0]),
    pipeline.check: {
        "orders": ORDERS,
        "stages": 2,
        "micro_batches": 4,
        "owners": [0, 1],
        "most_in_flight": [4, 4],
        "receives_ahead": 2,
    },
    pipeline.require: {"orders": ORDERS, "stages": 2, "micro_batches": 4},
    _all(pipeline.gpipe): {"ranks": 2, "micro_batches": 4},
    _all(pipeline.one_f_one_b): {"ranks": 2, "micro_batches": 4},
    _all(pipeline.interleaved_1f1b): {"ranks": 2, "micro_batches": 4, "chunks": 2},
    _all(pipeline.zero_bubble_h1): {"ranks": 2, "micro_batches": 4},
    pipeline.in_flight: {"orders": ORDERS},
    pipeline.in_slots: {"orders": ORDERS},
    pipeline.orders: {"slots": [*pipeline.gpipe(2, 4)]},
    pipeline.simulate: {
        "orders": ORDERS,
        "costs": COSTS,
        "link": NODE,
        "recompute": False,
        "handover_s": 0.0,
    },
    pipeline.stage_costs: {"stages": STAGES, "x": torch.ones(2, 2), "accumulate": True},
}
ENORMOUS = (10**30, 10**400)
WRONG = (
    *ENORMOUS,
    None,
    "x",
    -1,
    0,
    0.5,
    nan,
    inf,
    True,
    [],
    {},
    ["x"],
    [-1],
    object(),
    torch.tensor(1.0),
    -inf,
    1e308,
    5e-324,
    10**9,
    [nan],
    [1e308],
    [10**9],
)
MOST_S = 20.0  # on a busy machine; what is refused takes none of it
ASKS_NOTHING = {"recorded", "performed", "load", "this_machine"}  # of ranks, a timeline, a file
MADE_BY_OTHERS = {"Plan", "Memory", "StepTime", "RunToTarget", "Speed", "Wiring", "Simulation"}
OF_TYPING = {"Exchange", "Named", "Orders", "Slot", "Finding", "Operation", "ScheduleError"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """A text is a good name of a file, and so a file is written."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("function", GOOD, ids=lambda f: getattr(f, "__qualname__", "instance"))
def test_nothing_wrong_ends_inside(function, tmp_path):
    """It is an answer, or a ValueError that says something of the value: no TypeError from within,
    no division by zero."""
    good = GOOD[function] | ({"path": tmp_path / "m.json"} if function is machines.save else {})
    function(**good)
    with room_of(2 * 10**9):
        for name in good:
            for value in WRONG:
                if not (name == "repeats" and value == 10**9):
                    _answers_or_refuses(function, good | {name: value}, name)


def _answers_or_refuses(function: Callable, options: dict, name: str) -> None:
    """Torch itself says what has no dimensions to multiply."""
    begin_s = time.monotonic()
    with suppress(ValueError):
        try:
            found = function(**options)
        except RuntimeError as error:
            if "1D" not in str(error):
                raise
        else:
            asked = options[name]
            assert _has_nan(asked) or not _has_nan(found), (function, name, asked)
    assert time.monotonic() - begin_s < MOST_S, (function, name, options[name])


def _has_nan(found: object, deep: int = 4) -> bool:
    """Whether a result is no number somewhere."""
    if is_dataclass(found) and not isinstance(found, type):
        found = [getattr(found, field.name) for field in fields(found)]
    if isinstance(found, Mapping):
        found = [*found.values()]
    if isinstance(found, (list, tuple)):
        return deep > 0 and any(_has_nan(each, deep - 1) for each in found[:50])
    return isinstance(found, float) and found != found


@contextmanager
def room_of(nbytes: int) -> Iterator[None]:
    """More memory than this is not there."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _enormous_model(**sizes: int) -> planner.Transformer:
    return planner.model(replace(MODEL, **sizes))


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda n: scaling.weak(PROFILE, EXCHANGE, batch=4, devices=[n]), "devices of weak"),
        (lambda n: scaling.counts(n), "most of counts must be a whole number .*, below 2"),
        (lambda n: NODE.only(range(n)), "accelerators 0 to 7; choose some of them"),
        (lambda n: NODE.with_accelerators(n), "1 to 65536 accelerators, not 10"),
        (lambda n: planner.Mesh(data=n), "65536 accelerators at most: take smaller axes"),
        (lambda n: planner.plans(MODEL, NODE, batch=n), "batch is .* below 2"),
        (
            lambda n: planner.plans(_enormous_model(layers=n), NODE, batch=8),
            r"below 2.*'layers': 10",
        ),
        (
            lambda n: planner.step(MODEL, planner.Layout(planner.Mesh(), n // 10**14), NODE),
            r"activations of 10{16} samples .* take smaller sizes",
        ),
        (lambda n: next(pipeline.gpipe(2, n)), "micro_batches of a schedule must be .*below 2"),
        (lambda n: next(pipeline.one_f_one_b(n // 10**20, 1)), "10000000000 ranks .* take fewer"),
        (lambda n: next(pipeline.zero_bubble_h1(2, n // 10**20)), "slots has .* take fewer"),
        (lambda n: next(pipeline.interleaved_1f1b(2, 2, n // 10**20)), "take fewer"),
        (lambda n: pipeline.require(ORDERS, stages=2, micro_batches=n // 10**20), "take fewer"),
        (lambda n: pipeline.check(ORDERS, stages=n // 10**20, micro_batches=2), "take fewer"),
        (lambda n: par.devices(n, kind="virtual"), "65536 accelerators, not 10"),
        (lambda n: par.devices(n, machine=n, kind="virtual"), "a machine is a name"),
        (lambda n: par.simulate(NODE, n).__enter__(), "65536 accelerators, not 10"),
        (lambda n: par.run_ranks(print, n), "4096 at most, not 10*: ask for fewer"),
        (lambda n: par.cluster(n), "4096 at most, not 10*: ask for fewer"),
        (
            lambda n: par.measure(print, repeats=n),
            "repeats of measure must be a whole number from 1 to 1000000",
        ),
    ],
)
def test_what_nobody_could_wait_for_is_refused_at_once(ask, named):
    with pytest.raises(ValueError, match=named):
        ask(10**30)


def test_layers_that_are_many_are_counted_and_not_tried_one_by_one():
    with pytest.raises(ValueError, match=r"of .* at least|fit"):
        planner.best(planner.plans(_enormous_model(layers=10**15), NODE, batch=8))


@pytest.mark.parametrize("which", ["gpu7", "cuda:x", "virtual"])
def test_a_pipeline_names_the_device_that_there_is_not(which):
    with pytest.raises(ValueError, match=f"no device is called '{which}': give those that par"):
        pipeline.Pipeline(STAGES, [which])


def test_a_pipeline_names_the_kind_of_device_that_torch_was_built_without():
    with pytest.raises(ValueError, match=r"there is no device 'xpu:0' \(.*: give those that par"):
        pipeline.Pipeline([nn.Linear(2, 2)], ["xpu:0"])


# --- names of `par` itself ------------------------------------------------------------------------


def _entered(block: Callable) -> Callable:
    def ask(**options: object) -> object:
        with block(**options) as found:
            return found

    return ask


ALONE: dict[str, tuple[Callable, dict[str, object]]] = {
    "simulate": (_entered(par.simulate), {"machine": NODE, "n": 2}),
    "emulate_cuda": (_entered(par.emulate_cuda), {"n": 2, "machine": None}),
    "record": (_entered(par.record), {"devices": None}),
    "host_work": (par.host_work, {"seconds": 1.0}),
    "machine": (par.machine, {"memory_bytes": 10**10}),
    "measure": (par.measure, {"repeats": 2, "warm_up": 1, "devices": None}),
    "Timer": (par.Timer, {"devices": None}),
    "clock_name": (par.clock_name, {"devices": None}),
    "run_ranks": (par.run_ranks, {"devices": 2}),
    "run_alike": (par.run_alike, {"machine": NODE, "ranks": 2}),
    "cluster": (par.cluster, {"n": 2, "timeout_s": 60.0}),
    "Checkpoints": (par.Checkpoints, {"keep": 2}),
    "predict": (par.predict, {"value": 1.0}),
    "fashion_mnist": (
        par.fashion_mnist,
        {"batch_size": 4, "seed": 0, "train_size": 8, "test_size": 8},
    ),
    "calibrate": (par.calibrate, {"budget_s": 0.01}),
    "plan_model": (par.plan_model, {"batch": 8, "gpus": 1, "sequence": 128, "price": 2.0}),
    "critical_path": (par.Timeline("simulated").critical_path, {"slack_s": 0.0}),
}
# What is given besides, and is no number.
BESIDES: dict[str, dict[str, object]] = {
    "measure": {"work": int},
    "emulate_cuda": {"verbose": False},
    "run_ranks": {"function": int},
    "run_alike": {"function": int},
    "host_work": {"name": "loading"},
    "Checkpoints": {"folder": "kept"},
    "predict": {"question": "how many?"},
    "fashion_mnist": {"root": "synthetic"},
    "calibrate": {"device": "cpu"},
    "plan_model": {"model": "gpt2", "machine": NODE},
}
NO_NUMBERS = {
    "report", "portable", "challenge", "check", "doctor", "trace_graph", "hazards", "syncs",
    "without_nccl", "shape_only", "CourseText",
    "Timeline", "devices",
}  # fmt: skip
SMALL = (nan, inf, -inf, -1, 1e308, 5e-324, 10**9, 10**12, True, "x", 0)
ENOUGH = {
    ("Checkpoints", "keep"),
    ("host_work", "seconds"),
    ("machine", "memory_bytes"),
    ("plan_model", "batch"),
    ("plan_model", "price"),
}
ENOUGH |= {("fashion_mnist", name) for name in ("batch_size", "seed", "train_size", "test_size")}


@pytest.mark.parametrize(
    ("function", "name"), [(f, name) for f, (_, good) in ALONE.items() for name in good]
)
def test_numbers_given_to_par_are_refused_by_name_at_once(function, name, monkeypatch):
    """Or they are good ones: as many as one likes (`ENOUGH`), or such that nothing follows."""
    monkeypatch.setenv("D2LPAR_RANKS", "virtual")
    monkeypatch.setattr("d2lpar.lesson.data._source", _no_images)
    monkeypatch.setattr("d2lpar.machines.measuring.calibrating._device", _no_images)
    ask, good = ALONE[function]
    for value in SMALL:
        options = BESIDES.get(function, {}) | good | {name: value}
        begin_s = time.monotonic()
        refusal = None
        try:
            with room_of(2 * 10**9):
                ask(**options)
        except _BegunError:
            pass
        except (ValueError, RuntimeError) as error:
            refusal = error
        refused = refusal is not None
        if refused:  # torch itself reads the names of devices
            assert isinstance(refusal, ValueError) or value == "x", (value, refusal)
            assert name in str(refusal) or f"{value}" in str(refusal), (value, refusal)
        assert time.monotonic() - begin_s < MOST_S, value
        is_enough = (function, name) in ENOUGH and value in (0, 10**9, 10**12)
        is_answer = name in ("value", "slack_s") and value in (-1, 0, 1e308, 5e-324, 10**9, 10**12)
        is_none = value == 0 and name in ("warm_up", "keep", "seed", "slack_s", "seconds")
        assert refused or is_enough or is_answer or is_none, (function, name, value)


class _BegunError(Exception):
    pass


def _no_images(*_: object) -> None:
    raise _BegunError


def test_every_name_of_par_is_asked():
    functions = {name for name in par.__all__ if callable(getattr(par, name))}
    assert functions - NO_NUMBERS - {"timing"} <= {*ALONE}


@pytest.mark.parametrize("field", ["latency_s", "bytes_per_s"])
@pytest.mark.parametrize("value", [1e308, 5e-324, nan, inf])
def test_a_link_that_no_machine_has_is_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} of .* must be a number"):
        replace(NODE.host_link, **{field: value})


# The slowest and fastest that may be said: what follows are numbers.
EXTREME = [machines.Link("l", latency, rate) for latency in (0, 1e30) for rate in (1e-30, 1e30)]


@pytest.mark.parametrize("link", EXTREME)
def test_extreme_links_give_numbers(link):
    machine = replace(NODE, host_link=link, peer=link)
    for name in ("all_reduce", "all_gather", "broadcast", "all_to_all"):
        assert not _has_nan(collective_s(name, 10**9, fabric_of(machine, 8)))
    assert not _has_nan(planner.plans(MODEL, machine, batch=8)[:3])
    assert not _has_nan(
        scaling.weak(PROFILE, scaling.ring(scaling.Network.of(machine)), batch=4, devices=[8])
    )


DEVICES = {"n": 2, "machine": NODE, "kind": "virtual", "verbose": False}


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:20])
def test_devices_refuse_what_is_wrong_by_name(name, value):
    """None is a good machine and kind, an empty text no kind at all, and verbose any truth."""
    with suppress(ValueError):
        par.devices(**(DEVICES | {name: value}))


@pytest.mark.parametrize("budget_s", [None, "x", -1, 0, nan, inf, True, [], {}, object()])
def test_a_calibration_takes_a_number_of_seconds(budget_s):
    with pytest.raises(ValueError, match="budget_s of calibrate must be a number of seconds above"):
        par.calibrate(budget_s=budget_s)


def test_every_public_function_is_asked():
    asked = {getattr(function, "__name__", "") for function in GOOD}
    asked |= {name for room in (pipeline,) for name in room.SCHEDULES}
    asked |= {"gpipe", "one_f_one_b", "interleaved_1f1b", "zero_bubble_h1"}
    for room in (machines, pipeline, planner, scaling):
        names: Sequence[str] = getattr(room, "__all__", None) or [
            name
            for name, value in vars(room).items()
            if inspect.isfunction(value) and value.__module__ == room.__name__ and name[0] != "_"
        ]
        functions = {name for name in names if callable(getattr(room, name))}
        assert functions <= asked | ASKS_NOTHING | MADE_BY_OTHERS | OF_TYPING
