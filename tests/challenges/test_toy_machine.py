"""The toy machine: what its schedules are published to take, and what it says of wrong programs."""

import random

import pytest

from d2lpar.checks.challenges import of_toys
from d2lpar.parallelism.toy_machine import Gpu, Job, play

# Of each puzzle: its job, its optimum, and whether it is a pipeline.
SCHEDULES = {
    "toy_accumulate": (of_toys.accumulate_job, of_toys.accumulate_ms, False),
    "toy_ddp": (of_toys.ddp_job, of_toys.ddp_ms, False),
    "toy_zero_1": (of_toys.zero_1_job, of_toys.zero_1_ms, False),
    "toy_fsdp": (of_toys.fsdp_job, of_toys.fsdp_ms, False),
    "toy_gpipe": (of_toys.gpipe_job, of_toys.pipeline_ms, True),
    "toy_1f1b": (of_toys.one_f_one_b_job, of_toys.pipeline_ms, True),
}
WHOLE = Job(ranks=2, layers=2, batches=2, capacity_gb=999)
SHARDS = Job(2, 2, 2, 999, states_in_shards=True, weights_in_shards=True)
PIPELINE = Job(2, 2, 2, 999, pipeline=True)
ONE = Job(1, 1, 2, 999)


@pytest.fixture(scope="module")
def solutions(tmp_path_factory):
    from test_challenges import GOOD

    names = {}
    exec(compile(GOOD, "challenges.py", "exec"), names)
    return names


def played(program, job):
    gpus = [Gpu(rank, job) for rank in range(job.ranks)]
    for gpu in gpus:
        program(gpu)
    return play([gpu.orders for gpu in gpus], job)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_course_s_programs_take_the_published_times_and_no_more_memory(name, solutions):
    job_of, optimum_ms, pipeline = SCHEDULES[name]
    sizes = of_toys.pipeline_sizes if pipeline else of_toys.data_sizes
    for seed in range(100):
        job = job_of(*sizes(random.Random(seed)))
        run = played(solutions[name], job)
        assert run.problem == ""
        assert run.ms == pytest.approx(optimum_ms(job)), job
        assert max(map(run.peak_gb, range(job.ranks))) <= job.capacity_gb


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_1f1b_keeps_as_many_activations_as_ranks_follow_and_gpipe_all(ranks, solutions):
    """Narayanan et al. 2019; the rest is a layer's weights, states and gradient, 16 GB."""
    job = Job(ranks, ranks, 3 * ranks, 999, pipeline=True)
    for name, kept in (
        ("toy_1f1b", [ranks - rank for rank in range(ranks)]),
        ("toy_gpipe", [3 * ranks] * ranks),
    ):
        run = played(solutions[name], job)
        assert [(run.peak_gb(rank) - 16) / 2 for rank in range(ranks)] == kept


def test_the_bubble_is_that_of_the_formula(solutions):
    run = played(solutions["toy_gpipe"], Job(4, 4, 8, 999, pipeline=True))
    busy = sum(box.end_ms - box.start_ms for box in run.boxes if box.verb != "update")
    assert 1 - busy / (4 * (run.ms - 2)) == pytest.approx(3 / 11)  # (p - 1) / (M + p - 1)


def test_exchanges_run_beside_the_program_and_compute_holds_it_up():
    def program(gpu):
        for layer in gpu.layers:
            gpu.forward(layer, gpu.rank)
        gpu.backward(1, gpu.rank)
        gpu.reduce_scatter(1)
        gpu.backward(0, gpu.rank)

    boxes = {(b.verb, b.name): (b.start_ms, b.end_ms) for b in played(program, WHOLE).boxes}
    assert boxes["backward", "0"] == (8, 12)
    assert boxes["reduce_scatter", "R1"] == (8, 10)


# --- programs that cannot run, or end wrong: each with what is said of it -------------------------


def without_forward(gpu):
    gpu.backward(1, gpu.rank)


def twice_forward(gpu):
    gpu.forward(0, gpu.rank)
    gpu.forward(0, gpu.rank)


def from_the_middle(gpu):
    gpu.forward(1, gpu.rank)


def backward_from_the_front(gpu):
    for layer in gpu.layers:
        gpu.forward(layer, gpu.rank)
    gpu.backward(0, gpu.rank)


def others_batch(gpu):
    gpu.forward(0, 1 - gpu.rank)


def in_another_order(gpu):
    each_backward(gpu)
    for layer in gpu.layers if gpu.rank == 0 else gpu.layers[::-1]:
        gpu.reduce_scatter(layer)


def one_rank_is_missing(gpu):
    each_backward(gpu)
    if gpu.rank == 0:
        gpu.reduce_scatter(0)


def sum_forgotten(gpu):
    each_backward(gpu)
    for layer in gpu.layers:
        gpu.update(layer)


def sum_twice(gpu):
    each_backward(gpu)
    for layer in gpu.layers:
        for _ in range(2):
            gpu.reduce_scatter(layer)
            gpu.all_gather("gradients", layer)
        gpu.update(layer)


def gathers_unsummed(gpu):
    each_backward(gpu)
    gpu.all_gather("gradients", 0)


def update_after_each_batch(gpu):
    for batch in range(2):
        gpu.forward(0, batch)
        gpu.backward(0, batch)
        gpu.update(0)


def changed_meanwhile(gpu):
    gpu.forward(0, 0)
    gpu.backward(0, 0)
    gpu.forward(0, 1)
    gpu.update(0)
    gpu.backward(0, 1)


def never_updates(gpu):
    each_backward(gpu)


def each_backward(gpu):
    for layer in gpu.layers:
        gpu.forward(layer, gpu.rank)
    for layer in gpu.layers[::-1]:
        gpu.backward(layer, gpu.rank)


def without_weights(gpu):
    gpu.forward(0, gpu.rank)


def frees_too_early(gpu):
    gpu.all_gather("weights", 0)
    gpu.free(0)
    gpu.forward(0, gpu.rank)


def frees_shards(gpu):
    gpu.free(0)


def updates_without_sum(gpu):
    gpu.update(0)


def never_received(gpu):
    gpu.forward(gpu.rank, 0)


def nobody_sends(gpu):
    gpu.recv(0, gpu.before)
    gpu.forward(gpu.rank, 0)


def sends_nothing(gpu):
    gpu.send(0, gpu.after)


def others_layer(gpu):
    gpu.forward(0, 0)


def gathers_in_a_pipeline(gpu):
    gpu.all_gather("weights", gpu.rank)


@pytest.mark.parametrize(
    ("program", "job", "said"),
    [
        (without_forward, WHOLE, "there is no activation of layer 1 for batch 0"),
        (twice_forward, WHOLE, "this batch has been through this layer already"),
        (from_the_middle, WHOLE, "the output of layer 0 for batch 0 is not here"),
        (backward_from_the_front, WHOLE, "comes back from layer 1 for batch 0 is not here"),
        (others_batch, WHOLE, "batch 1 lies on rank 1"),
        (
            in_another_order,
            WHOLE,
            "reduce_scatter(1) on rank 1: this is its exchange number 1, and",
        ),
        (one_rank_is_missing, WHOLE, "rank 0 has called reduce_scatter(0) (line"),
        (one_rank_is_missing, WHOLE, "and rank 1 has not"),
        (sum_forgotten, WHOLE, "was updated with a sum over these batches: 0. Each of the 2"),
        (sum_twice, WHOLE, "these batches: 0 (2 times), 1 (2 times)"),
        (gathers_unsummed, WHOLE, "there is no shard of a summed gradient of layer 0 here"),
        (update_after_each_batch, ONE, "layer 0 on rank 0 has taken 2 steps"),
        (changed_meanwhile, ONE, "the weights of layer 0 have changed since"),
        (never_updates, WHOLE, "at the end shard 0 of layer 0 on rank 0 is what it was"),
        (without_weights, SHARDS, "only a shard of the weights of layer 0 is here"),
        (frees_too_early, SHARDS, "only a shard of the weights of layer 0 is here"),
        (frees_shards, SHARDS, "are not whole here, so there is nothing to free"),
        (updates_without_sum, SHARDS, "there is no shard of a summed gradient of layer 0"),
        (never_received, PIPELINE, "the output of layer 0 for batch 0 is not here"),
        (nobody_sends, PIPELINE, "it hangs: rank 1 waits in recv(0, 0) (line"),
        (sends_nothing, PIPELINE, "this rank has computed nothing for this batch yet"),
        (others_layer, PIPELINE, "this rank has layers 1 to 1 only"),
        (gathers_in_a_pipeline, PIPELINE, "there is nothing to exchange so"),
    ],
)
def test_what_is_wrong_is_said(program, job, said):
    assert said in played(program, job).problem


def test_memory_that_is_full_names_the_verb_and_its_line():
    """Weights and states are 24 GB, two activations 4 GB."""
    said = played(each_backward_and_sum, Job(2, 2, 2, 27)).problem
    line = each_backward.__code__.co_firstlineno + 2
    assert said.startswith(f"line {line} has forward(1, 0) on rank 0: out of memory")
    assert said.endswith("that makes 28 GB, and a GPU has 27 GB")
    assert played(each_backward_and_sum, Job(2, 2, 2, 999)).problem == ""


def each_backward_and_sum(gpu):
    each_backward(gpu)
    for layer in gpu.layers:
        gpu.reduce_scatter(layer)
        gpu.all_gather("gradients", layer)
        gpu.update(layer)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda gpu: gpu.forward(2, 0), "there is no layer 2: they are 0 to 1"),
        (lambda gpu: gpu.forward(0, -1), "there is no batch -1"),
        (lambda gpu: gpu.forward(0.0, 0), "a layer is a whole number, not 0.0"),
        (lambda gpu: gpu.all_gather("weight", 0), "not 'weight'"),
        (lambda gpu: gpu.send(0, gpu.rank), "is this rank itself"),
        (lambda gpu: gpu.recv(0, 7), "there is no rank 7"),
    ],
)
def test_arguments_that_are_none(call, error):
    with pytest.raises((ValueError, TypeError), match=error.replace("(", r"\(")):
        call(Gpu(0, PIPELINE))


def test_there_is_nobody_at_the_ends():
    first, last = Gpu(0, PIPELINE), Gpu(1, PIPELINE)
    assert (first.before, first.after, last.before, last.after) == (None, 1, 0, None)
    first.recv(0, first.before)
    last.send(0, last.after)
    assert first.orders == last.orders == []


def test_a_run_is_the_same_every_time(solutions):
    job = of_toys.fsdp_job(3, 4, 3)
    once, again = (played(solutions["toy_fsdp"], job) for _ in range(2))
    assert (once.boxes, once.changes) == (again.boxes, again.changes)


def test_memory_ends_where_it_began(solutions):
    for name, (job_of, _, pipeline) in SCHEDULES.items():
        job = job_of(*(of_toys.SHOWN_PIPELINE if pipeline else of_toys.SHOWN))
        run = played(solutions[name], job)
        for rank in range(job.ranks):
            assert run.memory(rank)[-1][1] == pytest.approx(job.start_gb(rank))


# --- what is called the optimum -------------------------------------------------------------------
#
# The formulas' docstrings say why no program is faster, and the course's programs are as fast. Here
# a search that knows neither begins with a program in which nothing hides.

OWN = "this rank's batch"
SEARCHES, STEPS = 5, 3000


def plain(job):
    """One verb after the other; where weights lie in shards, each layer is gathered and freed."""
    shards, layers = job.weights_in_shards, range(job.layers)
    verbs = []
    for verb, order in (("forward", layers), ("backward", layers[::-1])):
        for layer in order:
            if shards:
                verbs += [("all_gather", "weights", layer), (verb, layer, OWN), ("free", layer)]
            else:
                verbs += [(verb, layer, OWN)]
    for layer in layers[::-1]:
        verbs += [("reduce_scatter", layer)]
        if not job.states_in_shards:
            verbs += [("all_gather", "gradients", layer)]
        verbs += [("update", layer)]
        if job.states_in_shards and not shards:
            verbs += [("all_gather", "weights", layer)]
    return verbs


def run_of(verbs, job):
    def program(gpu):
        for verb, *arguments in verbs:
            getattr(gpu, verb)(*(gpu.rank if one == OWN else one for one in arguments))

    return played(program, job)


def neighbour(verbs, source):
    """Another program: a verb stands elsewhere, or two verbs are not there."""
    other = [*verbs]
    if source.random() < 0.2 and ("free", 0) in verbs:
        layer = source.choice([one[1] for one in other if one[0] == "free"])
        other.remove(("free", layer))
        if ("all_gather", "weights", layer) in other:
            at = [i for i, one in enumerate(other) if one == ("all_gather", "weights", layer)]
            del other[source.choice(at)]
        return other
    verb = other.pop(source.randrange(len(other)))
    other.insert(source.randint(0, len(other)), verb)
    return other


@pytest.mark.parametrize("name", ["toy_ddp", "toy_zero_1", "toy_fsdp"])
def test_a_search_that_knows_no_schedule_finds_the_optimum_and_nothing_faster(name):
    job_of, optimum_ms, _ = SCHEDULES[name]
    job = job_of(2, 3, 2)
    optimum, source, fastest = optimum_ms(job), random.Random(0), 1e9
    for _ in range(SEARCHES):
        verbs = plain(job)
        ms = run_of(verbs, job).ms
        assert run_of(verbs, job).problem == ""
        assert ms > 1.2 * optimum  # it has something to find
        for _ in range(STEPS):
            other = neighbour(verbs, source)
            run = run_of(other, job)
            if not run.problem and run.ms <= ms + (source.random() < 0.01):
                verbs, ms = other, run.ms
                assert ms > optimum - 1e-9, verbs
        fastest = min(fastest, ms)
        if fastest < optimum + 1e-9:
            break
    assert fastest == pytest.approx(optimum)
