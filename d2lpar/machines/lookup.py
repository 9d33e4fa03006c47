"""Which machine is meant: one of the catalogue or part of it, a cluster, a file, this machine."""

from __future__ import annotations

import difflib
import math
import os
import re
from dataclasses import replace

from . import custom, files
from .catalogue import CATALOGUE, DEFAULT, NETWORKS
from .hardware import MOST_ACCELERATORS, Accelerator, Host, Link, Machine
from .measuring import calibration
from .measuring.calibration import Calibration

Named = str | os.PathLike[str] | Machine | Calibration | None
THIS_MACHINE = calibration.NAME
EXAMPLE_CLUSTER = "64x8x-p100-dgx1-25gbe"

# 64x8x-p100-dgx1-4xib-edr: nodes, a machine, and each node's ports to a network.
_CLUSTER = re.compile(
    rf"(?P<nodes>\d+)x(?P<node>\d+x-.+)-(?:(?P<ports>\d+)x)?(?P<network>{'|'.join(NETWORKS)})"
)
_IN_NODES = re.compile(r"\d+x\d+x-")
_COUNTED = re.compile(r"(?P<count>\d+)x-(?P<kind>.+)")

load, save = files.load, files.save


def machine(
    which: Named = None,
    *,
    gpu: str | Accelerator | None = None,
    memory_bytes: int | None = None,
    peer: str | Link | None = None,
    host_link: str | Link | None = None,
    network: str | Link | None = None,
    host: str | Host | None = None,
    name: str | None = None,
) -> Machine:
    """The machine that is meant by a name, a file or an object; None means the textbook's.

    Names are those of `CATALOGUE` ("8x-a100-nvswitch"); the same with fewer accelerators
    ("1x-a100-nvswitch"); clusters of one network port a node or several ("64x8x-p100-dgx1-25gbe",
    "64x8x-p100-dgx1-4xib-edr", the networks being those of `NETWORKS`); and "this machine" once it
    was calibrated. A name with a folder in it or with the ending .json is a file's, as `save` or
    `Calibration.save` wrote it.

    A machine of one's own is one of these with other parts:

        machine("8x-h100-nvswitch", gpu="A100-SXM4-80GB", host="8x-a100-nvswitch")

    `gpu` takes the place of every accelerator, `memory_bytes` is what each then has. `peer` joins
    the accelerators of a node, `host_link` joins them to the host, `network` is a port of a node
    of a cluster. Each part is an object (`Accelerator`, `Link`, `Host`) or the name of a machine of
    the catalogue that has such a part; for `gpu` also a name of `ACCELERATORS`, for `network` one
    of `NETWORKS`. `name` is what reports call the machine (None: the name, and what differs).

    Raises ValueError for an unknown name, with the names that are close, for a network of a machine
    that is no cluster, and for a file that is missing or wrong, with what is wrong.
    """
    parts = {
        "gpu": gpu,
        "peer": peer,
        "host_link": host_link,
        "network": network,
        "host": host,
    }
    return custom.changed(_named(which), memory_bytes, name, **parts)


def _named(which: Named) -> Machine:
    if which is None:
        return CATALOGUE[DEFAULT]
    if isinstance(which, Machine):
        return which
    if isinstance(which, Calibration):
        return which.machine()
    if isinstance(which, os.PathLike) or (isinstance(which, str) and _is_path(which)):
        return load(which)
    if not isinstance(which, str):
        raise ValueError(f"a machine is a name, a file or a Machine, not {which!r}")
    if which == THIS_MACHINE:
        return this_machine()
    return _cluster(which) or _single(which)


def this_machine() -> Machine:
    """The machine that this is, as it was calibrated. Raises ValueError if it was not."""
    return Calibration.load().machine()


def _is_path(name: str) -> bool:
    return name.endswith(".json") or "/" in name or os.sep in name


def _single(name: str) -> Machine:
    """A machine of the catalogue, or one with fewer accelerators."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    if match := _COUNTED.fullmatch(name):
        for whole in CATALOGUE.values():
            if whole.name.partition("x-")[2] == match["kind"]:
                most, count = len(whole.accelerators), int(match["count"])
                if not 1 <= count <= most:
                    raise ValueError(f"{whole.name} has 1 to {most} accelerators, not {count}")
                return replace(whole.with_accelerators(count), name=name)
    close = ", ".join(map(repr, _close(name)))
    names = f"there is {close}" if close else "`print(*par.machines.CATALOGUE)` lists the names"
    raise ValueError(f"no machine is called {name!r}; {names}")


def _close(name: str) -> list[str]:
    """The names that somebody who wrote `name` may have meant, if any is close."""
    names = [*CATALOGUE, THIS_MACHINE]
    bare = name.lower().replace("-", "")
    close = [known for known in names if bare and bare in known.replace("-", "")]
    return close or difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)


def _cluster(name: str) -> Machine | None:
    if not _IN_NODES.match(name):
        return None
    match = _CLUSTER.fullmatch(name)
    if match is None:
        raise ValueError(
            f"no cluster is called {name!r}: it takes nodes, a machine and a network, as in "
            f"{EXAMPLE_CLUSTER!r}; networks are {', '.join(NETWORKS)}"
        )
    node = _single(match["node"])
    nodes, ports, size = int(match["nodes"]), int(match["ports"] or 1), len(node.accelerators)
    if not 1 <= nodes * size <= MOST_ACCELERATORS:
        raise ValueError(
            f"{name} must have 1 to {MOST_ACCELERATORS} accelerators, not {nodes * size}"
        )
    if not 1 <= ports <= size:
        raise ValueError(f"a node of {name} has 1 to {size} network ports, not {ports}")
    return node.cluster(
        nodes, NETWORKS[match["network"]], network_shared_by=math.ceil(size / ports), name=name
    )
