"""A step of data parallelism."""

from matplotlib.patches import Rectangle

from d2lpar.plots import INK, PALE, Picture

from .parts import DEVICES, LARGE_PT, arrow, part, sheet, words

MIDDLES = (3.65, 1.15)  # of the devices' lanes
SEND_TO = 8.35


def data_parallel_step() -> Picture:
    """The five steps on two devices, from left to right."""
    picture, ax = sheet("A step of data parallelism on two devices", 5.3)
    headings = ((0.5, "batch"), (4.0, "1 read, 2 get"), (6.55, "3 compute"))
    for x, text in (*headings, (9.05, "4 send"), (11.1, "5 update")):
        words(ax, (x, 5.05), text, weight="bold")
    part(ax, (1.15, 2.0), (1.5, 0.8), "parameters", PALE, INK)
    words(ax, (1.9, 1.72), "once")
    for device, middle in enumerate(MIDDLES):
        _lane(ax, device, middle)
    words(ax, (11.1, 2.4), "equal")
    for out in (1, -1):
        ax.plot((11.1, 11.1), (2.4 + 0.22 * out, 2.4 + 0.8 * out), color=INK)
    return picture


def _lane(ax, device: int, middle: float) -> None:
    """What one device has, and what it sends to the other."""
    colour, ink, name = DEVICES[device]
    out = 1 - 2 * device  # the shard lies on the outer side, the replica on the inner
    shard, replica = middle + 0.45 * out, middle - 0.45 * out
    ax.add_patch(Rectangle((3.0, middle - 0.98), 8.9, 1.96, fill=False, edgecolor=colour, lw=3))
    words(ax, (11.1, middle + 0.72 * out), name, weight="bold")
    ax.add_patch(Rectangle((0.1, 2.4 - 2.25 * device), 0.8, 2.25, facecolor=colour))
    arrow(ax, (0.95, shard), (3.15, shard))
    arrow(ax, (2.7, 2.4 + 0.15 * out), (3.15, replica))
    part(ax, (3.2, shard - 0.36), (1.6, 0.72), f"shard {device}", colour, ink, LARGE_PT)
    part(ax, (3.2, replica - 0.36), (1.6, 0.72), "replica", PALE, INK, LARGE_PT)
    for y in (shard, replica):
        arrow(ax, (4.85, y), (5.6, middle + 0.2 * (y - middle)))
    part(ax, (5.65, middle - 0.4), (1.8, 0.8), f"gradient {device}", colour, ink, LARGE_PT)
    for to in MIDDLES:
        arrow(ax, (7.5, middle), (SEND_TO - 0.05, to + 0.06 * (middle - to)))
    for half, (fill, *_) in enumerate(DEVICES):
        ax.add_patch(Rectangle((SEND_TO + 0.7 * half, middle - 0.4), 0.7, 0.8, facecolor=fill))
    words(ax, (SEND_TO + 0.7, middle + 0.62 * out), "sum")
    arrow(ax, (SEND_TO + 1.45, middle), (10.25, middle))
    part(ax, (10.3, middle - 0.42), (1.5, 0.84), "new\nreplica", PALE, INK, LARGE_PT)
