"""Solutions of the exercises of lesson 06; `tests/answers/test_checks.py` runs them."""

from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "scripts"


def busiest_bytes(
    method: str, machines: int, gpus: int, nbytes: float
) -> float:
    """The store's card, or any machine's in a ring."""
    if method == "store":
        return machines * gpus * nbytes
    if method == "store, aggregated":
        return machines * nbytes
    n = machines * gpus
    return 2 * (n - 1) / n * nbytes if machines > 1 else 0


def ring_plan(rank: int, step: int, n: int) -> tuple[int, int]:
    """Begin with the piece that one's left neighbour shall finish; then send on what came last."""
    return (rank - step - 1) % n, (rank - step - 2) % n


def stale_sgd(
    gradient, w: float, lr: float, delay: int, steps: int
) -> list[float]:
    """The weights are kept, so that one can look back."""
    weights = [w]
    for step in range(steps):
        old = weights[max(step - delay, 0)]
        weights.append(weights[-1] - lr * gradient(old))
    return weights[1:]


def best_batch(batches: list[int], t1_s, t2_s: float, steps) -> int:
    """Seconds a step times steps."""
    return min(batches, key=lambda b: max(t1_s(b), t2_s) * steps(b))


def mended() -> str:
    """Seven changes; `scontrol` knows the grammar of node lists, and localhost needs no change."""
    text = (SCRIPTS / "first_program.py").read_text(encoding="utf-8")
    for wrong, right in REPAIRS.items():
        text = text.replace(wrong, right)
    return text


REPAIRS = {
    "from torch.nn import Distributed": "from torch.nn.parallel import Distributed",
    '"CUDA_VISIBLE_DEVICES"] == ': '"CUDA_VISIBLE_DEVICES"] = ',
    '"0, 1"': '"0,1"',
    "int(environ": "int(os.environ",
    "args.prot": "args.port",
    "word_size": "world_size",
    "import re\n": "import subprocess\n",
    """    name = nodes.split("[")[0]
    return name + re.findall("[0-9]+", nodes)[0]
""": """    if nodes == "localhost":
        return nodes
    command = ["scontrol", "show", "hostnames", nodes]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    return listed.stdout.split()[0]
""",
}
