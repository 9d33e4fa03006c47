"""What travels between the notebook and its ranks."""

from __future__ import annotations

from dataclasses import dataclass

# The variables that every rank has of its own, whatever they are in the notebook.
OWN_NAMES = ("torch", "dist", "par", "rank", "world_size", "local_rank", "device")

# The messages of Jupyter's protocol that a reply counts, beside reports: see Reply.sent.
COUNTED = ("stream", "display_data", "update_display_data")


@dataclass(frozen=True)
class RankProcess:
    """Where a rank runs."""

    host: str
    pid: int
    gpus: int


@dataclass(frozen=True)
class Membership:
    """What a rank must know to join: everything but `rank` and `local_rank` is the same for all.

    `store` is the path of a file (one host) or (address, port) of rank 0's TCPStore.
    """

    rank: int
    world_size: int
    local_rank: int
    ranks_on_host: int
    backend: str
    on_gpu: bool
    on_one_host: bool
    threads: int | None
    store: str | tuple[str, int]
    working_dir: str
    search_path: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """One exception of a chain: its frames (file, line, function, text) and its own lines."""

    frames: tuple[tuple[str, int, str, str], ...]
    summary: str


@dataclass(frozen=True)
class Failure:
    """An exception, as a rank tells of it. `time_s` is that of the rank's clock."""

    name: str
    message: str
    parts: tuple[Part, ...]
    time_s: float
    lost_connection: bool  # a victim: some other rank went away
    interrupted: bool


@dataclass(frozen=True)
class Reply:
    """The result of a call, pickled, or why there is none.

    `collectives` counts what this call gave to torch.distributed; None where that is not known.
    `sent` counts its reports and pieces of output, which travel on their own.
    """

    value: bytes | None = None
    failure: Failure | None = None
    collectives: int | None = None
    sent: int = 0
