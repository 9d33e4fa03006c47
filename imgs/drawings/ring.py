"""The ring all-reduce, frame by frame."""

from matplotlib.patches import Rectangle

from d2lpar.plots import BLUE, FONT_PT, GREEN, INK, ORANGE, Picture

from .parts import arrow, key, sheet, words

RANKS = 3
SUMMANDS = (BLUE, ORANGE, GREEN)  # by the rank that they come from
PIECE, LAYER = 0.4, 0.26
PLACES = ((0, 1.5), (2.3, 1.5), (1.15, 0))  # of the ranks' left lower corners in a frame
WAYS = (  # to the right neighbour: from, to, and the place of a word
    ((1.27, 1.8), (2.24, 1.8), (1.75, 2.05)),
    ((2.75, 1.42), (2.42, 0.55), (3.12, 0.95)),
    ((1.08, 0.55), (0.75, 1.42), (0.38, 0.95)),
)
FRAMES = (  # what is to be read above, and the step that its arrows show
    ("step 0: add", 0), ("step 1: add", 1), ("one sum each", None),
    ("step 2: replace", 2), ("step 3: replace", 3), ("each has all sums", None),
)  # fmt: skip


def ring() -> Picture:
    """Three ranks and three pieces: whose summands each rank has, and what travels next."""
    picture, ax = sheet("The ring all-reduce of three ranks", 7.3)
    held = [[{rank} for _ in range(RANKS)] for rank in range(RANKS)]
    for i, (title, step) in enumerate(FRAMES):
        left, bottom = 0.55 + 3.9 * (i % 3), 4.15 - 3.45 * (i // 3)
        words(ax, (left + 1.75, bottom + 2.85), title, weight="bold")
        _frame(ax, (left, bottom), held, step)
        if step is not None:
            held = _after(held, step)
    for middle, text in ((5.6, "reduce-scatter"), (2.1, "all-gather")):
        words(ax, (0.15, middle), text, rotation=90, weight="bold")
    for rank, colour in enumerate(SUMMANDS):
        key(ax, (0.55 + 2.2 * rank, 0.2), colour, f"from rank {rank}")
    ax.add_patch(Rectangle((7.45, 0.03), 0.34, 0.34, fill=False, edgecolor=INK, linewidth=4))
    words(ax, (7.95, 0.2), "is sent next", ha="left")
    return picture


def _sent(rank: int, step: int) -> int:
    """The piece that a rank sends, as in the lesson."""
    return (rank - step) % RANKS


def _after(held: list, step: int) -> list:
    """Whose summands each piece of each rank has after a step."""
    after = [[set(piece) for piece in rank] for rank in held]
    for rank in range(RANKS):
        piece, right = _sent(rank, step), (rank + 1) % RANKS
        keeps = held[right][piece] if step < RANKS - 1 else set()
        after[right][piece] = keeps | held[rank][piece]
    return after


def _frame(ax, corner: tuple, held: list, step: int | None) -> None:
    for rank, (x, y) in enumerate(PLACES):
        left, bottom = corner[0] + x, corner[1] + y
        for piece, summands in enumerate(held[rank]):
            _piece(ax, (left + PIECE * piece, bottom), summands)
        if step is None:
            continue
        piece = _sent(rank, step)
        place = (left + PIECE * piece, bottom)
        frame = Rectangle(place, PIECE, RANKS * LAYER, fill=False, edgecolor=INK, linewidth=4)
        ax.add_patch(frame)
        start, end, word = ((corner[0] + x, corner[1] + y) for x, y in WAYS[rank])
        arrow(ax, start, end)
        words(ax, word, f"piece {piece}", size=FONT_PT)
    for rank, (x, y) in enumerate(PLACES):
        below = y - 0.2 if rank == RANKS - 1 else y + RANKS * LAYER + 0.2
        words(ax, (corner[0] + x + 1.5 * PIECE, corner[1] + below), f"rank {rank}")


def _piece(ax, place: tuple, summands: set) -> None:
    """One layer for each rank whose summand is in the piece, always at the same height."""
    for rank, colour in enumerate(SUMMANDS):
        layer = (place[0], place[1] + rank * LAYER)
        fill = colour if rank in summands else "white"
        ax.add_patch(Rectangle(layer, PIECE, LAYER, facecolor=fill, edgecolor=INK, linewidth=0.8))
