"""What torchrun is told on its command line, as torch's own parser reads it.

Virtual ranks of all machines are in one process: what says how real ones find, watch and end one
another (`--rdzv-…`, `--standalone`, `--monitor-interval`, `--start-method`, `--shutdown-timeout`,
`--signals-to-handle`, `--local-addr`, `--numa-binding`) is accepted, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MASTER = ("localhost", "29500")  # as torchrun has them

# What is not done, and what to do instead; by the names that torch's parser has for them.
REFUSED = {
    "no_python": "starts a program that is not Python; virtual GPUs need Python: leave it out",
    "logs_specs": "names a plug-in of torchrun's: use --log-dir, --redirects and --tee",
    "duplicate_stdout_filters": "is not known here: write a log with --tee, and use grep",
    "duplicate_stderr_filters": "is not known here: write a log with --tee, and use grep",
}


@dataclass(frozen=True)
class LogOptions:
    """What torchrun was told: streams (1 stdout, 2 stderr, 3 both) that go to a file alone
    (`redirects`) or to a file as well (`tee`), by local rank; the ranks that are `shown`."""

    folder: str | None
    run_id: str
    redirects: Mapping[int, int]
    tee: Mapping[int, int]
    shown: frozenset[int]
    prefix: str
    role: str
    per_node: int

    @property
    def files(self) -> bool:
        """Whether something goes to files."""
        return any((*self.redirects.values(), *self.tee.values()))

    @property
    def matter(self) -> bool:
        """Whether they change anything."""
        return self.files or not self.shown >= set(range(self.per_node))


def told(words: list[str], *, launch: bool) -> Any:
    """The options that follow `torchrun`, or `torch.distributed.launch`.

    ValueError for those that virtual ranks do not have; SystemExit for a wrong command line.
    """
    found = _parser(launch)(words)
    for name, remedy in REFUSED.items():
        if getattr(found, name, None):
            raise ValueError(f"torchrun's --{name.replace('_', '-')} {remedy}")
    if found.event_log_handler not in ("null", None):
        raise ValueError(
            f"torchrun's --event-log-handler {found.event_log_handler} is not known here: leave it "
            "out; `d2lpar run --report FILE` says what a run took"
        )
    if found.node_rank:
        raise ValueError(
            f"torchrun's --node-rank {found.node_rank}: one command runs the ranks of all "
            "machines; leave it out, and let --nnodes say how many there are"
        )
    if found.max_restarts < 0:
        raise ValueError(f"torchrun's --max-restarts {found.max_restarts}: it takes 0 or more")
    return found


def _parser(launch: bool) -> Callable[[list[str]], Any]:
    if launch:
        from torch.distributed import launch as module
    else:
        from torch.distributed import run as module  # type: ignore[no-redef]
    return module.parse_args


def master(found: Any) -> tuple[str, str]:
    """The address and port where ranks would meet."""
    address, _, port = found.rdzv_endpoint.rpartition(":")
    if found.standalone or found.rdzv_backend != "static" or not address:
        address = port = ""
    default = MASTER[0] if found.master_addr == "127.0.0.1" else found.master_addr
    return address or default or MASTER[0], str(port or found.master_port or MASTER[1])


def logs(found: Any, per_node: int) -> LogOptions | None:
    """What becomes of what ranks print; None if it is printed. ValueError for what is none."""
    options = LogOptions(
        found.log_dir,
        found.rdzv_id,
        _streams(found.redirects, "--redirects", per_node),
        _streams(found.tee, "--tee", per_node),
        _ranks(getattr(found, "local_ranks_filter", ""), per_node),
        getattr(found, "log_line_prefix_template", None) or "[${role_name}${local_rank}]:",
        found.role,
        per_node,
    )
    return options if options.matter else None


def _streams(text: str, option: str, per_node: int) -> dict[int, int]:
    """Which streams (1 stdout, 2 stderr, 3 both) of each local rank: "3", or "0:1,1:2"."""
    try:
        if ":" not in text:
            found = dict.fromkeys(range(per_node), int(text))
        else:
            pairs = [pair.split(":") for pair in text.split(",")]
            found = {int(rank): int(streams) for rank, streams in pairs}
    except ValueError:
        found = {0: -1}
    if not all(0 <= streams <= 3 for streams in found.values()):
        raise ValueError(f"torchrun's {option} {text}: it takes 0 to 3, or such as 0:3,1:2")
    return found


def _ranks(text: str, per_node: int) -> frozenset[int]:
    """The local ranks that are shown: "0,2", or all of them."""
    try:
        return frozenset(map(int, text.split(","))) if text else frozenset(range(per_node))
    except ValueError:
        raise ValueError(
            f"torchrun's --local-ranks-filter {text}: it takes local ranks, such as 0,1"
        ) from None
