"""A layer of FSDP: what two GPUs hold of it, moment by moment."""

from matplotlib.patches import Rectangle

from d2lpar.plots import BLUE, GREEN, INK, ORANGE, Picture

from .parts import arrow, key, sheet, words

SHARDS = (BLUE, ORANGE)  # by the GPU that stores them
PIECE, ACROSS, LINE = 0.5, 2.85, 0.17  # of a piece, of a frame, of a piece in the line of memory
# What is to be read above, which pieces of W and of its gradient GPU 0 and GPU 1 hold, and whether
# something is sent.
OWN, ALL, NONE = ((0,), (1,)), ((0, 1), (0, 1)), ((), ())
FORWARD = (
    ("at rest", OWN, NONE, False),
    ("1 gather", ALL, NONE, True),
    ("2 compute", ALL, NONE, False),
    ("3 free", OWN, NONE, False),
)
BACKWARD = (
    ("1 gather", ALL, NONE, True),
    ("2 compute", ALL, ALL, False),
    ("3 add up", ALL, OWN, True),
    ("4 free", OWN, OWN, False),
)


def gather_and_free() -> Picture:
    """The matrix of a layer comes and goes, forward and backward, and memory with it."""
    picture, ax = sheet("FSDP: one layer is gathered, used and freed", 8.3)
    for middle, text, frames in ((6.25, "forward", FORWARD), (2.35, "backward", BACKWARD)):
        words(ax, (0.2, middle), text, rotation=90, weight="bold")
        for i, frame in enumerate(frames):
            _frame(ax, (0.6 + ACROSS * i, middle + 0.05), *frame)
        _memory(ax, middle - 1.5, [len(W[0]) + len(dW[0]) for _, W, dW, _ in frames])
    for i, (colour, text) in enumerate(
        ((BLUE, "W, first rows"), (ORANGE, "W, last rows"), (GREEN, "gradient of W"))
    ):
        key(ax, (0.6 + 3.9 * i, 0.2), colour, text)
    return picture


def _frame(ax, corner: tuple, title: str, W: tuple, dW: tuple, sends: bool) -> None:
    left, bottom = corner
    words(ax, (left + 1.25, bottom + 1.75), title, weight="bold")
    for gpu in range(2):
        x = left + 1.35 * gpu
        for column, (held, colours) in enumerate(((W, SHARDS), (dW, (GREEN, GREEN)))):
            for row in range(2):
                has = row in held[gpu]
                ax.add_patch(
                    Rectangle(
                        (x + 0.55 * column, bottom + 0.55 * (1 - row)), PIECE, PIECE,
                        facecolor=colours[row] if has else "none", edgecolor=INK,
                        linewidth=1, linestyle="-" if has else ":",
                    )
                )  # fmt: skip
        words(ax, (x + 0.52, bottom + 1.32), f"GPU {gpu}")
    if sends:
        arrow(ax, (left + 1.0, bottom - 0.2), (left + 1.5, bottom - 0.2), arrowstyle="<|-|>")


def _memory(ax, bottom: float, pieces: list[int]) -> None:
    """The pieces that a GPU holds, as a line over the frames."""
    for i, held in enumerate(pieces):
        left, y = 0.6 + ACROSS * i, bottom + LINE * held
        ax.add_patch(Rectangle((left, bottom), 2.45, LINE * held, color=INK, alpha=0.25, lw=0))
        ax.plot((left, left + 2.45), (y, y), color=INK, lw=4)
        words(ax, (left + 1.25, y + 0.22), f"{held} piece{'s' * (held > 1)}")
