"""Processors, servers and clusters."""

from matplotlib.patches import Rectangle

import d2lpar as par
from d2lpar.plots import BLUE, FONT_PT, GREEN, INK, ORANGE, PALE, Picture
from d2lpar.plots.style import YELLOW

from .parts import LARGE_PT, arrow, part, sheet, way, words

WARP = 32
L3_HEIGHT = 1.4
XEON_L3_MB, XEON_GB_PER_S = 50, 76.8  # lesson 02 says by whom; four channels of DDR4-2400
LANES_GB_PER_S = 15.75  # 16 lanes of PCIe 3.0, one way


def four_gpu_server() -> Picture:
    """A server with four GPUs, and how many bytes a second pass where."""
    picture = Picture(summary="A server with four GPUs", size_px=(960, 430))
    ax = picture.add_subplot()
    ax.set(xlim=(0, 12), ylim=(0, 5.2))
    ax.axis("off")
    part(ax, (0.3, 4.1), (2.6, 0.9), "network card\n10 Gbit/s", PALE, INK)
    part(ax, (4.2, 4.1), (3.6, 0.9), "processor and\nmain memory", GREEN, "white")
    part(ax, (9.1, 4.1), (2.6, 0.9), "disks", PALE, INK)
    part(ax, (3.0, 2.2), (6.0, 0.7), "PCIe switch", PALE, INK)
    way(ax, (2.9, 4.55), (4.2, 4.55), 1.5, f"{10 / 8} GB/s", (0, 0.22))
    way(ax, (7.8, 4.55), (9.1, 4.55), 1.5, "4 lanes", (0, 0.22))
    way(ax, (6.0, 4.1), (6.0, 2.9), 6, f"16 lanes for all: {LANES_GB_PER_S} GB/s", (1.9, 0))
    for gpu in range(4):
        x = 0.4 + 2.9 * gpu
        part(ax, (x, 0.2), (2.5, 0.9), f"GPU {gpu}", BLUE, "white")
        way(ax, (x + 1.25, 1.1), (3.75 + 1.5 * gpu, 2.2), 6, "", (0, 0))
    ax.text(6.0, 1.55, f"16 lanes each: together {4 * LANES_GB_PER_S:.0f} GB/s", ha="center",
            size=FONT_PT, color=INK, bbox={"fc": "white", "ec": "none"})  # fmt: skip
    return picture


def cluster_with_servers() -> Picture:
    """Two machines of four GPUs, their parameter servers, and the three levels of an exchange."""
    picture = Picture(summary="A GPU cluster with parameter servers", size_px=(960, 500))
    ax = picture.add_subplot()
    ax.set(xlim=(0, 12), ylim=(0, 6.1))
    ax.axis("off")
    for server in range(2):
        part(ax, (2.1 + 4.6 * server, 5.0), (3.2, 1.0), f"server {server}: keeps half\n"
              "of the parameters", ORANGE, INK)  # fmt: skip
    part(ax, (3.2, 3.6), (5.6, 0.6), "network switch", PALE, INK)
    for machine in range(2):
        left = 0.2 + 6.0 * machine
        ax.add_patch(Rectangle((left, 0.1), 5.6, 2.75, facecolor="none", edgecolor=INK))
        ax.text(left + 0.12, 2.55, f"machine {machine}", size=FONT_PT, color=INK, va="center")
        ax.text(left + 5.45, 2.55, "PCIe: faster", size=FONT_PT, color=INK, va="center", ha="right")
        part(ax, (left + 1.4, 1.55), (2.8, 0.7), "sum of 4 gradients", GREEN, "white")
        for gpu in range(4):
            x = left + 0.2 + 1.32 * gpu
            part(ax, (x, 0.25), (1.24, 0.6), f"GPU {gpu}", BLUE, "white")
            way(ax, (x + 0.62, 0.85), (left + 1.95 + 0.57 * gpu, 1.55), 5, "", (0, 0))
        way(ax, (left + 2.8, 2.25), (3.9 + 4.2 * machine, 3.6), 1.5, "", (0, 0))
        way(ax, (3.7 + 4.6 * machine, 5.0), (4.2 + 3.6 * machine, 4.2), 1.5, "", (0, 0))
    for y, text in ((4.6, "push gradients, pull parameters"), (3.15, "network: slow")):
        ax.text(6.0, y, text, ha="center", va="center", size=FONT_PT, color=INK)
    return picture


def warp_at_an_if() -> Picture:
    """The 32 threads of a warp: at an `if`, some take each branch, and the others wait."""
    picture, ax = sheet("A warp at an if", 4.6)
    takes = [thread // 4 % 2 == 0 for thread in range(WARP)]
    rows = (
        ("if x > 0:", [True] * WARP, GREEN), ("    y = x", takes, BLUE),
        ("else:", None, ""), ("    y = 0", [not one for one in takes], ORANGE),
        ("z = y + 1", [True] * WARP, GREEN),
    )  # fmt: skip
    words(ax, (6.6, 4.35), "a warp: 32 threads", weight="bold")
    for i, (code, working, colour) in enumerate(rows):
        y = 3.65 - 0.8 * i
        words(ax, (0.1, y), code, ha="left", family="monospace", weight="bold")
        if working is None:
            words(ax, (6.6, y), "white threads wait")
            continue
        for thread, works in enumerate(working):
            _thread(ax, (2.3 + 0.27 * thread, y - 0.28), colour if works else "white")
        words(ax, (11.9, y), f"{sum(working)}", ha="right", weight="bold")
    words(ax, (11.9, 4.35), "threads that work", ha="right", weight="bold")
    return picture


def _thread(ax, corner: tuple, colour: str) -> None:
    ax.add_patch(Rectangle(corner, 0.2, 0.56, facecolor=colour, edgecolor=INK, lw=1))


def systolic_array() -> Picture:
    """A grid of multipliers in its third cycle: weights stay, inputs go right, sums go down."""
    picture, ax = sheet("A systolic array", 5.6)
    size, cycle, left, top, pitch = 3, 2, 5.0, 4.0, 1.3
    for row in range(size):
        y = top - pitch * row
        for column in range(size):
            sample = cycle - row - column  # of the batch: it comes here so many cycles late
            busy = 0 <= sample < size
            corner = (left + pitch * column, y - 0.45)
            text = f"w{row}{column}" + (f"\n× x{sample}{row}" if busy else "")
            part(ax, corner, (0.95, 0.9), text, BLUE if busy else PALE, "white" if busy else INK)
            arrow(ax, (corner[0] - 0.35, y), (corner[0], y))
            arrow(ax, (corner[0] + 0.475, y - 0.45), (corner[0] + 0.475, y - 0.85))
        for place, sample in enumerate(range(cycle - row + 1, size)):
            words(ax, (left - 0.8 - 0.75 * place, y), f"x{sample}{row}")
    words(ax, (0.1, top - 0.15), "inputs go right,\none cell in a cycle", ha="left")
    words(ax, (left + 1.78, 5.15), "weights stay: read once, used for every sample")
    words(ax, (left + 1.78, 0.25), "sums go down and leave the grid here")
    words(ax, (9.2, top - pitch), "blue: multiplies\nin the third cycle", ha="left")
    return picture


def cpu_beside_gpu() -> Picture:
    """A processor's few large cores and large cache beside a GPU's many multiprocessors."""
    picture, ax = sheet("A processor beside a GPU", 6.0)
    gpu = par.machines.ACCELERATORS["V100-SXM2-16GB"]
    cores = par.machines.machine("8x-v100-dgx1").host.cores // 2
    words(ax, (2.85, 5.75), "Xeon E5-2698 v4", weight="bold")
    words(ax, (9.15, 5.75), "V100", weight="bold")
    words(ax, (2.85, 5.3), f"{cores} large cores")
    words(ax, (9.15, 5.3), f"{gpu.multiprocessors} multiprocessors")
    _grid(ax, (0.1, 3.4), (5.5, 1.65), cores, 10, GREEN)
    l2_mb = gpu.l2_bytes >> 20
    l2_height = L3_HEIGHT * l2_mb / XEON_L3_MB  # to scale, and too low for words inside
    _grid(ax, (6.4, 2.0 + l2_height), (5.5, 3.05 - l2_height), gpu.multiprocessors, 20, BLUE)
    _cache(ax, (0.1, 1.9), (5.5, L3_HEIGHT))
    words(ax, (2.85, 1.9 + L3_HEIGHT / 2), f"L3: {XEON_L3_MB} MB")
    _cache(ax, (6.4, 1.9), (5.5, l2_height))
    words(ax, (7.3, 1.55), f"L2: {l2_mb} MB")
    _memory(ax, 2.85, XEON_GB_PER_S, "main memory")
    memory = f"memory: {gpu.memory_bytes / 1e9:.0f} GB"
    _memory(ax, 9.15, gpu.memory_bytes_per_s / 1e9, memory)
    return picture


def _grid(ax, corner: tuple, size: tuple, parts: int, columns: int, colour: str) -> None:
    """So many equal parts in rows."""
    width, height = size[0] / columns, size[1] / (parts // columns)
    for i in range(parts):
        place = (corner[0] + i % columns * width, corner[1] + i // columns * height)
        ax.add_patch(Rectangle(place, width, height, facecolor=colour, edgecolor="white", lw=3))


def _cache(ax, corner: tuple, size: tuple) -> None:
    ax.add_patch(Rectangle(corner, *size, facecolor=YELLOW))


def _memory(ax, middle: float, gb_per_s: float, text: str) -> None:
    """A memory, and a link to it as wide as it is fast."""
    part(ax, (middle - 2.75, 0.05), (5.5, 0.65), text, PALE, INK, LARGE_PT)
    width = gb_per_s / 700
    ax.add_patch(Rectangle((middle - width / 2, 0.7), width, 1.2, facecolor=ORANGE))
    words(ax, (middle + width / 2 + 0.15, 1.3), f"{gb_per_s:.0f} GB/s", ha="left")
