"""Grids of small images under their labels."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from . import texts
from .picture import Picture
from .style import INK, SMALL_PT


def images(
    X: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    names: Sequence[str] = (),
    note: str = "",
    columns: int = 8,
    image_px: int = 90,
) -> Picture:
    """A grid of a few grey images under their labels.

    X: [N, 1, H, W] or [N, H, W], values 0..1, an array or a tensor on any device. labels: N whole
    numbers, shown as `names[label]` if names are given. `note` says where the images come from.
    Raises ValueError for other shapes, and for more or fewer labels than images.
    """
    grey, numbers = _array(X), _array(labels).reshape(-1)
    grey = grey[:, 0] if grey.ndim == 4 and grey.shape[1] == 1 else grey
    if grey.ndim != 3 or len(grey) == 0:
        raise ValueError(texts.ERROR_IMAGES.format(shape=list(grey.shape)))
    if len(numbers) != len(grey):
        raise ValueError(texts.ERROR_LABELS.format(images=len(grey), labels=len(numbers)))
    shown = [_label(int(number), names) for number in numbers]
    columns = min(columns, len(grey))
    rows = -(-len(grey) // columns)
    picture = Picture(
        summary=texts.IMAGES.format(count=len(grey)), alt=", ".join(filter(None, (*shown, note))),
        note=note, size_px=(columns * image_px, rows * (image_px + 26) + 30 * bool(note)),
    )  # fmt: skip
    axes = picture.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes:
        ax.axis("off")
    for ax, image, label in zip(axes, grey, shown, strict=False):
        ax.imshow(image, cmap="gray", vmin=0, vmax=1)
        ax.set_title(label, size=SMALL_PT, color=INK)
    return picture


def _array(values: npt.ArrayLike) -> np.ndarray:
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def _label(label: int, names: Sequence[str]) -> str:
    if not names:
        return str(label)
    if not 0 <= label < len(names):
        raise ValueError(texts.ERROR_NAMES.format(label=label, count=len(names)))
    return names[label]
