"""Which test files are judged: the wheel's own, and those of a checkout of PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Of PyTorch's folder `test`: what is about devices of CUDA, streams and ranks. Older and newer
# versions call some folders otherwise.
PATTERNS = (
    "test_cuda.py",
    "test_cuda_multigpu.py",
    "test_streams.py",
    "test_data_parallel.py",
    "distributed/test_data_parallel.py",
    "distributed/test_device_mesh.py",
    "distributed/test_functional_api.py",
    "distributed/test_c10d_nccl.py",
    "distributed/test_c10d_ops_nccl.py",
    "distributed/test_c10d_functional_native.py",
    "distributed/test_c10d_object_collectives.py",
    "distributed/test_c10d_common.py",
    "distributed/test_c10d_spawn_nccl.py",
    "distributed/test_collective_utils.py",
    "distributed/test_control_collectives.py",
    "distributed/test_multi_threaded_pg.py",
    "distributed/test_nccl.py",
    "distributed/test_pg_wrapper.py",
    "distributed/test_store.py",
    "distributed/algorithms/**/test_*.py",
    "distributed/optim/test_*.py",
    "distributed/tensor/**/test_*.py",
    "distributed/_tensor/**/test_*.py",
    "distributed/_composable/**/test_*.py",
    "distributed/fsdp2/test_*.py",
    "distributed/fsdp/test_*.py",
    "distributed/pipelining/test_*.py",
    "distributed/checkpoint/**/test_*.py",
)
WHEEL = Path(__file__).with_name("wheel_tests.py")


@dataclass(frozen=True)
class Suite:
    """A file of tests: its `path`, and the folders that it imports modules from."""

    path: Path
    name: str
    folders: tuple[Path, ...] = ()


def suites(checkout: Path | None = None, words: list[str] | None = None) -> list[Suite]:
    """Those whose names contain one of `words` (all, without words); the wheel's come first.

    Raises ValueError if `checkout` is no checkout of PyTorch, or nothing has such a name.
    """
    found = [Suite(WHEEL, "torch.testing (wheel)")]
    if checkout is not None:
        found += of_checkout(checkout)
    chosen = [s for s in found if not words or any(word in s.name for word in words)]
    if not chosen:
        raise ValueError(
            f"no test file has a name with {' or '.join(words or [])}; there are: "
            + ", ".join(s.name for s in found)
        )
    return chosen


def of_checkout(checkout: Path) -> list[Suite]:
    """The test files of a checkout, each once, in the order of PATTERNS."""
    tests = checkout / "test"
    if not tests.is_dir():
        raise ValueError(
            f"{checkout} is no checkout of PyTorch: it has no folder `test`. Name the folder that "
            "`git clone` of PyTorch has made: make torch-tests PYTORCH=path"
        )
    paths = {path: None for pattern in PATTERNS for path in sorted(tests.glob(pattern))}
    return [
        Suite(path, str(path.relative_to(tests)), (path.parent, tests, checkout)) for path in paths
    ]
