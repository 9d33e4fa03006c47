"""Fashion-MNIST as tensors: the files, the loaders, and downloads that go wrong."""

import gzip
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from d2lpar.lesson import data, download
from d2lpar.lesson import synthetic_fashion as garments
from d2lpar.lesson.data import Batches, DataError, fashion_mnist
from d2lpar.timeline import waits

NAMES = {split: tuple(files) for split, files in download.FILES.items()}
TRAIN, TEST = 23, 11


def idx(array: np.ndarray) -> bytes:
    """An array in the IDX format."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    made = {}
    for split, n in (("train", TRAIN), ("test", TEST)):
        images, labels = NAMES[split]
        made[images] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        made[labels] = rng.integers(0, 10, n, dtype=np.uint8)
    return made


@pytest.fixture
def folder(arrays, tmp_path) -> Path:
    """A named folder with the four files, gzipped."""
    root = tmp_path / "named"
    root.mkdir()
    for name, array in arrays.items():
        (root / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return root


@pytest.fixture(autouse=True)
def own_world(tmp_path, monkeypatch):
    """No folder of the user's, a cache of the test's own, and no mirror but those a test names."""
    monkeypatch.delenv("D2LPAR_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(download, "MIRRORS", ())


def passes(loader: Batches, n: int = 1) -> list[list[int]]:
    """The labels that `n` passes give."""
    return [torch.cat([y for _, y in loader]).tolist() for _ in range(n)]


def numbered(n: int, batch_size: int, **options) -> Batches:
    """A loader whose labels are the positions of its images."""
    X = torch.arange(n).float().view(n, 1, 1, 1).expand(n, 1, 28, 28).contiguous()
    return Batches(X, torch.arange(n), batch_size, source="numbered", **options)


# --- Files -----------------------------------------------------------------------------------


def test_reads_what_was_written(folder, arrays):
    train, test = fashion_mnist(4, root=folder, shuffle=False)
    for loader, split in ((train, "train"), (test, "test")):
        images, labels = (arrays[name] for name in NAMES[split])
        assert torch.equal(loader.X, torch.from_numpy(images)[:, None] / 255)
        assert loader.y.tolist() == labels.tolist()
        assert loader.X.dtype == torch.float32
        assert loader.y.dtype == torch.int64
        assert loader.source == "Fashion-MNIST"


def test_pixels_are_those_of_torchvision(folder, arrays):
    transforms = pytest.importorskip("torchvision.transforms")
    train, _ = fashion_mnist(4, root=folder)
    images = arrays[NAMES["train"][0]]
    expected = torch.stack([transforms.ToTensor()(image[:, :, None]) for image in images])
    assert torch.equal(train.X, expected)


@pytest.mark.parametrize("below", ["", "FashionMNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_finds_the_files_where_people_put_them(tmp_path, arrays, below, suffix, monkeypatch):
    place = tmp_path / "somewhere" / below
    place.mkdir(parents=True)
    for name, array in arrays.items():
        raw = idx(array)
        (place / f"{name}{suffix}").write_bytes(gzip.compress(raw) if suffix else raw)
    monkeypatch.setenv("D2LPAR_DATA", str(tmp_path / "somewhere"))
    train, test = fashion_mnist(4)
    assert (train.num_examples, test.num_examples) == (TRAIN, TEST)


def test_the_argument_goes_before_the_environment(folder, monkeypatch):
    monkeypatch.setenv("D2LPAR_DATA", "synthetic")
    assert fashion_mnist(4, train_size=5, test_size=5)[0].source == "synthetic"
    assert fashion_mnist(4, root=folder)[0].source == "Fashion-MNIST"


IMAGES, LABELS = NAMES["train"]
DAMAGE = {  # what is done to which file, and what the error must say was expected and found
    "magic": (IMAGES, lambda raw: b"\0\0\x0d\x03" + raw[4:], "0x00000803", "0x00000d03"),
    "labels for images": (
        IMAGES,
        lambda raw: b"\0\0\x08\x01" + raw[4:],
        "0x00000803",
        "0x00000801",
    ),
    "empty": (IMAGES, lambda _: b"", "0x00000803", "an empty file"),
    "header cut": (IMAGES, lambda raw: raw[:9], "16 bytes", "9 bytes"),
    "size": (
        IMAGES,
        lambda raw: raw[:8] + struct.pack(">II", 32, 32) + raw[16:],
        "28 x 28",
        "23 x 32 x 32",
    ),
    "no items": (IMAGES, lambda raw: raw[:4] + bytes(4) + raw[8:16], "at least one", "0 x 28 x 28"),
    "data cut": (IMAGES, lambda raw: raw[:-1], "18,048 bytes", "18,047"),
    "data added": (IMAGES, lambda raw: raw + b"x", "18,048 bytes", "18,049"),
    "label missing": (
        LABELS,
        lambda raw: raw[:4] + struct.pack(">I", 22) + raw[8:-1],
        "23 labels",
        "22",
    ),
    "label too large": (
        LABELS,
        lambda raw: raw[:10] + b"\x0a" + raw[11:],
        "0 to 9",
        "10 at position 2",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_damaged_file_is_an_error_that_names_it(folder, arrays, damage, suffix):
    name, spoil, expected, found = DAMAGE[damage]
    (folder / f"{name}.gz").unlink()
    raw = spoil(idx(arrays[name]))
    (folder / f"{name}{suffix}").write_bytes(gzip.compress(raw) if suffix else raw)
    with pytest.raises(DataError) as error:
        fashion_mnist(4, root=folder)
    assert error.value.file == folder / f"{name}{suffix}"
    assert expected in error.value.expected
    assert found in error.value.found
    for part in (error.value.file, expected, found, error.value.remedy):
        assert str(part) in str(error.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda packed: packed[:-20],  # ends too early
        lambda packed: gzip.decompress(packed),  # not gzip at all
        lambda packed: packed[:200] + bytes(50) + packed[250:],  # damaged inside
        lambda packed: packed[:-8] + bytes(4) + packed[-4:],  # a wrong check sum
    ],
)
def test_a_damaged_gzip_file_is_an_error_that_names_it(folder, spoil):
    file = folder / f"{IMAGES}.gz"
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(DataError, match="gzip") as error:
        fashion_mnist(4, root=folder)
    assert error.value.file == file


ZEROS = 1 << 20


def endless(start: bytes, pieces: int = 512) -> bytes:
    """A gzip file that begins with `start`, goes on with `pieces` MiB of zeros, and never ends."""
    pack = zlib.compressobj(wbits=31)
    head = pack.compress(start) + pack.flush(zlib.Z_FULL_FLUSH)
    return head + (pack.compress(bytes(ZEROS)) + pack.flush(zlib.Z_FULL_FLUSH)) * pieces


@pytest.mark.parametrize("name", [IMAGES, LABELS])
def test_no_more_is_unpacked_than_the_header_says(folder, arrays, name):
    raw = idx(arrays[name])
    file = folder / f"{name}.gz"
    file.write_bytes(endless(raw))
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as error:
            fashion_mnist(4, root=folder)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.value.file == file
    assert f"{len(raw):,} bytes" in error.value.expected
    assert error.value.found == f"{len(raw) + 1:,} or more"
    assert most < 4 * ZEROS  # of 512


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_header_that_promises_terabytes_costs_none(folder, arrays, suffix):
    raw = idx(arrays[IMAGES])
    (folder / f"{IMAGES}.gz").unlink()
    lies = raw[:4] + b"\xff" * 4 + raw[8:]
    (folder / f"{IMAGES}{suffix}").write_bytes(gzip.compress(lies) if suffix else lies)
    with pytest.raises(DataError, match=r"expected 3,367,254,359,296 bytes .*, found 18,048\."):
        fashion_mnist(4, root=folder)


def test_a_missing_file_is_an_error_and_never_a_stand_in(folder, monkeypatch):
    (folder / f"{LABELS}.gz").unlink()
    monkeypatch.setenv("D2LPAR_DATA", str(folder))
    with pytest.raises(DataError, match=f"{LABELS}.*t10k-images.*Put the four"):
        fashion_mnist(4)
    with pytest.raises(DataError, match="no such folder"):
        fashion_mnist(4, root=folder / "nowhere")


# --- Loaders ---------------------------------------------------------------------------------


def test_a_pass_gives_every_image_once_with_its_label():
    loader = numbered(10, 4, shuffle=True)
    X, y = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert sorted(y.tolist()) == list(range(10))
    assert torch.equal(X[:, 0, 0, 0], y.float())
    assert [len(y) for _, y in loader] == [4, 4, 2]
    assert len(loader) == 3


def test_each_pass_has_its_own_order_and_equal_seeds_agree():
    loader = numbered(50, 7, shuffle=True, seed=3)
    first, second, third = passes(loader, 3)
    assert len({tuple(order) for order in (first, second, third, range(50))}) == 4
    again = numbered(50, 16, shuffle=True, seed=3)  # the order does not depend on the batches
    assert passes(again, 3) == [first, second, third]
    assert first not in passes(numbered(50, 7, shuffle=True, seed=4), 3)
    assert second not in passes(numbered(50, 7, shuffle=True, seed=4), 3)


def test_shuffling_neither_reads_nor_disturbs_other_random_numbers():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    first = passes(numbered(20, 5, shuffle=True))
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(1)
    assert passes(numbered(20, 5, shuffle=True)) == first


def test_a_pass_broken_off_does_not_disturb_the_next():
    whole, broken = (numbered(20, 5, shuffle=True) for _ in range(2))
    next(iter(broken))
    assert passes(broken)[0] == passes(whole, 2)[1]


def test_without_shuffling_the_order_is_the_files():
    assert passes(numbered(20, 6), 2) == [list(range(20))] * 2


def test_drop_last_leaves_out_the_smaller_batch_only():
    loader = numbered(23, 5, drop_last=True)
    assert [len(y) for _, y in loader] == [5] * 4
    assert (len(loader), loader.num_examples) == (4, 20)
    full = numbered(20, 5, drop_last=True)
    assert (len(full), full.num_examples) == (4, 20)


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_are_copies(shuffle):
    loader = numbered(8, 4, shuffle=shuffle)
    for X, y in loader:
        X.zero_()
        y.zero_()
    assert loader.y.tolist() == list(range(8))
    assert loader.X.sum() == 28 * 28 * sum(range(8))


def test_sizes_take_the_beginning_and_at_most_what_there_is(folder):
    every, _ = fashion_mnist(4, root=folder)
    train, test = fashion_mnist(4, root=folder, train_size=9, test_size=1000)
    assert (train.num_examples, test.num_examples) == (9, TEST)
    assert torch.equal(train.X, every.X[:9])
    assert torch.equal(train.y, every.y[:9])


def test_only_training_images_are_shuffled_and_dropped(folder):
    train, test = fashion_mnist(4, root=folder, drop_last=True)
    assert train.num_examples == 20
    assert passes(test, 2) == [test.y.tolist()] * 2
    assert passes(train)[0] != train.y.tolist()[:20]
    unshuffled, _ = fashion_mnist(4, root=folder, shuffle=False)
    assert passes(unshuffled) == [unshuffled.y.tolist()]


@pytest.mark.parametrize("name", ["batch_size", "train_size", "test_size"])
def test_a_size_below_one_is_refused_by_name(folder, name):
    sizes = {"batch_size": 4, name: 0}
    with pytest.raises(ValueError, match=f"{name} of .* must be .* from 1 on.*, not 0"):
        fashion_mnist(**sizes, root=folder)


def test_a_batch_larger_than_everything_is_refused_with_drop_last(folder):
    with pytest.raises(ValueError, match="batch_size 64 leaves none of 23"):
        fashion_mnist(64, root=folder, drop_last=True)
    assert len(fashion_mnist(64, root=folder)[0]) == 1


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "cuda"])
def test_tensors_and_batches_are_on_the_device(folder, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    on_device, _ = fashion_mnist(4, root=folder, device=device)
    on_cpu, _ = fashion_mnist(4, root=folder)
    for (X, y), (X_cpu, y_cpu) in zip(on_device, on_cpu, strict=True):
        assert X.device.type == y.device.type == torch.device(device).type
        assert torch.equal(X.cpu(), X_cpu)
        assert torch.equal(y.cpu(), y_cpu)


def test_another_default_device_leaves_the_order_alone(folder):
    expected = [passes(loader) for loader in fashion_mnist(4, root=folder)]
    with torch.device("meta"):
        assert [passes(loader) for loader in fashion_mnist(4, root=folder)] == expected


# --- Sources ---------------------------------------------------------------------------------


def test_synthetic_asks_nobody(monkeypatch):
    monkeypatch.setenv("D2LPAR_DATA", "synthetic")
    monkeypatch.setattr(download, "fill", lambda *_: pytest.fail("touched the network"))
    train, test = fashion_mnist(4, train_size=30, test_size=20)
    for loader, split, n in ((train, "train", 30), (test, "test", 20)):
        images, labels = garments.draw(n, split=split)
        assert loader.source == "synthetic"
        assert torch.equal(loader.X, images / 255)
        assert torch.equal(loader.y, labels)


def test_offline_and_with_an_empty_cache_it_is_the_stand_in(monkeypatch, capfd):
    monkeypatch.setattr(download, "fill", lambda *_: pytest.fail("touched the network"))
    train, _ = fashion_mnist(4, train_size=5, test_size=5, allow_download=False)
    assert train.source == "synthetic"
    assert capfd.readouterr() == ("", "")


def test_all_of_the_stand_in_is_as_large_as_the_original():
    train, test = fashion_mnist(256, root="synthetic")
    assert (train.num_examples, test.num_examples) == (60_000, 10_000)


def test_import_brings_in_nothing_heavy():
    code = "import sys, d2lpar.lesson.data; print(*sys.modules)"
    loaded = run_python(code).stdout.split()
    assert "torch" in loaded
    assert not {"matplotlib", "d2l", "torchvision", "pooch", "requests"} & set(loaded)


# --- The download ----------------------------------------------------------------------------


class Mirror(ThreadingHTTPServer):
    """Serves the four files; the first part of the path says what goes wrong."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.asked, self.go_on = files, [], threading.Event()

    def url(self, behaviour: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{behaviour}/"

    def handle_error(self, request, client_address):
        """A client that went away is what some tests are about."""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        _, behaviour, _ = self.path.split("/")
        if behaviour == "silent":
            self.server.go_on.wait(30)
        self.send_response(404 if behaviour == "missing" else 200)
        self.end_headers()

    def do_GET(self):
        _, behaviour, name = self.path.split("/")
        self.server.asked.append((behaviour, name))
        body = self.server.files[name]
        if behaviour == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        if behaviour not in ("unsized", "endless"):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if behaviour == "dripping":
            for byte in body:
                if self.server.go_on.wait(0.2):
                    break
                self.wfile.write(bytes([byte]))
        elif behaviour == "endless":
            while not self.server.go_on.is_set():
                self.wfile.write(bytes(1 << 16))
        elif behaviour in ("good", "unsized"):
            self.wfile.write(body)
        elif behaviour == "wrong":
            self.wfile.write(body[:-1] + bytes([body[-1] ^ 1]))
        else:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
        if behaviour == "stuck":
            self.server.go_on.wait(30)
            self.wfile.write(body[len(body) // 2 :])
        if behaviour == "dropped":  # a reset instead of a goodbye
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True


@pytest.fixture
def mirror(folder, monkeypatch):
    """A mirror of the files in `folder`, whose check sums are the ones asked for."""
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    sums = {
        split: {name: hashlib.md5(files[f"{name}.gz"]).hexdigest() for name in names}
        for split, names in NAMES.items()
    }
    monkeypatch.setattr(download, "FILES", sums)
    with Mirror(files) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.go_on.set()
        server.shutdown()
        thread.join()


def use(monkeypatch, mirror: Mirror, *behaviours: str) -> None:
    monkeypatch.setattr(download, "MIRRORS", tuple(mirror.url(name) for name in behaviours))


def load() -> tuple[Batches, Batches]:
    return fashion_mnist(4, train_size=TRAIN, test_size=TEST, shuffle=False)


def cached(tmp_path: Path) -> dict[str, bytes]:
    """What lies in the cache and below it, besides the lock."""
    files = (file for file in (tmp_path / "cache").rglob("*") if file.is_file())
    return {file.name: file.read_bytes() for file in files if file.name != ".lock"}


def test_a_download_fills_the_cache_once(mirror, arrays, tmp_path, monkeypatch):
    use(monkeypatch, mirror, "good")
    train, test = load()
    assert (train.source, test.source) == ("Fashion-MNIST", "Fashion-MNIST")
    assert torch.equal(train.X, torch.from_numpy(arrays[IMAGES])[:, None] / 255)
    assert cached(tmp_path) == mirror.files
    assert sorted(name for _, name in mirror.asked) == sorted(mirror.files)
    use(monkeypatch, mirror, "missing")
    assert load()[0].source == "Fashion-MNIST"
    assert fashion_mnist(4, allow_download=False)[0].source == "Fashion-MNIST"
    assert len(mirror.asked) == 4


FAULTS = ["missing", "short", "dropped", "wrong"]


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_faulty_mirror_the_next_is_asked(mirror, tmp_path, monkeypatch, fault):
    use(monkeypatch, mirror, fault, "good")
    assert load()[0].source == "Fashion-MNIST"
    assert cached(tmp_path) == mirror.files
    assert [name for behaviour, name in mirror.asked if behaviour == fault] == list(
        download._gzipped()
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_download_leaves_nothing_and_is_not_tried_again(
    mirror, tmp_path, monkeypatch, fault, caplog
):
    use(monkeypatch, mirror, fault)
    with caplog.at_level("INFO", logger="d2lpar.lesson.data"):
        assert load()[0].source == "synthetic"
    assert mirror.url(fault) in caplog.text  # the reason is there for those who look
    assert cached(tmp_path) == {}
    asked = len(mirror.asked)
    assert asked == 1
    assert load()[0].source == "synthetic"
    assert len(mirror.asked) == asked


def test_files_that_came_whole_are_kept_for_the_next_time(mirror, tmp_path, monkeypatch):
    last = list(mirror.files)[-1]
    whole = mirror.files[last]
    mirror.files[last] = whole[:-1]
    use(monkeypatch, mirror, "good")
    assert load()[0].source == "synthetic"
    kept = cached(tmp_path)
    assert all(kept[name] == mirror.files[name] for name in kept)
    assert last not in kept
    mirror.files[last] = whole
    download.fill.cache_clear()  # as in a new process
    mirror.asked.clear()
    assert load()[0].source == "Fashion-MNIST"
    assert not {name for _, name in mirror.asked} & set(kept)


def test_a_file_that_spoils_in_the_cache_is_fetched_again(mirror, tmp_path, monkeypatch):
    use(monkeypatch, mirror, "good")
    load()
    file = tmp_path / "cache" / f"{IMAGES}.gz"
    file.write_bytes(file.read_bytes()[:-1])
    assert (
        fashion_mnist(4, train_size=5, test_size=5, allow_download=False)[0].source == "synthetic"
    )
    download.fill.cache_clear()  # as in a new process
    assert load()[0].source == "Fashion-MNIST"
    assert cached(tmp_path) == mirror.files


def test_nobody_at_the_address(monkeypatch):
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(download, "MIRRORS", (f"http://127.0.0.1:{port}/",))
        assert load()[0].source == "synthetic"


def test_mirrors_that_do_not_answer_cost_one_short_wait(mirror, monkeypatch):
    use(monkeypatch, mirror, *["silent"] * 20)
    monkeypatch.setattr(download, "CONNECT_S", 0.3)
    start = time.monotonic()
    assert load()[0].source == "synthetic"
    assert time.monotonic() - start < 5  # one after the other they would take 6 s, unbounded 30 s
    use(monkeypatch, mirror, "silent", "good")
    assert load()[0].source == "Fashion-MNIST"


def test_a_mirror_that_falls_silent_is_left(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "READ_S", 1)  # the good one has to be quicker on a busy machine
    use(monkeypatch, mirror, "stuck", "good")
    assert load()[0].source == "Fashion-MNIST"
    assert {name for behaviour, name in mirror.asked if behaviour == "good"} == set(mirror.files)
    assert cached(tmp_path) == mirror.files


@pytest.mark.parametrize("behaviour", ["dripping", "endless"])
def test_a_mirror_that_sends_for_ever_is_left(mirror, tmp_path, monkeypatch, behaviour):
    monkeypatch.setattr(download, "READ_S", 2)
    monkeypatch.setattr(download, "MOST_BYTES", 1 << 20)
    use(monkeypatch, mirror, behaviour, "good")
    begin_s = time.monotonic()
    assert load()[0].source == "Fashion-MNIST"
    assert time.monotonic() - begin_s < 30
    assert cached(tmp_path) == mirror.files


def test_a_mirror_that_does_not_say_the_size_is_as_good(mirror, tmp_path, monkeypatch):
    use(monkeypatch, mirror, "unsized")
    assert load()[0].source == "Fashion-MNIST"
    assert cached(tmp_path) == mirror.files


def test_a_lock_that_another_process_keeps_leaves_the_stand_in(
    mirror, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(download, "LOCK_S", 0.4)
    monkeypatch.setattr(waits, "SAY_AFTER_S", 0.2)
    use(monkeypatch, mirror, "good")
    with waits.locked(tmp_path / "cache" / ".lock"):
        assert load()[0].source == "synthetic"
    assert f"held by process {os.getpid()} since" in capfd.readouterr().err


def test_a_cache_that_cannot_be_written_leaves_the_stand_in(mirror, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file where the folder should be")
    use(monkeypatch, mirror, "good")
    assert load()[0].source == "synthetic"


CHILD = """
import json, sys, zlib
from pathlib import Path
from d2lpar.lesson import data, download

files, mirrors, cache, limit = json.loads(sys.argv[1])
download.FILES, download.MIRRORS = files, tuple(mirrors)
download.cache_folder = lambda: Path(cache)
download.CONNECT_S = download.READ_S = 60  # on a busy machine another child imports for long
if limit:
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
print("loading", flush=True)
train, _ = data.fashion_mnist(4, train_size=23, test_size=11)
print(train.source, zlib.crc32(train.X.numpy().tobytes()))
"""


def python(code: str, *arguments: str) -> subprocess.Popen:
    """Another Python with this one's package, its output in pipes."""
    path = os.pathsep.join([str(Path(data.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def finish(process: subprocess.Popen) -> subprocess.CompletedProcess:
    with process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return subprocess.CompletedProcess(process.args, 0, out, err)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess:
    return finish(python(code, *arguments))


def child(mirror: Mirror, tmp_path: Path, behaviour: str, limit: int = 0) -> subprocess.Popen:
    """A process that downloads from the mirror into the test's cache."""
    order = [download.FILES, [mirror.url(behaviour)], str(tmp_path / "cache"), limit]
    return python(CHILD, json.dumps(order))


def until(happened: Callable[[], object], otherwise: str) -> None:
    deadline = time.monotonic() + 240
    while not happened():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def await_request(mirror: Mirror) -> None:
    """Return when somebody has begun to download."""
    until(lambda: mirror.asked, "the child never came to ask")


def test_two_processes_at_once_share_one_download(mirror, tmp_path):
    first = child(mirror, tmp_path, "stuck")
    await_request(mirror)
    second = child(mirror, tmp_path, "stuck")
    second.stdout.readline()  # it has imported everything and goes to work
    time.sleep(0.5)  # enough for it to ask too, were there nothing to keep it waiting
    mirror.go_on.set()
    one, other = (finish(process).stdout.split()[-2:] for process in (first, second))
    assert one == other
    assert one[0] == "Fashion-MNIST"
    assert sorted(name for _, name in mirror.asked) == sorted(mirror.files)
    assert cached(tmp_path) == mirror.files


@pytest.mark.skipif(sys.platform == "win32", reason="file-size limits are a POSIX thing")
def test_a_full_disk_leaves_the_stand_in_and_nothing_half_written(mirror, tmp_path):
    result = finish(child(mirror, tmp_path, "good", limit=4000))
    assert result.stdout.split()[1] == "synthetic"
    assert f"{IMAGES}.gz" in {name for _, name in mirror.asked}
    assert all(mirror.files[name] == content for name, content in cached(tmp_path).items())
    assert f"{IMAGES}.gz" not in cached(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_process_killed_midway_leaves_nothing_that_is_used(mirror, tmp_path, monkeypatch):
    process = child(mirror, tmp_path, "stuck")
    await_request(mirror)
    process.send_signal(signal.SIGKILL)
    with process:
        process.communicate()
    assert not set(cached(tmp_path)) & set(mirror.files)
    use(monkeypatch, mirror, "good")
    assert load()[0].source == "Fashion-MNIST"
    assert cached(tmp_path) == mirror.files  # and nothing of what was killed


def test_what_killed_processes_leave_goes_even_without_a_network(mirror, tmp_path, monkeypatch):
    for _ in range(2):
        mirror.asked.clear()
        process = child(mirror, tmp_path, "stuck")
        await_request(mirror)
        until(lambda: cached(tmp_path), "the child never began to write")
        process.kill()
        with process:
            process.communicate()
        assert len(cached(tmp_path)) == 1  # half a file, and not those of all processes so far
    assert load()[0].source == "synthetic"
    assert cached(tmp_path) == {}
