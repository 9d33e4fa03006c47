"""Fashion-MNIST as tensors: from a folder, the cache, a download or, offline, drawn."""

import contextlib
import functools
import gzip
import io
import logging
import math
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from ..timeline.inputs import Count, Index, checked
from . import download, synthetic_fashion

Readable = gzip.GzipFile | io.BufferedReader

REAL, SYNTHETIC = "Fashion-MNIST", "synthetic"
SPLITS = synthetic_fashion.SPLITS
CLASSES = len(synthetic_fashion.CLASSES)
SIDE = synthetic_fashion.SIDE
PIECE_BYTES = 1 << 20

COPY_AGAIN = "Copy the file again, or name no folder to have Fashion-MNIST downloaded."
PUT_THERE = "Put the four Fashion-MNIST files there, or name another folder (D2LPAR_DATA or root)."
STAND_IN = "Fashion-MNIST is not to be had (%s): drawing the synthetic stand-in."

Pair = tuple[torch.Tensor, torch.Tensor]
Reader = Callable[[str, int | None], Pair]
log = logging.getLogger(__name__)


class DataError(ValueError):
    """A data file is not what it should be: which, what was expected and found, what to do."""

    def __init__(self, file: Path, *, expected: str, found: str, remedy: str = COPY_AGAIN):
        super().__init__(f"{file}: expected {expected}, found {found}. {remedy}")
        self.file, self.expected, self.found, self.remedy = file, expected, found, remedy


class Batches:
    """Batches of images held whole in memory, to be iterated over again and again.

    Each pass makes a new order from `seed` and the number of the pass, so that equal loaders give
    equal batches.

    Attributes:
        X: images, float32 [N, 1, 28, 28], 0..1.
        y: labels, int64 [N], 0..9.
        batch_size: images a batch; the last batch may be smaller.
        num_examples: images a pass.
        source: "Fashion-MNIST" or "synthetic": where the images come from, for captions.

    """

    def __init__(
        self,
        X: torch.Tensor,
        y: torch.Tensor,
        batch_size: int,
        *,
        source: str,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ):
        self.X, self.y, self.batch_size, self.source = X, y, batch_size, source
        self._shuffle, self._seed, self._passes = shuffle, seed, 0
        self.num_examples = len(y) - len(y) % batch_size if drop_last else len(y)

    def __len__(self) -> int:
        """Batches a pass."""
        return math.ceil(self.num_examples / self.batch_size)

    def __iter__(self) -> Iterator[Pair]:
        """One pass: (X float32 [B, 1, 28, 28], y int64 [B]), copies that may be written to."""
        order = self._order()[: self.num_examples].to(self.X.device)
        self._passes += 1
        return (
            (self.X.index_select(0, rows), self.y.index_select(0, rows))
            for rows in order.split(self.batch_size)
        )

    def _order(self) -> torch.Tensor:
        if not self._shuffle:
            return torch.arange(len(self.y), device="cpu")
        # Mixing, because seed + pass would give the runs of neighbouring seeds the same orders.
        mixed = np.random.SeedSequence((self._seed, self._passes)).generate_state(1)
        generator = torch.Generator("cpu").manual_seed(int(mixed[0]))
        return torch.randperm(len(self.y), generator=generator, device="cpu")


@checked
def fashion_mnist(
    batch_size: Count,
    *,
    root: str | os.PathLike | None = None,
    device: torch.device | str | None = None,
    shuffle: bool = True,
    seed: Index = 0,
    drop_last: bool = False,
    train_size: Count | None = None,
    test_size: Count | None = None,
    allow_download: bool = True,
) -> tuple[Batches, Batches]:
    """Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): loaders of the training and of the test images.

    The images come from the folder `root`, or else from the one that the environment variable
    D2LPAR_DATA names; with neither, from the first of: this user's cache; a download into that
    cache; pictures drawn by `synthetic_fashion.draw`. The word "synthetic" in place of a folder
    asks for those at once. The loaders' `source` says which it was; why there was no download is
    logged at level INFO.

    Args:
        batch_size: images a batch.
        root: a folder with the four IDX files, gzipped or not, or with FashionMNIST/raw in it.
        device: where the tensors are to be; the CPU if not given. All training images take 188 MB.
        shuffle: reorder the training images in every pass; the test images keep their order.
        seed: of the shuffling, 0 or more.
        drop_last: leave out a last, smaller batch of training images; test images all count.
        train_size: use the first so many training images, or all there are if they are fewer.
        test_size: the same for the test images.
        allow_download: False to stay off the network.

    Raises:
        DataError: a file in the named folder is missing or corrupt.
        ValueError: a size is less than 1, or drop_last would leave nothing.

    """
    source, read = _source(root or os.environ.get("D2LPAR_DATA"), allow_download)
    train, test = (
        _to_device(*read(split, size), device)
        for split, size in zip(SPLITS, (train_size, test_size), strict=True)
    )
    if drop_last and len(train[1]) < batch_size:
        raise ValueError(
            f"drop_last with batch_size {batch_size} leaves none of {len(train[1])} training "
            "images: choose a smaller batch or drop_last=False."
        )
    return (
        Batches(*train, batch_size, source=source, shuffle=shuffle, seed=seed, drop_last=drop_last),
        Batches(*test, batch_size, source=source),
    )


def _to_device(X: torch.Tensor, y: torch.Tensor, device: torch.device | str | None) -> Pair:
    """Float32 0..1 on the device; the bytes are what travels to it."""
    # As fast as converting each batch, and X is what a reader expects it to be.
    return X.to(device).float().div_(255), y.to(device)


# --- Sources -------------------------------------------------------------------------------------


def _source(root: str | os.PathLike | None, allow_download: bool) -> tuple[str, Reader]:
    """The name of the source, and its function (split, size) -> uint8 [n, 1, 28, 28], int64 [n]."""
    if root == SYNTHETIC:
        return SYNTHETIC, _draw
    if root:
        return REAL, functools.partial(_read, Path(root).expanduser())
    cache = download.cache_folder()
    problem = "" if download.is_complete(cache) else "not in the cache"
    if problem and allow_download:
        problem = download.fill(cache, download.MIRRORS)
    if not problem:
        return REAL, functools.partial(_read, cache)
    log.info(STAND_IN, problem)
    return SYNTHETIC, _draw


def _draw(split: str, size: int | None) -> Pair:
    full = {"train": 60_000, "test": 10_000}[split]
    return synthetic_fashion.draw(min(size or full, full), split=split)


def _read(root: Path, split: str, size: int | None) -> Pair:
    """The first `size` images and labels of a split from a folder."""
    image_file, label_file = (_find(root, name) for name in download.FILES[split])
    images = _read_idx(image_file, SIDE, SIDE)
    labels = _read_idx(label_file)
    if len(labels) != len(images):
        found = f"{len(labels):,}"
        raise DataError(label_file, expected=f"{len(images):,} labels, one an image", found=found)
    if labels.max() >= CLASSES:
        where = int(np.flatnonzero(labels >= CLASSES)[0])
        found = f"{labels[where]} at position {where}"
        raise DataError(label_file, expected=f"labels from 0 to {CLASSES - 1}", found=found)
    return torch.from_numpy(images[:size, None]), torch.from_numpy(labels[:size].astype(np.int64))


def _find(root: Path, name: str) -> Path:
    """The file of this name, as it is or gzipped, where people and torchvision put it."""
    for folder in (root, root / "FashionMNIST" / "raw"):
        for file in (folder / name, folder / f"{name}.gz"):
            if file.is_file():
                return file
    found = f"{sorted(os.listdir(root))[:8]} in it" if root.is_dir() else "no such folder"
    expected = "this file, plain or with .gz"
    raise DataError(root / name, expected=expected, found=found, remedy=PUT_THERE)


# --- The IDX format: magic number, sizes, bytes --------------------------------------------------


def _read_idx(file: Path, *item: int) -> np.ndarray:
    """The uint8 [n, *item] array in an IDX file, gzipped if its name says so.

    The format, as the page of MNIST (LeCun, Cortes, Burges) gives it: two zero bytes, 8 for
    unsigned bytes, the number of dimensions, each of them in four bytes, the most significant
    first, and the data.
    """
    with _unpacked(file) as stream:
        start = 4 * (2 + len(item))
        n = _read_sizes(stream.read(start), file, item)
        data = _read_at_most(stream, n * math.prod(item) + 1)  # one more shows that there is more
    if len(data) != n * math.prod(item):
        size, read = start + n * math.prod(item), start + len(data)
        expected = f"{size:,} bytes (as its header says)"
        raise DataError(file, expected=expected, found=f"{read:,}" + " or more" * (read > size))
    return np.frombuffer(data, np.uint8).reshape(n, *item)


def _read_sizes(header: bytes, file: Path, item: tuple[int, ...]) -> int:
    """The number of items, from a header that must be right for `item`."""
    magic, start = bytes((0, 0, 8, 1 + len(item))), 4 * (2 + len(item))
    if header[:4] != magic:
        found = f"0x{header[:4].hex()}" if header else "an empty file"
        raise DataError(file, expected=f"the IDX magic number 0x{magic.hex()}", found=found)
    if len(header) < start:
        found = f"{len(header)} bytes"
        raise DataError(file, expected=f"a header of {start} bytes", found=found)
    n, *dims = (int.from_bytes(header[at : at + 4]) for at in range(4, start, 4))
    if n == 0 or dims != list(item):
        expected = "at least one item" + (" of {} x {} pixels".format(*item) if item else "")
        raise DataError(file, expected=expected, found=" x ".join(map(str, (n, *dims))))
    return n


def _read_at_most(stream: Readable, nbytes: int) -> bytearray:
    """The next `nbytes`, or what there is; in pieces, for a header may promise terabytes."""
    data = bytearray()
    while piece := stream.read(min(PIECE_BYTES, nbytes - len(data))):
        data += piece
    return data


@contextlib.contextmanager
def _unpacked(file: Path) -> Iterator[Readable]:
    """The file's bytes, unpacked while they are read if its name says that it is gzipped."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        found = f"{file.stat().st_size:,} bytes that do not unpack ({error})"
        raise DataError(file, expected="a whole gzip file", found=found) from error
