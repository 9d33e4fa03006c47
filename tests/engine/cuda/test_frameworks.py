"""Training loops of frameworks, unmodified, on virtual GPUs: the parameters that one device has.

A framework that is not installed is skipped: `pip install accelerate lightning-fabric`.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import running
import torch
from torch import nn
from torch.nn import functional as F

PROGRAMS = Path(__file__).parents[2] / "programs" / "frameworks"
pytestmark = [
    pytest.mark.slow,  # each imports a framework, which takes seconds
    pytest.mark.filterwarnings("ignore"),  # frameworks warn of one another's old ways
]


def needs(module: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"needs {module}, which is not installed")


def run(program: str, path: Path, *words: str, ranks: int = 2) -> dict:
    """What a program saved, run by `d2lpar run` on so many ranks."""
    words = ("--quiet", "--nproc-per-node", str(ranks), str(PROGRAMS / program), str(path), *words)
    assert running.run(*words).status == 0
    return torch.load(path, map_location="cpu", weights_only=False)


def program(name: str) -> ModuleType:
    """A program as a module, whose network and data are the oracle's as well."""
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# One device


def on_one_device(orders: list[list[list[int]]], precision: str, gamma: float) -> tuple[dict, list]:
    """The parameters after a step for each of `orders`, which lists its micro-batches, and losses.

    The micro-batches of a step come one by one, as the ranks have them.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    x, y = torch.randn(48, 8), torch.randint(0, 4, (48,))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=gamma)
    losses = []
    for micro_batches in orders:
        for rows in micro_batches:
            with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in precision):
                loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            (loss / len(micro_batches)).backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return net.state_dict(), losses


def check(found: dict, expected: dict, losses: list, expected_losses: list, close: dict) -> None:
    assert list(found) == list(expected)
    for name, values in expected.items():
        torch.testing.assert_close(found[name].cpu().float(), values, **close, msg=name)
    means = [(a + b) / 2 for a, b in zip(expected_losses[::2], expected_losses[1::2], strict=True)]
    assert losses == pytest.approx(means, rel=1e-3)


# bf16 on a GPU and on a processor round alike but for the order of sums.
CLOSE = {"no": {"rtol": 1e-5, "atol": 1e-6}, "bf16": {"rtol": 1e-3, "atol": 1e-3}}


@needs("accelerate")
@pytest.mark.parametrize(
    ("precision", "sharding", "kind"),
    [
        ("no", "ddp", "DistributedDataParallel"),
        ("bf16", "ddp", "DistributedDataParallel"),
        ("no", "fsdp", "FSDPSequential"),
    ],
)
def test_accelerate(tmp_path, precision, sharding, kind):
    found = run("accelerate_loop.py", tmp_path / "out.pt", precision, sharding)
    check_accelerate(found, precision, kind)


@needs("accelerate")
def test_accelerate_launch_starts_the_ranks(tmp_path):
    path = tmp_path / "out.pt"
    words = ("-m", "accelerate.commands.launch", "--num_processes", "2")
    program = (str(PROGRAMS / "accelerate_loop.py"), str(path), "no", "ddp")
    assert running.run("--quiet", "--gpus", "2", *words, *program).status == 0
    found = torch.load(path, map_location="cpu", weights_only=False)
    check_accelerate(found, "no", "DistributedDataParallel")


@needs("accelerate")
def test_accelerate_launch_starts_one_process_on_a_gpu(tmp_path):
    path = tmp_path / "out.pt"
    words = ("-m", "accelerate.commands.launch", "--num_processes", "1")
    program = (str(PROGRAMS / "accelerate_loop.py"), str(path), "no", "ddp")
    assert running.run("--quiet", "--gpus", "2", *words, *program).status == 0
    found = torch.load(path, map_location="cpu", weights_only=False)
    assert found["where"] == ("cuda", "Sequential", 1)


def check_accelerate(found: dict, precision: str, kind: str) -> None:
    assert found["where"] == ("cuda:0", kind, 2)
    # Each rank has every second batch of four rows, and two of its batches make a step.
    batches = [list(range(i, i + 4)) for i in range(0, 48, 4)]
    orders = [batches[i : i + 4] for i in range(0, 12, 4)]
    # It steps the schedule once a rank, unless told not to.
    expected, losses = on_one_device(orders, precision, gamma=0.9**2)
    check(found["state"], expected, found["losses"], losses, CLOSE[precision])


@needs("lightning_fabric")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning_fabric(tmp_path, precision):
    found = run("fabric_loop.py", tmp_path / "out.pt", precision, "ddp")
    check_fabric(found, precision)


@needs("lightning_fabric")
def test_lightning_fabric_starts_the_script_once_more(tmp_path):
    path = tmp_path / "out.pt"
    words = ("--quiet", "--gpus", "2", str(PROGRAMS / "fabric_loop.py"), str(path))
    assert running.run(*words, "32-true", "ddp").status == 0
    found = torch.load(path, map_location="cpu", weights_only=False)
    check_fabric(found, "32-true")


def check_fabric(found: dict, precision: str) -> None:
    assert found["where"] == ("cuda:0", 2)
    # Rank r has the rows r, r + 2, …, four a batch, and two of its batches make a step.
    batches = [list(range(start + r, start + 8, 2)) for start in range(0, 48, 8) for r in range(2)]
    orders = [batches[i : i + 4] for i in range(0, 12, 4)]
    expected, losses = on_one_device(orders, precision, gamma=1.0)
    close = CLOSE["bf16" if "bf16" in precision else "no"]
    check(found["net"], expected, found["losses"], losses, close)


# The shape of trainers


def by_hand_on_one_device() -> tuple[dict, dict, list[float]]:
    """Parameters, gradients of the last step, and losses of the network of `grid_by_hand.py`."""
    shape = program("grid_by_hand")
    weights = {name: nn.Parameter(w) for name, w in shape.whole_weights().items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=0.01)
    losses, gradients = [], {}
    for step in range(shape.STEPS):
        optimizer.zero_grad()
        total = 0.0
        for replica in range(shape.DATA):
            for micro_batch in range(shape.MICRO_BATCHES):
                words, following = shape.batch(step, replica, micro_batch)
                x = weights["embed"][words]
                for layer in range(shape.LAYERS):
                    hidden = F.gelu(F.linear(x, weights[f"{layer}.up"]))
                    x = x + F.linear(hidden, weights[f"{layer}.down"])
                y = F.linear(x, weights["head"])
                loss = F.cross_entropy(y.flatten(0, 1), following.flatten())
                (loss / (shape.DATA * shape.MICRO_BATCHES)).backward()
                total += loss.item() / (shape.DATA * shape.MICRO_BATCHES)
        losses.append(total)
        gradients = {name: w.grad.clone() for name, w in weights.items()}
        optimizer.step()
    return {name: w.detach() for name, w in weights.items()}, gradients, losses


def test_a_grid_of_groups_made_by_hand(tmp_path):
    words = ("--quiet", "--nproc-per-node", "8", str(PROGRAMS / "grid_by_hand.py"))
    assert running.run(*words, str(tmp_path / "out")).status == 0
    parameters, gradients, losses = by_hand_on_one_device()
    seen = set()
    for rank in range(8):
        found = torch.load(tmp_path / f"out.{rank}")
        _, stage, part = found["place"]
        assert found["losses"] == pytest.approx(losses, rel=1e-5)
        for name in found["parameters"]:
            whole = name.replace("blocks.", "").replace(".weight", "")
            layer, dot, matrix = whole.partition(".")
            if dot:
                whole = f"{int(layer) + 2 * stage}.{matrix}"
                seen.add((whole, part))
            for mine, one in (("parameters", parameters), ("gradients", gradients)):
                expected = one[whole]
                if dot:
                    expected = expected.chunk(2, dim=0 if matrix == "up" else 1)[part]
                torch.testing.assert_close(
                    found[mine][name], expected, rtol=1e-4, atol=1e-5, msg=f"{mine} {rank} {name}"
                )
    assert len(seen) == 16


def a_decoder_on_one_device() -> tuple[dict, list[float], list[float]]:
    """State, losses and norms of gradients of the network of `mesh_trainer.py`."""
    shape = program("mesh_trainer")
    net = shape.Decoder()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(shape.whole_weight(name, p.shape))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, eps=1e-3)
    losses, norms = [], []
    for step in range(shape.STEPS):
        parts = [shape.batch(step, replica) for replica in range(2)]
        words, following = (torch.cat(both) for both in zip(*parts, strict=True))
        optimizer.zero_grad()
        loss = shape.loss_of(net(words), following)
        loss.backward()
        losses.append(loss.item())
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 0.5).item())
        optimizer.step()
    return net.state_dict(), losses, norms


def test_pipeline_fsdp_and_tensor_parallelism_on_one_mesh(tmp_path):
    words = ("--quiet", "--nproc-per-node", "8", str(PROGRAMS / "mesh_trainer.py"))
    assert running.run(*words, str(tmp_path / "out"), "float32").status == 0
    check_decoder(tmp_path)


def check_decoder(folder: Path) -> None:
    expected, losses, norms = a_decoder_on_one_device()
    seen = set()
    for rank in range(8):
        found = torch.load(folder / f"out.{rank}")
        assert found["losses"] == pytest.approx(losses, rel=1e-5)
        assert found["norms"] == pytest.approx(norms, rel=1e-4)
        for name, values in found["state"].items():
            torch.testing.assert_close(values, expected[name], rtol=1e-4, atol=1e-5, msg=name)
        seen |= set(found["state"])
    assert seen == set(expected)
