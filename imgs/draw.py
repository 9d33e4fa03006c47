"""Draws the pictures of this folder: `python imgs/draw.py [name …]`, all of them by default."""

import sys
from pathlib import Path

from drawings import machines, meshes, moving, ring, sharding, splits, steps, timelines

HERE = Path(__file__).parent
DRAWINGS = (
    machines.cpu_beside_gpu, machines.warp_at_an_if, machines.systolic_array,
    machines.four_gpu_server, machines.cluster_with_servers,
    splits.three_ways_to_split, splits.columns_then_rows,
    steps.data_parallel_step, ring.ring, sharding.gather_and_free,
    meshes.mesh_cube, meshes.which_split,
    timelines.schedules, timelines.stream_and_event,
)  # fmt: skip
MOVING = (moving.step_in_time,)


def main(*names: str) -> None:
    for draw in DRAWINGS:
        if not names or draw.__name__ in names:
            (HERE / f"{draw.__name__}.png").write_bytes(draw().png())
    for draw in MOVING:
        if not names or draw.__name__ in names:
            (HERE / f"{draw.__name__}.gif").write_bytes(draw())


if __name__ == "__main__":
    main(*sys.argv[1:])
