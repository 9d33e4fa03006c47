"""The exercises of lesson 06."""

from __future__ import annotations

import ast
import contextlib
import io
import math
import numbers
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import machines
from ..parallelism import scaling
from ..trials import distributed_sgd as trials
from ..trials.calling import Called
from .verdict import Wrong, exercise, is_number, is_tensor, is_whole, values_of

TOLERANCE = 1e-6  # relative

HOST, SLURM = "first_host", "scontrol"  # of the program with seven bugs, and what knows node lists
FIRST_HOSTS = {
    "localhost": "localhost",
    "gpu07": "gpu07",
    "gpu[07-09]": "gpu07",
    "a100-[07-09]": "a100-07",
}
DEFINE = (ast.FunctionDef, ast.Import, ast.ImportFrom)
CALLED = ("init_process_group", "DistributedDataParallel", "backward")
LISTED = "0123456789, "  # the characters of a list of GPUs

WHY_BUSIEST = {
    "store": (
        "the store's card sends the parameters once to every GPU of every machine; the gradients "
        "that it receives travel in the other direction of its link"
    ),
    "store, aggregated": (
        "the store's card sends the parameters once to each machine, which passes them on inside: "
        "the network carries as much for 8 GPUs a machine as for one"
    ),
    "ring": (
        "the ring goes through all n = machines * gpus GPUs and leaves each machine on one link, "
        "over which each of 2 (n - 1) steps sends nbytes / n; inside one machine it needs no "
        "network"
    ),
}


@exercise
def busiest_bytes(answer: Called) -> str:
    """`busiest_bytes(method, machines, gpus, nbytes)`: what the busiest network card sends a step.

    Data-parallel training with `gpus` GPUs in each of `machines` machines, and `nbytes` of
    gradients, as many as of parameters. Methods: "store", a key-value store on one machine more,
    to which each GPU pushes gradients and from which it pulls parameters; "store, aggregated", the
    same with the gradients added up in each machine first and the parameters pulled once a machine;
    "ring", an all-reduce in one ring through all GPUs, neighbours in one machine where possible.
    """
    for method in WHY_BUSIEST:
        for count, gpus, nbytes in ((4, 1, 1e6), (3, 8, 4e8), (16, 4, 1e8), (1, 4, 5e7)):
            expected = _busiest_bytes(method, count, gpus, nbytes)
            got = answer(method, count, gpus, nbytes)
            call = f"busiest_bytes({method!r}, {count}, {gpus}, {nbytes:g})"
            if not is_number(got):
                raise Wrong(f"{call}: expected a number of bytes, got {got!r}")
            if not math.isclose(got, expected, rel_tol=TOLERANCE):
                raise Wrong(
                    f"{call}: expected {expected:g} bytes, got {got:g}: {WHY_BUSIEST[method]}"
                )
    return "a store's card sends more with every machine, a ring's less than twice the gradients"


def _busiest_bytes(method: str, count: int, gpus: int, nbytes: float) -> float:
    """As `scaling` has it; how fast the network is does not matter to its bytes."""
    node = machines.machine("8x-v100-dgx1").with_accelerators(gpus)
    network = scaling.Network.of(node, machines.NETWORKS["25gbe"])
    if method == "ring":
        return scaling.ring_bytes(nbytes, network, count * gpus).get("node", 0.0)
    sent = scaling.store_bytes(
        nbytes, network, count * gpus, servers=1, aggregate=method == "store, aggregated"
    )
    return sent["server"]


@exercise
def ring_plan(answer: Called) -> str:
    """`ring_plan(rank, step, n)`: the pieces to send to rank + 1 and to receive from rank - 1.

    In steps 0 to n - 2 what is received is added, in steps n - 1 to 2 (n - 1) - 1 it replaces. In
    between rank r has finished piece r.
    """
    finished = {}
    for n in range(2, 7):
        # The ranks whose summands are in each piece that a rank holds: right for these, right for
        # all numbers.
        held = [[{rank} for _ in range(n)] for rank in range(n)]
        for step in range(2 * (n - 1)):
            _play(held, step, [_pieces(answer, rank, step, n) for rank in range(n)])
            if step == n - 2:
                finished[n] = [{p for p in range(n) if len(own[p]) == n} for own in held]
        _check_complete(held)
    for pieces in finished.values():
        _check_own(pieces)
    return "a reduce-scatter, and every rank has every sum after 2 (n - 1) steps, for n = 2 to 6"


def _pieces(answer: Called, rank: int, step: int, n: int) -> tuple[int, int]:
    got = answer(rank, step, n)
    if not (
        isinstance(got, tuple | list)
        and len(got) == 2
        and all(is_whole(piece) and 0 <= piece < n for piece in got)
    ):
        raise Wrong(
            f"ring_plan({rank}, {step}, {n}): expected the numbers of two pieces, (send, receive), "
            f"each from 0 to {n - 1}, got {got!r}"
        )
    return got[0], got[1]


def _play(held: list[list[set[int]]], step: int, plan: list[tuple[int, int]]) -> None:
    """One step of all ranks at once: everyone sends what it had before."""
    n = len(held)
    sent = [held[rank][send] for rank, (send, _) in enumerate(plan)]
    for rank, (_, piece) in enumerate(plan):
        left = (rank - 1) % n
        where = f"n = {n}, step {step}: rank {rank}"
        if piece != plan[left][0]:
            raise Wrong(
                f"{where} expects piece {piece}, but rank {left} sends piece {plan[left][0]}: "
                "numbers would be added to the wrong ones, without any error"
            )
        if step < n - 1:
            twice = held[rank][piece] & sent[left]
            if twice:
                raise Wrong(
                    f"{where} adds to piece {piece} what is in it already, from rank "
                    f"{min(twice)}: a gradient that counts twice. Send on what came last"
                )
            held[rank][piece] = held[rank][piece] | sent[left]
        else:
            if len(sent[left]) < n:
                raise Wrong(
                    f"{where} replaces its piece {piece} by one with {len(sent[left])} of {n} "
                    "summands: half-finished sums must not be spread. After the first n - 1 steps "
                    "every rank holds one finished piece: which?"
                )
            held[rank][piece] = sent[left]


def _check_complete(held: list[list[set[int]]]) -> None:
    n = len(held)
    for rank, pieces in enumerate(held):
        for piece, summands in enumerate(pieces):
            if len(summands) < n:
                raise Wrong(
                    f"n = {n}: after step {2 * (n - 1) - 1}, the last, piece {piece} on rank "
                    f"{rank} has the summands of {sorted(summands)} only: expected those of all "
                    f"{n} ranks, or the ranks' parameters drift apart"
                )


def _check_own(finished: list[set[int]]) -> None:
    n = len(finished)
    for rank, pieces in enumerate(finished):
        if rank not in pieces:
            raise Wrong(
                f"n = {n}: all sums are right in the end, but after step {n - 2} rank {rank} has "
                f"finished piece {min(pieces)}, expected piece {rank}: who shards the optimiser's "
                "state by rank needs its own there. Begin with another piece"
            )


@exercise
def stale_sgd(answer: Called) -> str:
    """`stale_sgd(gradient, w, lr, delay, steps)`: the weight after each step of SGD, whose
    gradients are those at the weight of `delay` steps before (at first, at the start weight)."""
    for name, w, lr, steps in (
        ("w", 1.0, 0.3, 12),
        ("2 * w - 3", -1.0, 0.1, 9),
        ("w ** 3 - w", 0.2, 0.4, 10),
    ):
        for delay in (0, 1, 3, 20):
            got = answer.tried(trials.stale_sgd, name, w, lr, delay, steps)
            call = f"stale_sgd(lambda w: {name}, {w}, {lr}, {delay}, {steps})"
            if not isinstance(got, list) or len(got) != steps:
                raise Wrong(
                    f"{call}: expected a list of {steps} weights, one after each step, got {got}"
                )
            expected = _stale(trials.GRADIENTS[name], w, lr, delay, steps)
            for step, (g, e) in enumerate(zip(got, expected, strict=True)):
                if is_tensor(g) and values_of(g).numel() == 1:
                    g = values_of(g).item()
                if not isinstance(g, numbers.Real):
                    raise Wrong(f"{call}: expected {e:.6f} at [{step}], got {g!r}: no number")
                if not math.isclose(g, e, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                    raise Wrong(
                        f"{call}: expected {e:.6f} at [{step}], got {g:.6f}: "
                        f"{_why_stale(delay, step)}"
                    )
    return "an old gradient, but the newest weight: what asynchronous SGD does"


def _stale(
    gradient: Callable[[float], float], w: float, lr: float, delay: int, steps: int
) -> list[float]:
    weights = [w]
    for step in range(steps):
        weights.append(weights[-1] - lr * gradient(weights[max(step - delay, 0)]))
    return weights[1:]


def _why_stale(delay: int, step: int) -> str:
    if delay == 0:
        return "without delay it is plain SGD"
    if step < delay:
        return (
            "until a worker has weights that are new, all gradients are those at the start; they "
            "are applied nevertheless"
        )
    at = "the start weight" if step == delay else f"[{step - delay - 1}]"
    return (
        f"the gradient is that at {at}, and it is applied to the newest weight: the others' "
        "updates must not be undone"
    )


@exercise
def best_batch(answer: Called) -> str:
    """`best_batch(batches, t1_s, t2_s, steps)`: the batch of a device that is first at the target.

    A step with batch b takes max(t1_s(b), t2_s); the target takes steps(b) of them.
    """
    for number, target in enumerate(trials.TARGETS):
        _check_target(answer.tried(trials.best_batch, number), *target)
    return "the least time to the target: steps times seconds per step"


def _check_target(
    got: object, batches: list[int], t1_s: Callable, t2_s: float, steps: Callable
) -> None:
    def step_s(b: int) -> float:
        return max(t1_s(b), t2_s)

    best = min(batches, key=lambda b: steps(b) * step_s(b))
    call = f"best_batch({batches}, t1_s, {t2_s}, steps)"
    if not is_number(got) or got not in batches:
        raise Wrong(
            f"{call}: expected {best}, one of the batches {batches}, got {got!r}: the batch "
            "itself, not its place in the list, nor its time"
        )
    if (chosen := batches[batches.index(int(got))]) != best:
        of_best, of_got = (
            f"{b} takes {steps(b):,.0f} steps of {step_s(b) * 1e3:.1f} ms, "
            f"{steps(b) * step_s(b):,.1f} s"
            for b in (best, chosen)
        )
        raise Wrong(
            f"{call}: expected {best}, got {got}. {of_best}; "
            f"{of_got}. Neither the shortest step nor the fewest steps win, but their product"
        )


@exercise
def mended(answer: Called) -> str:
    """`mended()`: the text of `scripts/first_program.py` without its seven bugs.

    Each bug that is still there is named with the message that it causes. A text without any of
    them must still find the first node of Slurm's lists, and train with DDP: it is run on two
    ranks, each of which must tell its loss.
    """
    text = answer()
    if not isinstance(text, str):
        raise Wrong(f"expected the text of the program, got {text!r}")
    try:
        program = ast.parse(text)
    except SyntaxError as error:
        raise Wrong(f"line {error.lineno} is no Python: {error.msg}") from None
    left = [f"{what}: {message}" for (what, message), has in BUGS.items() if has(program)]
    if left:
        raise Wrong(
            f"{len(BUGS) - len(left)} of {len(BUGS)} bugs are mended; still there are\n  "
            + "\n  ".join(left)
        )
    _check_hosts(program)
    _train(text)
    _check_calls(program)
    return "all seven are gone, and the program trains on two ranks"


def _names_wrong_module(program: ast.Module) -> bool:
    """DistributedDataParallel is looked for outside torch.nn.parallel."""
    ddp, home = "DistributedDataParallel", "torch.nn.parallel"
    for node in ast.walk(program):
        match node:
            case ast.ImportFrom(module=module, names=names):
                if ddp in [alias.name for alias in names] and not str(module).startswith(home):
                    return True
            case ast.Import(names=names):
                if any(alias.name.endswith(f".{ddp}") for alias in names):
                    return True
            case ast.Attribute(attr=attribute, value=value) if attribute == ddp:
                if not ast.unparse(value).endswith("parallel"):
                    return True
    return False


def _compares_variable(program: ast.Module) -> bool:
    """A comparison is a statement of its own."""
    return any(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Compare)
        for node in ast.walk(program)
    )


def _has_space_in_list(program: ast.Module) -> bool:
    """A list of GPUs such as "0, 1"; not the ", " that joins names."""
    return any(
        "," in text and " " in text and any(map(str.isdigit, text)) and set(text) <= set(LISTED)
        for text in _texts(program)
    )


def _texts(program: ast.Module) -> Iterator[str]:
    for node in ast.walk(program):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _cuts_node_list(program: ast.Module) -> bool:
    """A regular expression is used, and not so that it finds the first nodes."""
    used = any(
        (isinstance(node, ast.Attribute) and ast.unparse(node.value) == "re")
        or (isinstance(node, ast.ImportFrom) and node.module == "re")
        for node in ast.walk(program)
    )
    return used and _wrong_host(program) is not None


def _check_hosts(program: ast.Module) -> None:
    """Raise `Wrong` if `first_host` no longer finds the first node of a list."""
    if (wrong := _wrong_host(program)) is not None:
        nodes, got = wrong
        raise Wrong(
            f"none of the seven is left, but first_host({nodes!r}): expected "
            f"{FIRST_HOSTS[nodes]!r}, got {got}: Slurm's `scontrol show hostnames` knows all lists"
        )


def _wrong_host(program: ast.Module) -> tuple[str, str] | None:
    """A node list, and what `first_host` makes of it, where that is not its first node.

    None, too, where there is no such function, or it asks Slurm, which is not here.
    """
    if HOST not in _defined(program) or any(SLURM in text for text in _texts(program)):
        return None
    first_host = _made(program)[HOST]
    with contextlib.redirect_stdout(io.StringIO()):
        for nodes, first in FIRST_HOSTS.items():
            try:
                got = first_host(nodes)
            except NameError:  # something of the program that is not run here
                return None
            except Exception as error:
                return nodes, f"{type(error).__name__}: {error}"
            if got != first:
                return nodes, repr(got)
    return None


def _made(program: ast.Module) -> dict[str, Any]:
    """What the program's imports, functions and constants make; nothing of it is called."""
    names: dict[str, Any] = {}
    for node in program.body:
        if isinstance(node, DEFINE) or _is_constant(node):
            with contextlib.suppress(Exception):  # an import that is one of the bugs
                exec(compile(ast.Module([node], []), "<your program>", "exec"), names)
    return names


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) for t in node.targets)


def _defined(program: ast.Module) -> list[str]:
    return [node.name for node in program.body if isinstance(node, ast.FunctionDef)]


def _check_calls(program: ast.Module) -> None:
    """Raise `Wrong` if a bug is gone because what had it is gone."""
    renamed = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(program)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    called = {
        renamed.get(name, name).rpartition(".")[2]
        for node in ast.walk(program)
        if isinstance(node, ast.Call)
        for name in [ast.unparse(node.func).rpartition(".")[2]]
    }
    for name in CALLED:
        if name not in called:
            raise Wrong(
                f"none of the seven is left, but the program never calls {name}, expected as in "
                "first_program.py: mend the line, and let the program train"
            )


def _has_bare_environ(program: ast.Module) -> bool:
    imported = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "os"
        and "environ" in [alias.asname or alias.name for alias in node.names]
        for node in ast.walk(program)
    )
    used = any(isinstance(node, ast.Name) and node.id == "environ" for node in ast.walk(program))
    return used and not imported


def _reads_prot(program: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "prot" for node in ast.walk(program)
    )


def _says_word_size(program: ast.Module) -> bool:
    return any(
        isinstance(node, ast.keyword) and node.arg == "word_size" for node in ast.walk(program)
    )


def _train(text: str) -> None:
    """Run a program on two ranks without GPUs; what it prints is read, not shown."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "mended.py")
        program.write_text(text, encoding="utf-8")
        words = ["--quiet", "--gpus", "0", "--nproc-per-node", "2", str(program)]
        ran = subprocess.run(
            [sys.executable, "-m", "d2lpar", "run", *words],
            capture_output=True,
            text=True,
            check=False,
        )
    if ran.returncode:
        error = ran.stderr.rpartition("d2lpar: ")[2].strip()
        raise Wrong(f"none of the seven is left, but on two ranks it ends with {error}")
    for rank in range(2):
        if f"rank {rank} of 2: loss" not in ran.stdout:
            raise Wrong(f"none of the seven is left, but rank {rank} does not tell its loss")


# By what it is about and the message that it causes here: whether a program has the bug.
BUGS: dict[tuple[str, str], Callable[[ast.Module], bool]] = {
    (
        "where DDP comes from",
        "ImportError: cannot import name 'DistributedDataParallel' from 'torch.nn'",
    ): _names_wrong_module,
    (
        "a comparison where a variable should be set",
        "KeyError: 'CUDA_VISIBLE_DEVICES'; and no message where the variable is set already",
    ): _compares_variable,
    (
        "a space in a list of GPUs",
        "no message: torch and CUDA forgive it, a shell does not (`0, 1` are two words)",
    ): _has_space_in_list,
    (
        "the environment without its module",
        "NameError: name 'environ' is not defined",
    ): _has_bare_environ,
    (
        "a node list cut by a regular expression",
        "IndexError: list index out of range for a node without a number; no message for "
        "a100-[07-09], of which it makes the wrong name",
    ): _cuts_node_list,
    (
        "an option that is misspelt where it is read",
        "AttributeError: 'Namespace' object has no attribute 'prot'",
    ): _reads_prot,
    (
        "an argument that is misspelt",
        "TypeError: init_process_group() got an unexpected keyword argument 'word_size'",
    ): _says_word_size,
}
