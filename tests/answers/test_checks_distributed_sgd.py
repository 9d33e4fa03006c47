"""Wrong answers to the exercises of lesson 06, and what they are told."""

import cmath
import math
import re

import pytest
import running
import torch
from test_checks import SOLUTIONS, solution

from d2lpar import checks
from d2lpar.checks.distributed_sgd import BUGS


def busiest(**changed):
    """The right answer but for one method."""

    def answer(method, machines, gpus, nbytes):
        right = solution("distributed_sgd", "busiest_bytes")
        return changed.get(method.replace(", ", "_"), right_of(right, method))(
            machines, gpus, nbytes
        )

    return answer


def right_of(right, method):
    return lambda machines, gpus, nbytes: right(method, machines, gpus, nbytes)


def pushes_and_pulls(method, machines, gpus, nbytes):
    """Plausible: what the store's card sends and receives."""
    factor = 1 if method == "ring" else 2
    return factor * solution("distributed_sgd", "busiest_bytes")(method, machines, gpus, nbytes)


def one_machine(m, gpus, nbytes):
    """Plausible: a worker's card instead of the store's."""
    return gpus * nbytes


def ring_of_machines(m, gpus, nbytes):
    """Plausible: right for one GPU a machine."""
    return 2 * (m - 1) / m * nbytes


def ring_everywhere(m, gpus, nbytes):
    return 2 * (m * gpus - 1) / (m * gpus) * nbytes


def half_a_ring(m, gpus, nbytes):
    return (m * gpus - 1) / (m * gpus) * nbytes if m > 1 else 0


def ring_for_each_gpu(m, gpus, nbytes):
    return gpus * ring_everywhere(m, gpus, nbytes) if m > 1 else 0


def receives_what_it_sends(rank, step, n):
    return (rank - step) % n, (rank - step) % n


def goes_the_other_way(rank, step, n):
    """Plausible: right for a ring in which one sends to rank - 1."""
    return (rank + step) % n, (rank + step + 1) % n


def always_its_own_piece(rank, step, n):
    return rank, (rank - 1) % n


def keeps_to_its_own_piece(rank, step, n):
    """Right for n = 2: what came is not sent on before the spreading."""
    if step < n - 1:
        return always_its_own_piece(rank, step, n)
    return (rank - step) % n, (rank - step - 1) % n


def begins_the_spreading_anew(rank, step, n):
    """Plausible: all-gather as if each rank had finished the piece of its number."""
    step %= n - 1
    return (rank - step) % n, (rank - step - 1) % n


def spreads_one_piece_only(rank, step, n):
    if step < n - 1:
        return (rank - step) % n, (rank - step - 1) % n
    return (rank + 1) % n, rank


def as_in_the_lesson(rank, step, n):
    """Plausible: all sums are right, but rank r finishes piece r + 1."""
    return (rank - step) % n, (rank - step - 1) % n


def without_modulo(rank, step, n):
    return rank - step, rank - step - 1


def plain_sgd(gradient, w, lr, delay, steps):
    weights = [w]
    for _ in range(steps):
        weights.append(weights[-1] - lr * gradient(weights[-1]))
    return weights[1:]


def undoes_the_others(gradient, w, lr, delay, steps):
    """Plausible: computes and applies to the same, old weight."""
    weights = [w]
    for step in range(steps):
        old = weights[max(step - delay, 0)]
        weights.append(old - lr * gradient(old))
    return weights[1:]


def waits_at_first(gradient, w, lr, delay, steps):
    """Plausible: no update until a gradient has arrived."""
    weights = [w]
    for step in range(steps):
        change = lr * gradient(weights[step - delay]) if step >= delay else 0
        weights.append(weights[-1] - change)
    return weights[1:]


def one_step_older(gradient, w, lr, delay, steps):
    return solution("distributed_sgd", "stale_sgd")(gradient, w, lr, delay + 1, steps)


def with_the_start(gradient, w, lr, delay, steps):
    return [w, *solution("distributed_sgd", "stale_sgd")(gradient, w, lr, delay, steps)]


def last_weight_only(gradient, w, lr, delay, steps):
    return solution("distributed_sgd", "stale_sgd")(gradient, w, lr, delay, steps)[-1]


def shortest_step(batches, t1_s, t2_s, steps):
    return min(batches, key=lambda b: max(t1_s(b), t2_s))


def fewest_steps(batches, t1_s, t2_s, steps):
    return min(batches, key=steps)


def first_that_hides_sending(batches, t1_s, t2_s, steps):
    """Plausible: the rule of thumb t1 > t2."""
    return next((b for b in batches if t1_s(b) > t2_s), batches[-1])


def one_after_the_other(batches, t1_s, t2_s, steps):
    """Plausible: right without overlap."""
    return min(batches, key=lambda b: (t1_s(b) + t2_s) * steps(b))


def most_samples_a_second(batches, t1_s, t2_s, steps):
    return max(batches, key=lambda b: b / max(t1_s(b), t2_s))


def computing_only(batches, t1_s, t2_s, steps):
    return min(batches, key=lambda b: t1_s(b) * steps(b))


def seconds_instead(batches, t1_s, t2_s, steps):
    return min(max(t1_s(b), t2_s) * steps(b) for b in batches)


def place_in_the_list(batches, t1_s, t2_s, steps):
    return batches.index(solution("distributed_sgd", "best_batch")(batches, t1_s, t2_s, steps))


@pytest.mark.parametrize(
    ("exercise", "answer", "reason"),
    [
        ("busiest_bytes", pushes_and_pulls, "once to every GPU"),
        ("busiest_bytes", busiest(store=one_machine), "every GPU of every machine"),
        ("busiest_bytes", busiest(store_aggregated=one_machine), "once to each machine"),
        ("busiest_bytes", busiest(ring=ring_of_machines), "through all n"),
        ("busiest_bytes", busiest(ring=ring_everywhere), "needs no network"),
        ("busiest_bytes", busiest(ring=half_a_ring), "2 (n - 1) steps"),
        ("busiest_bytes", busiest(ring=ring_for_each_gpu), "on one link"),
        ("busiest_bytes", lambda *_: None, "number of bytes"),
        ("ring_plan", receives_what_it_sends, "rank 0 expects piece 0, but rank 1 sends piece 1"),
        ("ring_plan", goes_the_other_way, "n = 3, step 0: rank 0 expects piece 1"),
        ("ring_plan", always_its_own_piece, "n = 2, step 1: rank 0 replaces its piece 1"),
        ("ring_plan", keeps_to_its_own_piece, "n = 3, step 1: rank 0 adds to piece 2"),
        ("ring_plan", begins_the_spreading_anew, "n = 2, step 1: rank 0 replaces its piece 1"),
        ("ring_plan", spreads_one_piece_only, "n = 3: after step 3, the last"),
        ("ring_plan", as_in_the_lesson, "rank 0 has finished piece 1, expected piece 0"),
        ("ring_plan", without_modulo, "each from 0 to 1"),
        ("ring_plan", lambda *_: None, "two pieces"),
        ("stale_sgd", plain_sgd, "at the start weight"),
        ("stale_sgd", undoes_the_others, "must not be undone"),
        ("stale_sgd", waits_at_first, "applied nevertheless"),
        ("stale_sgd", one_step_older, "without delay"),
        ("stale_sgd", with_the_start, "one after each step"),
        ("stale_sgd", last_weight_only, "list of 12"),
        ("best_batch", shortest_step, "expected"),
        ("best_batch", fewest_steps, "expected"),
        ("best_batch", first_that_hides_sending, "expected"),
        ("best_batch", one_after_the_other, "expected"),
        ("best_batch", most_samples_a_second, "expected"),
        ("best_batch", computing_only, "expected"),
        ("best_batch", seconds_instead, "one of the batches"),
        ("best_batch", place_in_the_list, "expected 128, one of the batches"),
        ("best_batch", place_in_the_list, "got 4: the batch itself, not its place in the list"),
        ("stale_sgd", lambda *rest: [None] * rest[-1], "expected 0.700000 at [0], got None"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(exercise, answer, reason):
    verdict = getattr(checks, exercise)(answer)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_the_ring_that_is_called_right_sums_numbers(n):
    plan = solution("distributed_sgd", "ring_plan")
    start = torch.randn(n, n, 4, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    held = start.clone()  # [rank, piece, value]
    for step in range(2 * (n - 1)):
        sent = [held[rank, plan(rank, step, n)[0]].clone() for rank in range(n)]
        for rank in range(n):
            piece = plan(rank, step, n)[1]
            kept = held[rank, piece] if step < n - 1 else 0
            held[rank, piece] = kept + sent[rank - 1]
    torch.testing.assert_close(held, start.sum(0).expand(n, n, 4))


def test_stale_gradients_follow_the_solution_of_their_recurrence():
    """w' = w - lr * (w one step before), solved by the roots of x² = x - lr."""
    lr, steps = 0.4, 30
    got = solution("distributed_sgd", "stale_sgd")(lambda w: w, 1.0, lr, 1, steps)
    root = cmath.sqrt(1 - 4 * lr)
    a, b = (1 + root) / 2, (1 - root) / 2
    scale = (1 - lr - b) / (a - b)  # 1 at the start, 1 - lr after the first step
    for t, w in enumerate(got, start=1):
        assert math.isclose(w, (scale * a**t + (1 - scale) * b**t).real, abs_tol=1e-12)


@pytest.mark.parametrize("delay", [0, 1, 4, 9])
def test_stale_sgd_converges_up_to_a_learning_rate_that_falls_with_the_delay(delay):
    """On w² / 2 up to 2 sin(π / (4 delay + 2)) (Levin and May 1976)."""
    limit = 2 * math.sin(math.pi / (4 * delay + 2))
    below, above = (
        max(
            map(
                abs,
                solution("distributed_sgd", "stale_sgd")(lambda w: w, 1.0, lr, delay, 3000)[-50:],
            )
        )
        for lr in (0.97 * limit, 1.03 * limit)
    )
    assert below < 0.01
    assert above > 100


# --- the seven bugs


BUGGY = (SOLUTIONS / "../scripts/first_program.py").read_text(encoding="utf-8")
PIECES = {  # a piece of a repair's wrong text, and the message of `BUGS` that goes with it
    "from torch.nn": "ImportError",
    "VISIBLE_DEVICES": "KeyError",
    "0, 1": "no message: torch",
    "int(environ": "NameError",
    "args.prot": "AttributeError",
    "word_size": "TypeError",
    "findall": "IndexError",
}


def repairs():
    return solution("distributed_sgd", "REPAIRS")


def with_one_bug(piece):
    """The program, all of whose bugs but one are mended."""
    text = BUGGY
    for wrong, right in repairs().items():
        if piece not in wrong:
            text = text.replace(wrong, right)
    return text.replace("import subprocess\n", "import re\nimport subprocess\n")


def told(text):
    return checks.mended(lambda: text)


def test_the_program_has_all_seven_bugs():
    verdict = told(BUGGY)
    assert verdict.status == checks.WRONG
    assert "0 of 7 bugs are mended" in verdict.text
    assert verdict.text.count("\n") == 7


@pytest.mark.parametrize(("piece", "message"), PIECES.items())
def test_a_bug_that_is_left_is_named_and_is_alone(piece, message):
    verdict = told(with_one_bug(piece))
    assert verdict.status == checks.WRONG
    assert "6 of 7" in verdict.text
    assert message in verdict.text


@pytest.mark.parametrize("piece", [piece for piece in PIECES if piece != "0, 1"])
def test_a_bug_causes_the_message_that_is_told(piece, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    program = tmp_path / "one_bug.py"
    program.write_text(with_one_bug(piece), encoding="utf-8")
    ran = running.run("--quiet", "--gpus", 2, "--nproc-per-node", 2, program)
    messages = [message for _, message in BUGS if message.startswith(PIECES[piece])]
    assert messages
    raised = messages[0].partition(";")[0].partition(" for a node")[0]
    assert raised in ran.err


def test_a_space_in_the_list_of_gpus_causes_no_message(tmp_path):
    program = tmp_path / "space.py"
    program.write_text(with_one_bug("0, 1"), encoding="utf-8")
    ran = running.run("--quiet", "--gpus", 2, "--nproc-per-node", 2, program)
    assert (ran.status, ran.err) == (0, "")
    assert "rank 1 of 2: loss" in ran.out


def test_a_regular_expression_cuts_a_wrong_name_out_of_a_node_list():
    names = {}
    exec(BUGGY[BUGGY.index("def first_host") : BUGGY.index("def main")], {"re": re}, names)
    assert names["first_host"]("gpu[07-09]") == "gpu07"
    assert names["first_host"]("a100-[07-09]") == "a100-100"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "expected the text"),
        ("def main(:", "line 1 is no Python"),
        ("print('none of the bugs')", "rank 0 does not tell its loss"),
        ("import torch\ntorch.ones(2) @ torch.ones(3)", "it ends with"),
    ],
)
def test_a_text_that_is_no_program_of_two_ranks_is_refused(text, reason):
    verdict = told(text)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


RIGHT_HOST = repairs()[
    """    name = nodes.split("[")[0]
    return name + re.findall("[0-9]+", nodes)[0]
"""
]
NO_NAME, BY_HAND = (
    "    return nodes\n",
    """    name, _, rest = nodes.partition("[")
    return name + re.split("[],-]", rest)[0]
""",
)


def mended_with(old, new):
    text = solution("distributed_sgd", "mended")()
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (mended_with(RIGHT_HOST, NO_NAME), "first_host('gpu[07-09]'): expected 'gpu07', got 'gpu["),
        (mended_with(RIGHT_HOST, "    return 'localhost'\n"), "expected 'gpu07', got 'localhost'"),
        (
            mended_with(RIGHT_HOST, "    return nodes[99]\n"),
            "IndexError: string index out of range",
        ),
        (mended_with("    net = DDP(", "    (lambda *_, **__: 0)("), "never calls DistributedData"),
    ],
)
def test_a_bug_is_not_mended_by_what_hides_it(text, reason):
    verdict = told(text)
    assert verdict.status == checks.WRONG
    assert reason in verdict.text


def test_what_only_prints_losses_does_not_train():
    lines = [f"print('rank {rank} of 2: loss 2.3')" for rank in range(2)]
    assert "never calls init_process_group" in told("\n".join(lines)).text


@pytest.mark.parametrize(
    "text",
    [
        mended_with(RIGHT_HOST, BY_HAND).replace("import os\n", "import os\nimport re\n", 1),
        mended_with(RIGHT_HOST, BY_HAND.replace("re.split", "SPLIT")).replace(
            "import os\n", "import os\nimport re\n\nSPLIT = re.split\n", 1
        ),
        mended_with("    torch.manual_seed(rank)\n", "    print(', '.join(os.environ)[:9])\n"),
    ],
    ids=["regular expression", "its constant", "join"],
)
def test_other_ways_to_mend_the_program_are_right(text):
    verdict = told(text)
    assert verdict, verdict
