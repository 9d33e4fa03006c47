"""The beginning of a rank's process where none can be forked: it calls who has started it."""

from __future__ import annotations

import os
import pickle
import sys
from multiprocessing.connection import Client
from pathlib import Path

from ...conductor import starting
from ...cuda.block import emulating
from . import rank_process


def main(address: str, number: str) -> None:
    """Be the process of that number."""
    connection = Client(address, authkey=bytes.fromhex(os.environ.pop(starting.KEY)))
    connection.send(int(number))
    place, launch, options = connection.recv()
    told = place.told
    machine = pickle.loads(Path(told.machine).read_bytes())
    with emulating(told.gpus, machine, shape_only=told.shapes_only):
        rank_process.begin(place, connection, launch, options)


if __name__ == "__main__":
    main(*sys.argv[1:])
