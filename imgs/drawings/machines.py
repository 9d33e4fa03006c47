"""Processors, servers and clusters."""

from matplotlib.patches import Rectangle

from d2lpar.plots import BLUE, FONT_PT, GREEN, INK, ORANGE, PALE, Picture

from .parts import part, way

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
