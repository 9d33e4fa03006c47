"""Ten classes of garments, drawn: what Fashion-MNIST looks like to someone who is offline.

Every picture is a silhouette with random proportions (a `Style` says which are likely for its
class), filled with a random fabric and seen through a small rotation, shift and change of scale.
The styles of the five tops overlap, as do those of the shoes, so that classes are confused here as
they are in the real images.

Drawing uses + - * /, comparisons and square roots only. IEEE 754 fixes those to the last bit, so
every machine draws the same pictures.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

CLASSES = (
    "t-shirt", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip

SPLITS = ("train", "test")
SIDE = 28  # pixels
BLOCK = 500  # images drawn from one seed: image i never depends on how many are asked for
DICE = 48  # random numbers an image may use
EDGE = SIDE / 2  # one over the width of a soft edge: one pixel, where the picture spans -1..1

Array = np.ndarray
Range = tuple[float, float]


def draw(n: int, *, split: str = "train", seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `n` pictures of a split, and their classes.

    Args:
        n: how many; asking for fewer gives the beginning of the same sequence.
        split: "train" or "test"; the two share no random numbers.
        seed: another seed, other pictures.

    Returns:
        Images, uint8 [n, 1, 28, 28], and labels, int64 [n], in Fashion-MNIST's order (`CLASSES`).

    Raises:
        ValueError: there is no such split.

    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}: it must be one of {SPLITS}.")
    stream = SPLITS.index(split)
    blocks = -(-n // BLOCK)
    images = np.empty((blocks, BLOCK, 1, SIDE, SIDE), np.uint8)
    labels = np.empty((blocks, BLOCK), np.int64)
    for block in range(blocks):
        images[block, :, 0], labels[block] = _block((seed, stream, block))
    return torch.from_numpy(images).flatten(0, 1)[:n], torch.from_numpy(labels).flatten()[:n]


class Dice:
    """Random numbers of `n` pictures, handed out a column at a time as [n, 1, 1]."""

    def __init__(self, rolls: Array):
        self._columns = iter(rolls.T[:, :, None, None])

    def __call__(self, low: float, high: float) -> Array:
        """Uniform between `low` and `high`."""
        return np.float32(low) + np.float32(high - low) * next(self._columns)

    def chance(self, probability: float) -> Array:
        """1 with the given probability, else 0."""
        return (next(self._columns) < probability).astype(np.float32)


def _block(seed: tuple[int, int, int]) -> tuple[Array, Array]:
    """The images, uint8 [BLOCK, 28, 28], and labels of one block."""
    # Raw bits, because numpy promises to keep those and not what its distributions make of them.
    bits = np.random.PCG64(np.random.SeedSequence(seed))
    labels = (bits.random_raw(BLOCK) % np.uint64(len(CLASSES))).astype(np.int64)
    high = bits.random_raw(BLOCK * DICE).reshape(BLOCK, DICE) >> np.uint64(40)
    rolls = high.astype(np.float32) / np.float32(1 << 24)
    noise = bits.random_raw(BLOCK * SIDE * SIDE // 4).astype("<u8").view(np.uint8)
    pair = noise.reshape(2, BLOCK, SIDE, SIDE).astype(np.float32)
    grain = (pair[0] + pair[1] - 255) / 255  # triangular on -1..1
    images = np.empty((BLOCK, SIDE, SIDE), np.uint8)
    for label, style in enumerate(STYLES):
        rows = np.flatnonzero(labels == label)
        images[rows] = _photograph(Dice(rolls[rows]), style, grain[rows])
    return images, labels


def _photograph(dice: Dice, style: "Style", grain: Array) -> Array:
    """Pictures of garments of one style, uint8 [n, 28, 28]."""
    u, v = _camera(dice)
    shape, shade = style.shape(dice, u, v, style)
    picture = shape * (shade * _fabric(dice, u, v, grain) + dice(0.02, 0.12) * grain)
    return (255 * picture.clip(0, 1) + 0.5).astype(np.uint8)


def _camera(dice: Dice) -> tuple[Array, Array]:
    """Place of each pixel on the garment: u rightwards, v down, about -1..1, [n, 28, 28]."""
    x = (np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2) / (SIDE / 2)
    y = x[:, None]
    half = dice(-0.08, 0.08)  # tangent of half the angle: a rotation without sine and cosine
    cos, sin = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    x, y = x - dice(-0.14, 0.14), y - dice(-0.14, 0.14)
    return (cos * x + sin * y) / dice(0.85, 1.1), (cos * y - sin * x) / dice(0.88, 1.06)


def _fabric(dice: Dice, u: Array, v: Array, grain: Array) -> Array:
    """Brightness of the cloth, [n, 28, 28]: plain, striped, checked, flowered, shaded."""
    across = dice.chance(0.16) * dice(0.2, 0.6) * _wave(v * dice(2, 5) + dice(0, 1))
    along = dice.chance(0.12) * dice(0.2, 0.6) * _wave(u * dice(2, 5) + dice(0, 1))
    coarse = grain[:, ::2, ::2].repeat(2, axis=1).repeat(2, axis=2)
    flowers = dice.chance(0.25) * dice(0.3, 0.8) * np.abs(coarse)
    fold = dice(-0.2, 0.2) * u + dice(-0.15, 0.15) * v
    dark = dice(0, 0.8)
    return (1 - dark * dark) * (1 - across) * (1 - along) * (1 - flowers) + fold


# --- Strokes: coverage 0..1 of each pixel --------------------------------------------------------


def _inside(distance: Array) -> Array:
    """Coverage, from the distance to the outline (positive inside)."""
    return (EDGE * distance + 0.5).clip(0, 1)


def _wave(t: Array) -> Array:
    """A triangle wave of period 1 between 0 and 1."""
    return 2 * np.abs(t - np.floor(t) - 0.5)


def _stroke(u: Array, v: Array, start: tuple, end: tuple, radius: Array | np.float32) -> Array:
    """A thick line with round ends."""
    du, dv = end[0] - start[0], end[1] - start[1]
    pu, pv = u - start[0], v - start[1]
    t = ((pu * du + pv * dv) / (du * du + dv * dv)).clip(0, 1)
    pu, pv = pu - t * du, pv - t * dv
    return _inside(radius - np.sqrt(pu * pu + pv * pv))


def _ring(u: Array, v: Array, width: Array, height: Array, thick: Array) -> Array:
    """The upper half of an ellipse about the origin, drawn as a line."""
    radius = np.sqrt((u / width) * (u / width) + (v / height) * (v / height))
    return _inside(thick - np.abs(radius - 1) * np.minimum(width, height)) * (v < 0)


def _through(t: Array, start: Array, middle: Array, end: Array) -> Array:
    """The parabola with these values at t = 0, 1/2 and 1."""
    return start + t * ((4 * middle - 3 * start - end) + t * (2 * start - 4 * middle + 2 * end))


# --- Garments: (coverage, shade), both [n, 28, 28] -----------------------------------------------


def _top(dice: Dice, u: Array, v: Array, style: "Style") -> tuple[Array, Array]:
    """T-shirt, pullover, dress, coat, shirt: body, sleeves, neck; perhaps collar, front, print."""
    a = np.abs(u)
    top, hem_v = dice(-0.95, -0.82), dice(*style.length)
    shoulder, hem, nip = dice(*style.shoulder), dice(*style.hem), dice(*style.nip)
    neck, depth, slope = dice(0.14, 0.3), dice(*style.neck), dice(0.15, 0.35)

    width = _through((v - top) / (hem_v - top), shoulder, nip * (shoulder + hem) / 2, hem)
    shoulders = top + np.maximum(slope * a, depth * (1 - (a / neck) * (a / neck)))
    body = _inside(np.minimum(np.minimum(width - a, hem_v - v), v - shoulders))

    long = dice.chance(style.long_sleeves)
    bare = (1 - long) * dice.chance(style.bare)
    reach = long * dice(1.05, 1.5) + (1 - long) * dice(0.22, 0.5)
    spread = long * dice(0.1, 0.3) + (1 - long) * dice(0.35, 0.9)
    radius = dice(*style.sleeve) * (1 - 0.25 * long)
    start = shoulder - radius, top + slope * shoulder + radius
    end = start[0] + spread * reach, start[1] + reach * (1 - 0.4 * (1 - long))
    sleeves = (1 - bare) * _stroke(a, v, start, end, radius)

    seam = dice(0, 0.6) * (1 - EDGE * np.abs(width - a)).clip(0, 1)
    front = dice.chance(style.front) * dice(0.35, 0.9) * _inside(dice(0.01, 0.04) - a)
    collar = dice.chance(style.collar) * dice(-0.6, 0.4)
    collar = collar * _stroke(a, v, (0.04, top + depth + 0.12), (neck, top), np.float32(0.09))
    motif_v, motif_u, motif_h = dice(-0.4, 0), dice(0.12, 0.35), dice(0.05, 0.3)
    motif = _inside(np.minimum(motif_u - a, motif_h - np.abs(v - motif_v)))
    motif = dice.chance(style.print) * dice(-0.7, 0.5) * motif
    return np.maximum(body, sleeves), (1 - seam) * (1 - front) * (1 + collar) * (1 + motif)


def _trouser(dice: Dice, u: Array, v: Array, style: "Style") -> tuple[Array, Array]:
    """Two legs that part below the crotch."""
    a = np.abs(u)
    top, hem_v, crotch = dice(-0.97, -0.88), dice(*style.length), dice(-0.55, -0.2)
    t = (v - top) / (hem_v - top)
    width = _through(t, dice(0.2, 0.34), dice(0.26, 0.4), dice(*style.hem))
    gap = dice(0.02, 0.2) * (v - crotch)
    legs = _inside(np.minimum(np.minimum(width - a, hem_v - v), v - top)) * (1 - _inside(gap - a))
    seam = dice(0, 0.5) * (1 - EDGE * np.abs(a - width / 2) / 2).clip(0, 1)
    return legs, 1 - seam


def _shoe(dice: Dice, u: Array, v: Array, style: "Style") -> tuple[Array, Array]:
    """Sneaker and ankle boot from the side, toe to the left: an upper on a sole."""
    shaft, toe = dice(*style.shaft), dice(0.25, 0.45)
    ground = dice(0.05, 0.25) + shaft / 2
    ankle, rise = dice(-0.2, 0.3), dice(0.3, 0.7)
    t = ((u - ankle + rise) / rise).clip(0, 1)
    height = toe + (shaft - toe) * t * t * (3 - 2 * t)
    tip = ((u + 0.92) / 0.4).clip(0, 1)
    height = height * np.sqrt(tip * (2 - tip)) - dice(0, 0.25) * (u - 0.5).clip(0, 1) * style.dip
    upper = np.minimum(np.minimum(ground - v, v - ground + height), dice(0.8, 0.95) - u)
    arch = np.minimum(v - ground + dice(0, 0.2), np.minimum(u + 0.05, dice(0.25, 0.45) - u))
    shape = _inside(upper) * (1 - dice.chance(style.heel) * _inside(arch))
    sole = dice(-0.7, 0.8) * _inside(v - ground + dice(0.08, 0.2))
    laces = dice.chance(0.6) * dice(-0.6, 0.5) * _wave(dice(2, 4) * (u + v))
    laces = laces * _inside(0.3 - np.abs(u - ankle + 0.1)) * _inside(ground - 0.2 - v)
    return shape, (1 + sole) * (1 + laces)


def _sandal(dice: Dice, u: Array, v: Array, style: "Style") -> tuple[Array, Array]:
    """A thin sole, flat or on a heel, and straps over toes, instep and ankle."""
    lift = dice.chance(style.heel) * dice(0.2, 0.8)
    ground, thick = dice(0.35, 0.6) + lift / 4, dice(0.06, 0.12)
    arch = (u + 0.3).clip(0, 1)
    line = ground - 0.75 * lift * arch * (2 - arch)
    shape = sole = _inside(np.minimum(thick - np.abs(v - line), 0.92 - np.abs(u)))
    heel = (0.8, ground - 0.7 * lift), (dice(0.68, 0.86), ground)
    shape = np.maximum(shape, _stroke(u, v, *heel, thick))
    for place, height, likely in ((-0.55, 0.3, 0.9), (-0.15, 0.45, 0.6), (0.55, 0.75, 0.65)):
        worn, centre = dice.chance(likely), place + dice(-0.15, 0.15)
        radii, strap = (dice(0.12, 0.34), height * dice(0.6, 1.3)), dice(0.05, 0.13)
        lean = u - centre + dice(-0.5, 0.2) * (v - line)
        shape = np.maximum(shape, worn * _ring(lean, v - line, *radii, strap))
    vamp = dice(0.1, 0.35) * (1 - np.abs(u - dice(-0.7, 0.7)))
    vamp = dice.chance(0.25) * _inside(np.minimum(line - v, v - line + vamp))
    return np.maximum(shape, vamp), 1 + dice(-0.5, 0.3) * sole


def _bag(dice: Dice, u: Array, v: Array, style: "Style") -> tuple[Array, Array]:
    """A box with a handle, a flap and a clasp."""
    a = np.abs(u)
    width, top, bottom = dice(*style.hem), dice(-0.45, 0.05), dice(*style.length)
    taper = dice(-0.1, 0.15) * (bottom - v)
    box = _inside(np.minimum(width - taper - a, np.minimum(bottom - v, v - top)))
    reach, rise, thick = dice(0.2, 0.75) * width, dice(0.2, 0.8), dice(0.03, 0.08)
    handle = dice.chance(0.75) * _ring(u, v - top, reach, rise, thick)
    flap_v = top + dice(0.15, 0.6) * (bottom - top)
    flap = dice.chance(0.6) * dice(-0.5, 0.4) * _inside(flap_v - v)
    clasp = _inside(np.minimum(0.1 - a, 0.08 - np.abs(v - flap_v)))
    clasp = dice.chance(0.6) * dice(-0.6, 0.6) * clasp
    return np.maximum(box, handle), (1 + flap) * (1 + clasp)


@dataclass(frozen=True, kw_only=True)
class Style:
    """What is likely in a class: ranges in half-widths of the picture, and probabilities."""

    shape: Callable  # draws it
    length: Range = (0.7, 0.95)  # where the garment ends, v
    shoulder: Range = (0.45, 0.6)
    hem: Range = (0.45, 0.62)
    nip: Range = (0.9, 1.02)  # waist, as a part of the mean of shoulder and hem
    neck: Range = (0.05, 0.25)  # depth of the neckline
    sleeve: Range = (0.13, 0.2)  # half the thickness
    long_sleeves: float = 0
    bare: float = 0  # no sleeves at all
    front: float = 0  # a line of buttons or a zip
    collar: float = 0
    print: float = 0
    shaft: Range = (0.4, 0.6)  # height of a shoe at the ankle
    heel: float = 0
    dip: float = 0  # whether a shoe is lower behind the ankle


STYLES = (
    Style(shape=_top, neck=(0.05, 0.3), long_sleeves=0.1, bare=0.1, collar=0.1, print=0.45),
    Style(shape=_trouser, length=(0.85, 1), hem=(0.16, 0.36)),
    Style(shape=_top, neck=(0.02, 0.2), long_sleeves=0.98, front=0.04, collar=0.1, print=0.3),
    Style(
        shape=_top, length=(0.85, 1), shoulder=(0.22, 0.36), hem=(0.26, 0.55), nip=(0.7, 0.95),
        neck=(0.05, 0.35), sleeve=(0.09, 0.15), long_sleeves=0.25, bare=0.6,
    ),
    Style(
        shape=_top, length=(0.88, 1), hem=(0.5, 0.66), neck=(0.02, 0.25), sleeve=(0.15, 0.21),
        long_sleeves=0.99, front=0.9, collar=0.8,
    ),
    Style(shape=_sandal, heel=0.4),
    Style(
        shape=_top, nip=(0.85, 1), neck=(0.05, 0.3), sleeve=(0.11, 0.17), long_sleeves=0.6,
        bare=0.1, front=0.75, collar=0.6, print=0.05,
    ),
    Style(shape=_shoe, shaft=(0.55, 0.9), heel=0.05, dip=1),
    Style(shape=_bag, length=(0.55, 0.85), hem=(0.5, 0.9)),
    Style(shape=_shoe, shaft=(0.8, 1.6), heel=0.55),
)  # fmt: skip
