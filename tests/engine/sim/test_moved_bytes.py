"""What operations move that touch a part of their tensors, against bytes counted by hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional as F

import d2lpar as par
from d2lpar.machines import ACCELERATORS
from d2lpar.vgpu.sim.pricing.memory_rates import MemoryRates, ReadAgain
from d2lpar.vgpu.torch_backend.cost.moved_bytes import REUSED_BYTES, SECTOR_BYTES, size_bytes

ROWS, COLUMNS, CHOSEN = 65_536, 1024, 64
TABLE = ROWS * COLUMNS * 4
PART = CHOSEN * COLUMNS * 4
INDEX = CHOSEN * 8


def moved(call, machine="1x-h100-nvswitch"):
    """Bytes of each kernel of `call(gpu)`, by its name."""
    with par.simulate(machine, with_values=False) as (gpu, *_):
        run = call(gpu)
        with par.record() as timeline:
            run()
    return {span.name: span.bytes for span in timeline.spans if span.kind == "compute"}


def table(gpu):
    return torch.empty(ROWS, COLUMNS, device=gpu)


def chosen(gpu):
    return torch.zeros(CHOSEN, dtype=torch.long, device=gpu)


READERS = {
    "index_select": lambda t, rows: t.index_select(0, rows),
    "embedding": lambda t, rows: F.embedding(rows, t),
    "index": lambda t, rows: t[rows],
}
WRITERS = {
    "index_copy_": lambda t, rows, new: t.index_copy_(0, rows, new),
    "index_put_": lambda t, rows, new: t.__setitem__(rows, new),
}


@pytest.mark.parametrize("name", READERS)
def test_a_lookup_reads_the_rows_that_it_names(name):
    kernels = moved(lambda gpu: partial(READERS[name], table(gpu), chosen(gpu)))
    assert kernels == {name: 2 * PART + INDEX}


@pytest.mark.parametrize("name", WRITERS)
def test_writing_rows_leaves_the_others_alone(name):
    def call(gpu):
        t, rows, new = table(gpu), chosen(gpu), torch.empty(CHOSEN, COLUMNS, device=gpu)
        return lambda: WRITERS[name](t, rows, new)

    assert moved(call) == {name: 2 * PART + INDEX}


def test_adding_to_rows_reads_them_as_well():
    def call(gpu):
        t, rows, new = table(gpu), chosen(gpu), torch.empty(CHOSEN, COLUMNS, device=gpu)
        return lambda: t.index_add_(0, rows, new)

    assert moved(call) == {"index_add_": 3 * PART + INDEX}


def test_a_lone_element_takes_a_sector():
    def call(gpu):
        t, columns = table(gpu), torch.zeros(ROWS, 1, dtype=torch.long, device=gpu)
        return lambda: t.gather(1, columns)

    assert moved(call) == {"gather": ROWS * (SECTOR_BYTES + 8 + 4)}


def test_a_column_of_a_table_is_no_cheaper_than_its_sectors():
    def call(gpu):
        t, columns = table(gpu), torch.zeros(1, dtype=torch.long, device=gpu)
        return lambda: t.index_select(1, columns)

    assert moved(call) == {"index_select": ROWS * (SECTOR_BYTES + 4) + 8}


def test_more_rows_than_the_table_has_read_it_once():
    def call(gpu):
        t = torch.empty(16, COLUMNS, device=gpu)
        words = torch.zeros(4096, dtype=torch.long, device=gpu)
        return lambda: F.embedding(words, t)

    assert moved(call) == {"embedding": (16 + 4096) * COLUMNS * 4 + 4096 * 8}


@pytest.mark.parametrize("like", [torch.zeros_like, torch.rand_like, torch.Tensor.exponential_])
def test_what_takes_only_a_shape_reads_nothing(like):
    kernels = moved(lambda gpu: partial(like, table(gpu)))
    assert sum(kernels.values()) == TABLE


def test_what_is_expanded_comes_from_memory_once():
    assert size_bytes(torch.empty(1, 8).expand(100, 8)) == 8 * 4
    assert size_bytes(torch.empty(10).unfold(0, 4, 1)) == 10 * 4
    assert size_bytes(torch.empty(8, 8)[:, ::2]) == 8 * 4 * 4
    far = torch.empty(1, REUSED_BYTES // 4 + 1)
    assert size_bytes(far.expand(3, -1)) == 3 * size_bytes(far), "from memory again, each time"
    assert size_bytes(far.T.expand(-1, 3)) == size_bytes(far)

    def scaled(t):
        return t * t[:1].expand(ROWS, COLUMNS)

    kernels = moved(lambda gpu: partial(scaled, table(gpu)))
    assert kernels == {"mul": 2 * TABLE + COLUMNS * 4}


def test_a_product_added_to_nothing_does_not_read_it():
    def call(gpu):
        a, b, c = (torch.empty(4, 512, 512, device=gpu) for _ in range(3))
        return lambda: torch.baddbmm(c, a, b, beta=0)

    assert moved(call) == {"baddbmm": 3 * 4 * 512 * 512 * 4}


def test_a_product_in_place_of_what_it_is_not_added_to_writes_it_once():
    def call(gpu):
        a, b, c = (torch.empty(4, 512, 512, device=gpu) for _ in range(3))
        return lambda: c.baddbmm_(a, b, beta=0)

    assert moved(call) == {"baddbmm_": 3 * 4 * 512 * 512 * 4}


def test_compiled_code_reads_of_a_table_what_it_names():
    def lookup(words, t):
        return F.embedding(words, t) * 2 + 1

    def call(gpu):
        return partial(torch.compile(lookup), chosen(gpu), table(gpu))

    (nbytes,) = moved(call).values()
    assert nbytes == 2 * PART + INDEX


def loss_s(rows, columns, machine, *, backward=False):
    with par.simulate(machine, with_values=False) as (gpu, *_):
        x = torch.empty(rows, columns, device=gpu, requires_grad=True)
        labels = torch.zeros(rows, dtype=torch.long, device=gpu)

        def run():
            loss = F.cross_entropy(x, labels)
            if backward:
                torch.autograd.grad(loss, x)

        return par.measure(run).median_s


@pytest.mark.parametrize(
    ("columns", "forward_s", "both_s"),
    [(65_536, 10.615e-3, 30.778e-3), (131_072, 20.726e-3, 60.438e-3)],
)
def test_a_loss_over_a_large_vocabulary_takes_what_was_measured(columns, forward_s, both_s):
    """On A100-SXM4-80GB (LinkedIn, Liger-Kernel, benchmark data, 2024), with an older PyTorch whose
    losses are summed by 32 threads, 0.9 ms more, and gradients that are added to older ones."""
    adding_s = 3 * 16_384 * columns * 4 / MemoryRates(ACCELERATORS["A100-SXM4-80GB"]).bytes_per_s
    machine = "8x-a100-80gb-p4de"
    assert loss_s(16_384, columns, machine) == pytest.approx(forward_s, rel=0.1)
    both = loss_s(16_384, columns, machine, backward=True) + adding_s
    assert both == pytest.approx(both_s, rel=0.1)


@pytest.mark.parametrize(
    ("words", "features", "published_s"),
    [
        (512, 1024, 90e-6),
        (512, 8192, 384e-6),
        (1024, 4096, 241e-6),
        (2048, 1024, 164e-6),
        (2048, 8192, 484e-6),
    ],
)
def test_a_tables_gradient_takes_what_was_measured(words, features, published_s):
    """On H100, a vocabulary of 30,522 (https://github.com/pytorch/pytorch/pull/137237, 2024)."""
    with par.simulate("1x-h100-nvswitch", with_values=False) as (gpu,):
        embedding = torch.nn.Embedding(30_522, features).to(gpu)
        y = embedding(torch.zeros(words, dtype=torch.long, device=gpu))
        dy = torch.empty_like(y)

        def ten_times():
            for _ in range(10):
                torch.autograd.grad(y, embedding.weight, dy, retain_graph=True)

        taken_s = par.measure(ten_times).median_s / 10
    assert taken_s == pytest.approx(published_s, rel=0.12)


def test_a_large_gradient_of_words_is_sorted_first():
    def kernels(words):
        def call(gpu):
            embedding = torch.nn.Embedding(1000, 64).to(gpu)
            y = embedding(torch.zeros(words, dtype=torch.long, device=gpu))
            dy = torch.empty_like(y)
            return lambda: torch.autograd.grad(y, embedding.weight, dy, retain_graph=True)

        with par.simulate("1x-h100-nvswitch", with_values=False) as (gpu,):
            run = call(gpu)
            return par.measure(run).median_s

    assert kernels(3073) > kernels(1)
    assert kernels(3073) < kernels(3072), "sorted, each row is summed by a block of its own"


def test_rows_in_two_partitions_of_the_cache_have_half_of_it():
    """On A100 each half of the multiprocessors sees its own 20 MB."""
    a100, ada = (MemoryRates(ACCELERATORS[name]) for name in ("A100-SXM4-80GB", "RTX 6000 Ada"))
    for rates, fits in ((a100, 0.5), (ada, 1.0)):
        whole = rates._cache_bytes / rates._multiprocessors
        cached_s = rates.seconds(0, again=ReadAgain(10**9, int(0.5 * fits * whole), 1))
        assert cached_s == pytest.approx(10**9 / rates.cache_bytes_per_s)
        from_memory_s = rates.seconds(0, again=ReadAgain(10**9, int(1.51 * fits * whole), 1))
        assert from_memory_s == pytest.approx(10**9 / rates.bytes_per_s)


def test_rows_are_read_again_unless_the_cache_has_the_table():
    """Twelve times as many rows as a table has: of 100 MB they come from memory each time, as those
    of a copy do; of 1 MB only the result goes there."""
    rows, width = 200_000, 128
    with par.simulate("1x-v100-nvswitch", with_values=False) as (gpu,):

        def seconds(table_rows, run):
            table = torch.empty(table_rows, width, device=gpu)
            words = torch.zeros(12 * rows, dtype=torch.int64, device=gpu)
            return par.measure(lambda: run(table, words)).median_s

        result = torch.empty(12 * rows, width, device=gpu)
        copied_s = par.measure(lambda: result.clone()).median_s
        for lookup in (torch.Tensor.__getitem__, lambda table, words: F.embedding(words, table)):
            assert seconds(rows, lookup) == pytest.approx(copied_s, rel=0.05)
            assert seconds(2_000, lookup) == pytest.approx(copied_s / 2, rel=0.05)
        columns = torch.zeros(width, dtype=torch.int64, device=gpu)
        turned_s = par.measure(lambda: result[:, columns]).median_s
        assert turned_s == pytest.approx(copied_s, rel=0.05), "each row is in the cache"
        added_s = seconds(rows, lambda t, i: t.index_add_(0, i, result))
        assert added_s == pytest.approx(1.5 * copied_s, rel=0.05), "read, changed and written"


# --- smaller operands -----------------------------------------------------------------------------


def seconds_of(machine, x, smaller):
    with par.simulate(machine, with_values=False) as (gpu, *_):
        a, b = (torch.empty(shape, dtype=torch.half, device=gpu) for shape in (x, smaller))
        with par.record() as timeline:
            a + b
    return next(s.duration_s for s in timeline.spans if s.kind == "compute")


def test_a_mask_larger_than_the_cache_is_read_for_each_head():
    """Of 8,192 words it has 134 MB, and an H100's cache 50 MB: heads × (scores read and written,
    and the mask), where an operand of all heads takes as much."""
    scores, mask = (1, 16, 8192, 8192), (8192, 8192)
    whole = seconds_of("1x-h100-nvswitch", scores, scores)
    assert seconds_of("1x-h100-nvswitch", scores, mask) == pytest.approx(whole, rel=0.01)


def test_a_mask_in_the_cache_is_read_once():
    scores = (8, 12, 512, 512)
    mask = seconds_of("1x-h100-nvswitch", scores, (512, 512))
    assert mask < 0.8 * seconds_of("1x-h100-nvswitch", scores, scores)
    per_batch = seconds_of("1x-h100-nvswitch", scores, (8, 1, 512, 512))
    assert mask < per_batch < seconds_of("1x-h100-nvswitch", scores, scores)


def test_a_bias_is_read_once_however_many_rows_there_are():
    rows = seconds_of("2x-v100-textbook", (10**6, 1024), (1024,))
    assert rows == pytest.approx(seconds_of("2x-v100-textbook", (10**6, 1024), ()), rel=1e-4)


SIDE, SIDE_OF_VALUES = 8192, 8


def conv(x, biases=None, groups=1):
    x = x.view(-1, 64, 64, 64)
    return F.conv2d(x, x.new_empty(64, 64 // groups, 3, 3), biases, padding=1, groups=groups)


def drawn(chances):
    return (chances / torch.empty_like(chances).exponential_()).argmax(1)


WRITTEN_OUT = {  # an operation of torch's, and what its kernels do one after another
    "logsumexp": (
        lambda x, y, mask: x.logsumexp(1),
        lambda x, y, mask: (x - x.amax(1, keepdim=True)).exp_().sum(1),
    ),
    "masked_fill": (
        lambda x, y, mask: x.masked_fill(mask, 0.0),
        lambda x, y, mask: x.clone().masked_fill_(mask, 0.0),
    ),
    "pad": (
        lambda x, y, mask: F.pad(x, (1, 0)),
        lambda x, y, mask: x.new_full((SIDE, SIDE + 1), 0.0)[:, 1:].copy_(x),
    ),
    "convolution": (
        lambda x, y, mask: conv(x, y[0, :64]),
        lambda x, y, mask: conv(x).add_(y[0, :64].view(64, 1, 1)),
    ),
    "multinomial": (
        lambda x, y, mask: x.multinomial(1),
        lambda x, y, mask: (x.aminmax(), x.sum(1), [x[0, 0] + 1 for _ in range(8)], drawn(x)),
    ),
    "mse_loss": (
        lambda x, y, mask: F.mse_loss(x, y),
        lambda x, y, mask: F.mse_loss(x, y, reduction="none").mean(),
    ),
    "binary_cross_entropy": (
        lambda x, y, mask: F.binary_cross_entropy(x, y),
        lambda x, y, mask: F.binary_cross_entropy(x, y, reduction="none").mean(),
    ),
    "binary_cross_entropy_with_logits": (
        lambda x, y, mask: F.binary_cross_entropy_with_logits(x, y),
        lambda x, y, mask: torch.ones_like(y).sub_(y).mul_(x).sub_(F.logsigmoid(x)).mean(),
    ),
}


def busy_s(call):
    """Simulated seconds of kernels of `call(x, y, mask)` on a device."""
    with par.simulate("1x-h100-nvswitch", with_values=False) as (gpu, *_):
        x, y = torch.empty(2, SIDE, SIDE, device=gpu)
        mask = torch.empty(SIDE, SIDE, device=gpu, dtype=torch.bool)
        with par.record() as timeline:
            call(x, y, mask)
    return sum(span.end_s - span.start_s for span in timeline.spans if span.kind == "compute")


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_an_operation_of_several_kernels_takes_what_these_take(name):
    whole, parts = WRITTEN_OUT[name]
    assert busy_s(whole) == pytest.approx(busy_s(parts), rel=0.03)


def test_a_gradient_of_a_part_is_copied_into_zeros():
    def slice_of_gradient(x, y, mask):
        torch.ops.aten.slice_backward(x[:, 1:], x.shape, 1, 1, SIDE, 1)

    def zeros(x, y, mask):
        torch.zeros_like(x)[:, 1:].copy_(x[:, 1:])

    assert busy_s(slice_of_gradient) == pytest.approx(busy_s(zeros), rel=1e-6)


def test_what_meets_in_memory_takes_memory():
    with par.simulate("1x-h100-nvswitch", with_values=False) as (gpu, *_):
        x = torch.empty(SIDE, SIDE, device=gpu)
        torch.vgpu.reset_peak_memory_stats(gpu)
        x.logsumexp(1)
        assert torch.vgpu.max_memory_allocated(gpu) >= 2 * SIDE**2 * 4
        torch.vgpu.reset_peak_memory_stats(gpu)
        F.huber_loss(x, x)
        assert torch.vgpu.max_memory_allocated(gpu) >= 2 * SIDE**2 * 4


def test_depthwise_kernels_of_pytorch_add_biases_themselves():
    with_biases, without = (
        busy_s(lambda x, y, mask, n=n: conv(x, y[0, :n] if n else None, 64)) for n in (64, 0)
    )
    assert with_biases == pytest.approx(without, rel=1e-3)


@pytest.mark.parametrize("name", sorted({*WRITTEN_OUT} - {"convolution", "multinomial"}))
def test_an_operation_of_several_kernels_computes_what_the_cpu_does(name):
    x, y = torch.rand(2, SIDE_OF_VALUES, SIDE_OF_VALUES)
    mask = x > 0.5
    with par.simulate("1x-h100-nvswitch", with_values=True) as (gpu, *_):
        found = WRITTEN_OUT[name][0](x.to(gpu), y.to(gpu), mask.to(gpu)).cpu()
    assert torch.equal(found, WRITTEN_OUT[name][0](x, y, mask))


def test_the_buffer_of_log_sigmoid_is_of_the_cpu():
    def forward_and_backward(gpu):
        x = torch.empty(ROWS, requires_grad=True, device=gpu)
        return lambda: F.logsigmoid(x).backward(x.detach())

    kernels = moved(forward_and_backward)
    assert kernels["log_sigmoid_forward"] == 2 * ROWS * 4
    assert kernels["log_sigmoid_backward"] == 3 * ROWS * 4
