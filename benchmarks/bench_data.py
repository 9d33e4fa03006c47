"""A pass over 60,000 images in batches of 256: d2lpar's loader against the textbook's two.

All read the same files, written for the occasion, in a temporary folder; nothing is downloaded.
The textbook's loaders decode, resize and convert image by image, in the main process (0 workers)
or in four (their default). Times are medians of passes after a first one that is not counted.
"""

import argparse
import contextlib
import statistics
import struct
import tempfile
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
from machine import this_machine

from d2lpar.lesson import synthetic_fashion as garments
from d2lpar.lesson.data import fashion_mnist
from d2lpar.lesson.download import FILES

BATCH = 256
TARGET = 50  # times as fast


def write_files(root: Path, n: int) -> None:
    """The four IDX files where torchvision looks for them: n training images, n / 6 of test."""
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for (split, names), size in zip(FILES.items(), (n, n // 6), strict=True):
        images, labels = garments.draw(size, split=split)
        arrays = images[:, 0].numpy(), labels.to(torch.uint8).numpy()
        for name, array in zip(names, arrays, strict=True):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (raw / name).write_bytes(header + array.tobytes())


def pass_s(loader: Iterable, n: int, passes: int) -> float:
    """Seconds a pass over the loader takes, the median of several."""
    times = []
    for _ in range(passes + 1):
        start = time.perf_counter()
        seen = sum(len(y) for _, y in loader)
        times.append(time.perf_counter() - start)
        if seen != n:
            raise RuntimeError(f"a pass gave {seen} images of {n}")
    return statistics.median(times[1:])


def textbook_loaders(folder: Path) -> dict[str, Iterable]:
    """`d2l.FashionMNIST` in one process and in its default, and the older function."""
    from d2l import torch as d2l

    (folder / "chapter").mkdir()
    with contextlib.chdir(folder / "chapter"):  # d2l reads ../data
        module = d2l.FashionMNIST(batch_size=BATCH)
        workers = module.num_workers
        default = module.get_dataloader(train=True)
        module.num_workers = 0
        alone = module.get_dataloader(train=True)
        older, _ = d2l.load_data_fashion_mnist(BATCH)
    return {
        "d2l.FashionMNIST, 0 workers": alone,
        f"d2l.FashionMNIST, {workers} workers (default)": default,
        f"d2l.load_data_fashion_mnist, {older.num_workers} workers (default)": older,
    }


def main() -> None:
    """Print the table; exit with 1 where the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--passes", type=int, default=1, help="counted passes of the textbook's")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create 4 worker processes")
    torch.set_num_threads(1)  # as in the recorded notebooks; two threads gain little here
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder / "data", options.images)
        ours, _ = fashion_mnist(BATCH, root=folder / "data")
        ours_s = pass_s(ours, options.images, passes=9)
        print(f"a pass over {options.images:,} images, batch {BATCH}, on {this_machine()}")
        print(f"{'d2lpar.fashion_mnist':<52}{ours_s:>9.3f} s")
        ratios = []
        for label, loader in textbook_loaders(folder).items():
            theirs_s = pass_s(loader, options.images, options.passes)
            ratios.append(theirs_s / ours_s)
            print(f"{label:<52}{theirs_s:>9.3f} s {ratios[-1]:>7.0f}x", flush=True)
    met = min(ratios) >= TARGET
    print(f"target: at least {TARGET}x: {'met' if met else 'MISSED'}")
    raise SystemExit(not met)


if __name__ == "__main__":
    main()
