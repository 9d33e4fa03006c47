"""Fashion-MNIST as tensors: from a folder, the cache, a download or, offline, drawn."""

import functools
import gzip
import hashlib
import logging
import math
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from d2lpar import garments

REAL, SYNTHETIC = "Fashion-MNIST", "synthetic"
SPLITS = garments.SPLITS
CLASSES = len(garments.CLASSES)
SIDE = garments.SIDE

# Names and MD5 sums as in torchvision.datasets.FashionMNIST; each split has images, then labels.
FILES = {
    "train": {
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    },
    "test": {
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
}
MIRRORS = (  # the authors' repository, Keras's copy, the authors' first address
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
CONNECT_S, READ_S = 3, 10  # how long a mirror may take to answer, and to send the next bytes

COPY_AGAIN = "Copy the file again, or name no folder to have Fashion-MNIST downloaded."
PUT_THERE = "Put the four Fashion-MNIST files there, or name another folder (D2LPAR_DATA or root)."
STAND_IN = "Fashion-MNIST is not to be had (%s): drawing the synthetic stand-in."

Pair = tuple[torch.Tensor, torch.Tensor]
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


def fashion_mnist(
    batch_size: int,
    *,
    root: str | os.PathLike | None = None,
    device: torch.device | str | None = None,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    train_size: int | None = None,
    test_size: int | None = None,
    allow_download: bool = True,
) -> tuple[Batches, Batches]:
    """Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): loaders of the training and of the test images.

    The images come from the folder `root`, or else from the one that the environment variable
    D2LPAR_DATA names; with neither, from the first of: this user's cache; a download into that
    cache; pictures drawn by `garments.draw`. The word "synthetic" in place of a folder asks for
    those at once. The loaders' `source` says which it was; why there was no download is logged at
    level INFO.

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
    sizes = {"batch_size": batch_size, "train_size": train_size, "test_size": test_size}
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name} is {size}: it must be at least 1.")
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


def _source(root: str | os.PathLike | None, allow_download: bool) -> tuple[str, Callable]:
    """The name of the source, and its function (split, size) -> uint8 [n, 1, 28, 28], int64 [n]."""
    if root == SYNTHETIC:
        return SYNTHETIC, _draw
    if root:
        return REAL, functools.partial(_read, Path(root).expanduser())
    cache = _cache_folder()
    problem = "" if _is_complete(cache) else "not in the cache"
    if problem and allow_download:
        problem = _download(cache, MIRRORS)
    if not problem:
        return REAL, functools.partial(_read, cache)
    log.info(STAND_IN, problem)
    return SYNTHETIC, _draw


def _draw(split: str, size: int | None) -> Pair:
    full = {"train": 60_000, "test": 10_000}[split]
    return garments.draw(min(size or full, full), split=split)


def _read(root: Path, split: str, size: int | None) -> Pair:
    """The first `size` images and labels of a split from a folder."""
    image_file, label_file = (_find(root, name) for name in FILES[split])
    images = _read_idx(image_file, SIDE, SIDE)
    labels = _read_idx(label_file)
    if len(labels) != len(images):
        found = f"{len(labels):,}"
        raise DataError(label_file, expected=f"{len(images):,} labels, one an image", found=found)
    if labels.max() >= CLASSES:
        where = int(labels.argmax())
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
    raw = _gunzip(file) if file.suffix == ".gz" else file.read_bytes()
    magic, start = bytes((0, 0, 8, 1 + len(item))), 4 * (2 + len(item))
    if raw[:4] != magic:
        found = f"0x{raw[:4].hex()}" if raw else "an empty file"
        raise DataError(file, expected=f"the IDX magic number 0x{magic.hex()}", found=found)
    if len(raw) < start:
        raise DataError(file, expected=f"a header of {start} bytes", found=f"{len(raw)} bytes")
    n, *dims = (int.from_bytes(raw[at : at + 4]) for at in range(4, start, 4))
    if n == 0 or dims != list(item):
        expected = "at least one item" + (" of {} x {} pixels".format(*item) if item else "")
        raise DataError(file, expected=expected, found=" x ".join(map(str, (n, *dims))))
    size = start + n * math.prod(item)
    if len(raw) != size:
        expected = f"{size:,} bytes (as its header says)"
        raise DataError(file, expected=expected, found=f"{len(raw):,}")
    return np.frombuffer(bytearray(raw), np.uint8, offset=start).reshape(n, *item)


def _gunzip(file: Path) -> bytes:
    raw = file.read_bytes()
    try:
        return gzip.decompress(raw)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        found = f"{len(raw):,} bytes that do not unpack ({error})"
        raise DataError(file, expected="a whole gzip file", found=found) from error


# --- The cache and the download ------------------------------------------------------------------


def _cache_folder() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("d2lpar", appauthor=False) / "fashion-mnist"


def _downloads() -> dict[str, str]:
    """The four files as the mirrors have them, with their MD5 sums."""
    return {f"{name}.gz": md5 for split in SPLITS for name, md5 in FILES[split].items()}


def _is_complete(cache: Path) -> bool:
    """Whether the cache holds the four files, unharmed."""
    return all(_has_md5(cache / name, md5) for name, md5 in _downloads().items())


def _has_md5(file: Path, md5: str) -> bool:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "md5").hexdigest() == md5
    except OSError:
        return False


@functools.cache  # so that a process waits once for a network that does not answer
def _download(cache: Path, mirrors: tuple[str, ...]) -> str:
    """Fill the cache. Returns what went wrong, or an empty text."""
    from filelock import FileLock

    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / ".lock"):  # a second process waits, then finds the files
            answering = _answering(mirrors)
            for name, md5 in _downloads().items():
                _fetch(name, md5, cache, answering)
    except OSError as error:  # no network, no permission, no space: the stand-in serves
        return str(error)
    return ""


def _fetch(name: str, md5: str, cache: Path, mirrors: list[str]) -> None:
    """Get one file from the first mirror that has it whole, unless it is there already.

    pooch writes to a temporary file beside the target and renames it once its checksum is right,
    so that no half a file ever bears the name.
    """
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    problems = []
    for mirror in mirrors:
        get = pooch.HTTPDownloader(
            progressbar=sys.stderr.isatty() or "ipykernel" in sys.modules,
            chunk_size=1 << 16,
            timeout=(CONNECT_S, READ_S),
            headers={"Accept-Encoding": "identity"},  # the sums are those of the gzipped files
        )
        try:
            pooch.retrieve(mirror + name, f"md5:{md5}", fname=name, path=cache, downloader=get)
            return
        except (OSError, ValueError) as error:  # ValueError is a wrong checksum
            problems.append(f"{mirror}: {error}")
    raise ConnectionError("; ".join(problems))


def _answering(mirrors: tuple[str, ...]) -> list[str]:
    """The mirrors that answer at all within CONNECT_S, in the order of preference.

    Asked all at once and from threads: looking up a name has no timeout of its own, and behind a
    firewall that swallows packets each of them would take its time.
    """
    import requests

    answers = set()

    def ask(mirror: str) -> None:
        try:
            requests.head(mirror, timeout=CONNECT_S)
            answers.add(mirror)
        except requests.RequestException as error:
            log.info("%s does not answer: %s", mirror, error)

    threads = [threading.Thread(target=ask, args=(mirror,), daemon=True) for mirror in mirrors]
    deadline = time.monotonic() + CONNECT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    answering = [mirror for mirror in mirrors if mirror in answers]
    if not answering:
        raise ConnectionError(f"none of {len(mirrors)} mirrors answers within {CONNECT_S} s")
    return answering
