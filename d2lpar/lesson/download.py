"""Downloading Fashion-MNIST into a cache: from one of several mirrors, whole or not at all."""

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from ..timeline import waits

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

LEAST_BYTES = 64 << 10  # which a mirror must send in READ_S, and
MOST_BYTES = 64 << 20  # for a file, at most; the largest has 26 MB
LOCK_S = 600  # how long another process may download

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where the files are kept, in the user's cache."""
    import platformdirs

    return platformdirs.user_cache_path("d2lpar", appauthor=False) / "fashion-mnist"


def _gzipped() -> dict[str, str]:
    """The four files as the mirrors have them, with their MD5 sums."""
    return {f"{name}.gz": md5 for files in FILES.values() for name, md5 in files.items()}


def is_complete(cache: Path) -> bool:
    """Whether the cache holds the four files, unharmed."""
    return all(_has_md5(cache / name, md5) for name, md5 in _gzipped().items())


def _has_md5(file: Path, md5: str) -> bool:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "md5").hexdigest() == md5
    except OSError:
        return False


@functools.cache  # so that a process waits once for a network that does not answer
def fill(cache: Path, mirrors: tuple[str, ...]) -> str:
    """Fill the cache. Returns what went wrong, or an empty text."""
    try:
        # A second process waits for the lock, then finds the files.
        with waits.locked(cache / ".lock", limit_s=LOCK_S), _unfinished(cache) as parts:
            answering = _answering(mirrors)
            for name, md5 in _gzipped().items():
                if not _has_md5(cache / name, md5):
                    _fetch(name, md5, parts, answering)
                    os.replace(parts / name, cache / name)
    except OSError as error:  # no network, no permission, no space: the stand-in serves
        return str(error)
    return ""


@contextlib.contextmanager
def _unfinished(cache: Path) -> Iterator[Path]:
    """A folder for what is on its way; without what a killed process left there."""
    parts = cache / "unfinished"
    shutil.rmtree(parts, ignore_errors=True)
    try:
        yield parts
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def _fetch(name: str, md5: str, folder: Path, mirrors: list[str]) -> None:
    """Get one file from the first mirror that has it whole."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    problems = []
    for mirror in mirrors:
        get = pooch.HTTPDownloader(
            progressbar=sys.stderr.isatty() or "ipykernel" in sys.modules,
            chunk_size=1 << 13,
            timeout=(CONNECT_S, READ_S),
            headers={"Accept-Encoding": "identity"},  # the sums are those of the gzipped files
        )
        try:
            within = functools.partial(_get_within_limits, get)
            pooch.retrieve(mirror + name, f"md5:{md5}", fname=name, path=folder, downloader=within)
            return
        except (OSError, ValueError) as error:  # ValueError is a wrong checksum
            problems.append(f"{mirror}: {error}")
    raise ConnectionError("; ".join(problems))


def _get_within_limits(
    get: Callable[[str, IO[bytes], object], object], url: str, to: str, pool: object
) -> None:
    """Download a file from who sends enough, and not too much."""
    with open(to, "wb") as file:
        received = _Received(file)
        waits.while_it_goes_on(
            lambda: get(url, cast(IO[bytes], received), pool), received.went_on, every_s=READ_S
        )


class _Received:
    """A file that takes so many bytes, and none once who waits for them has given up."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._bytes, self._seen = file, 0, 0

    def write(self, piece: bytes) -> int:
        self._bytes += len(piece)
        if self._bytes > MOST_BYTES:
            raise OSError(f"it sends more than {MOST_BYTES:,} bytes for one file")
        return self._file.write(piece)  # ValueError, where it has been closed

    def flush(self) -> None:
        self._file.flush()

    def went_on(self) -> bool:
        grown, self._seen = self._bytes - self._seen, self._bytes
        return grown >= LEAST_BYTES


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
        raise ConnectionError(
            f"none of {len(mirrors)} mirrors answers within {CONNECT_S} s: try again with a "
            "network, or set D2LPAR_DATA=synthetic"
        )
    return answering
