"""What operations cost: tiles, waves, bytes and algorithms, against what is counted by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

import d2lpar as par
from d2lpar.machines import ACCELERATORS
from d2lpar.vgpu.api.timing import now_s
from d2lpar.vgpu.sim.constants import CONVOLUTION_EFFICIENCY, MATMUL_EFFICIENCY, MEMORY_EFFICIENCY
from d2lpar.vgpu.sim.pricing.kernel_cost import Cost, Kernel, traffic
from d2lpar.vgpu.sim.pricing.memory_rates import MemoryRates
from d2lpar.vgpu.sim.pricing.product_rates import issued_flops_per_s
from d2lpar.vgpu.sim.pricing.tiles import MatmulDevice, Product, read_again, tiling
from d2lpar.vgpu.sim.pricing.winograd_convolution import winograd
from d2lpar.vgpu.torch_backend import register
from d2lpar.vgpu.torch_backend.cost.op_cost import cost_of, rounded

V100, A100 = ACCELERATORS["V100-SXM2-16GB"], ACCELERATORS["A100-SXM4-40GB"]
aten = torch.ops.aten


def meta(*shape: int, dtype: torch.dtype = torch.float32, last: bool = False) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    return tensor.contiguous(memory_format=torch.channels_last) if last else tensor


def convolved(x, weight, stride=1, padding=0, groups=1):
    args = (x, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
    return cost_of(aten.convolution.default, args, {}, aten.convolution(*args))


# --- tiles ----------------------------------------------------------------------------------------


# A FLOP a second for each multiprocessor, full tiles only at that rate; adding slices is free.
ONE, EIGHT, EIGHTY = (MatmulDevice(n, n, n, 32, True, 1e30, 0.0) for n in (1, 8, 80))


def used(product, device):
    """Useful share of what the multiprocessors could have computed in the time."""
    flops = 2 * product.m * product.n * product.k * product.batch
    return flops / (tiling(product, device).seconds * device.multiprocessors)


def test_the_textbooks_products_take_waves_of_tiles():
    # On ordinary cores tiles of 128 x 128 lose nothing: 32 x 32 of them on 80 multiprocessors.
    ordinary = EIGHTY._replace(tensor=False)
    assert used(Product(4000, 4000, 4000, 1), ordinary) == pytest.approx(
        4000**2 / (13 * 80 * 128**2), rel=0.01
    )


def test_edges_are_computed_in_full():
    # One column more than a tile: 2 tiles; the sum is cut in four slices of 1000 so that 8 of 8
    # multiprocessors work.
    assert used(Product(64, 65, 4096, 1), EIGHT) == pytest.approx(65 / 128)


def test_thin_products_are_cut_along_the_sum_but_not_too_finely():
    assert used(Product(64, 64, 80 * 256, 1), EIGHTY) == pytest.approx(1.0)
    assert used(Product(64, 64, 256, 1), EIGHTY) == pytest.approx(1 / 80)
    assert used(Product(64, 64, 256, 160), EIGHTY) == pytest.approx(1.0, rel=0.01)


def test_slices_cost_the_time_to_add_them():
    free = tiling(Product(64, 64, 80 * 256, 1), EIGHTY)
    dear = tiling(Product(64, 64, 80 * 256, 1), EIGHTY._replace(adding_s=1e9))
    assert (free.slices, dear.slices) == (80, 1)


def test_small_tiles_are_fed_more_slowly():
    large = tiling(Product(256, 128, 4096, 1), ONE._replace(full_tile=64))
    small = tiling(Product(64, 64, 4096, 1), ONE._replace(full_tile=64))
    assert large.seconds == pytest.approx(2 * 256 * 128 * 4096)
    assert small.seconds == pytest.approx(2 * 64 * 64 * 4096 * 2)  # half the rate


def test_power_limits_the_whole_and_not_each_wave():
    full, half = Product(1024, 1024, 1024, 1), Product(512, 1024, 1024, 1)
    device = MatmulDevice(
        32, 32.0, 16.0, 64, True, 1e30, 0.0
    )  # half of its multiprocessors at once
    assert tiling(full, device).seconds == pytest.approx(2 * 1024**3 / 16)
    assert tiling(half, device).seconds == pytest.approx(2 * 512 * 1024**2 / 16)


@pytest.mark.parametrize("tensor", [True, False], ids=["tensor", "plain"])
def test_rows_that_are_not_aligned_are_slower_on_tensor_cores(tensor):
    device = MatmulDevice(128, 1e14, 1e14, 64, tensor, 1e12, 3e-6, narrow=(2.5e13, 5e13))
    one, two, aligned = (
        tiling(Product(4096, 4096, 4096, 1, narrow), device).seconds for narrow in (1, 2, None)
    )
    assert (one / aligned, two / aligned) == pytest.approx((4, 2) if tensor else (1, 1), rel=0.01)


def test_what_a_device_hardly_multiplies_faster_may_be_fetched_by_numbers():
    device = MatmulDevice(128, 1e14, 1e14, 64, True, 1e12, 3e-6, narrow=(2e14, 4e14))
    times = {tiling(Product(4096, 4096, 4096, 1, n), device).seconds for n in (1, 2, None)}
    assert len(times) == 1


def test_factors_that_fit_in_the_cache_are_fetched_once():
    device = MatmulDevice(16, 1e12, 1e12, 32, True, 1e12, 0.0, cache_bytes=2**40)
    product, nbytes = Product(4096, 4096, 4096, 1), 2 * 2 * 4096**2
    assert read_again(product, device, nbytes) == 1
    # 16 tiles at once, in a square: each factor is fetched once for each such band.
    small = device._replace(cache_bytes=0, full_tile=64)
    rows, columns = tiling(product, small).tile
    block = (16 * rows * columns) ** 0.5
    assert read_again(product, small, nbytes) == pytest.approx(4096 / block)


def test_nothing_to_compute_takes_no_time():
    assert tiling(Product(0, 64, 64, 1), EIGHTY).seconds == 0


# --- seconds --------------------------------------------------------------------------------------


def test_a_kernel_takes_the_longer_of_arithmetic_and_memory():
    compute = Cost(Kernel(10**12, 10**6))
    assert compute.seconds(V100) == pytest.approx(3e-6 + 1e12 / (15.7e12 * MATMUL_EFFICIENCY))
    assert traffic(10**9).seconds(V100) == pytest.approx(3e-6 + 1e9 / (9e11 * MEMORY_EFFICIENCY))
    two = Cost(Kernel(10**12, 0), Kernel(0, 10**9))
    assert two.seconds(V100) == pytest.approx(compute.seconds(V100) + traffic(10**9).seconds(V100))
    assert (two.flops, two.bytes) == (10**12, 10**9)


def product_of(n, accelerator):
    args = (meta(n, n), meta(n, n))
    cost = cost_of(aten.mm.default, args, {}, aten.mm(*args))
    return cost.seconds(accelerator), engaged_s(cost, accelerator)


def engaged_s(cost, accelerator):
    return cost.engaged_s(accelerator, cost.seconds(accelerator))


def test_only_small_kernels_leave_room_for_others():
    for gpu in (V100, A100):
        seconds, engaged = product_of(512, gpu)
        # Two streams of such products: one and a half to two times as many in the same time.
        assert 1.4 < min(seconds / engaged, 2) <= 2
        seconds, engaged = product_of(4096, gpu)
        assert engaged == seconds
        small, large = traffic(4096), traffic(10**9)
        assert engaged_s(large, gpu) == large.seconds(gpu)
        assert 0 < engaged_s(small, gpu) < small.seconds(gpu) / 2
        assert engaged_s(traffic(0), gpu) == 0
    toy = replace(V100, multiprocessors=None)  # nothing is known of how it is filled
    assert engaged_s(small, toy) == small.seconds(toy)


@pytest.mark.parametrize("machine", ["1x-v100-nvswitch", "8x-a100-nvswitch"])
def test_two_streams_of_small_products_share_a_device(machine):
    def took(n, streams):
        with par.simulate(machine, 1) as (gpu,):
            a = torch.empty(n, n, device=gpu)
            lanes = [torch.vgpu.Stream(gpu) for _ in range(streams)]
            torch.vgpu.synchronize(gpu)
            timer = par.Timer()
            timer.start()
            for i in range(64):
                with torch.vgpu.stream(lanes[i % streams]):
                    a @ a
            return timer.stop()

    assert 1.4 < took(512, 1) / took(512, 2) <= 2
    assert took(2048, 1) / took(2048, 2) == pytest.approx(1, rel=0.01)


def test_measured_rates_are_reached():
    measured = replace(V100, measured=True)
    assert Cost(Kernel(10**12, 0)).seconds(measured) == pytest.approx(3e-6 + 1 / 15.7)
    ragged = Product(100, 100, 50 * 10**6, 1)  # tiles are in what was measured
    assert Cost(Kernel(10**12, 0, ragged)).seconds(measured) == pytest.approx(3e-6 + 1 / 15.7)
    assert traffic(10**9).seconds(measured) == pytest.approx(3e-6 + 1 / 900)


def test_one_cost_on_two_accelerators():
    cost = traffic(10**9)
    on_v100 = cost.seconds(V100)
    assert cost.seconds(A100) < on_v100
    assert cost.seconds(V100) == on_v100


def test_products_may_use_tf32_if_torch_is_told_so():
    product = Cost(Kernel(10**12, 0))
    exact_s = product.seconds(A100)
    assert rounded(product, A100) is product
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        ratio = issued_flops_per_s(A100, "tfloat32") / issued_flops_per_s(A100, "float32")
        rounded_s = rounded(product, A100).seconds(A100)
        assert rounded_s == pytest.approx(3e-6 + (exact_s - 3e-6) / ratio)
        assert rounded(product, V100) is product  # it has none
    finally:
        torch.set_float32_matmul_precision(before)
    assert rounded(product, A100).seconds(A100) == exact_s


def test_convolutions_use_tf32_as_they_do_in_torch():
    convolution = rounded(Cost(Kernel(10**12, 0), convolves=True), A100)
    expected_s = 3e-6 + 1e12 / (issued_flops_per_s(A100, "tfloat32") * CONVOLUTION_EFFICIENCY)
    assert convolution.seconds(A100) == pytest.approx(expected_s)


def test_products_of_8_bits_need_a_card_that_has_them():
    a, b = (meta(*s, dtype=torch.float8_e4m3fn) for s in ((1024, 512), (256, 512)))
    scale = meta()
    args = (a, b.t(), scale, scale)
    y = torch._scaled_mm(*args, out_dtype=torch.bfloat16)
    cost = cost_of(aten._scaled_mm.default, args, {"out_dtype": torch.bfloat16}, y)
    (kernel,) = cost.kernels
    assert kernel.product == Product(1024, 256, 512, 1)
    assert (kernel.flops, kernel.written) == (2 * 1024 * 256 * 512, 2 * 1024 * 256)
    with pytest.raises(ValueError, match="V100-SXM2-16GB has no rate for products of float8_e4m3"):
        cost.seconds(V100)
    rates = A100.flops_per_s | {"float8_e4m3fn": 624e12}
    assert cost.seconds(replace(A100, flops_per_s=rates)) < cost.seconds(
        replace(A100, flops_per_s=A100.flops_per_s | {"float8_e5m2": 1e12})
    )


def test_rows_are_as_aligned_as_their_bytes():
    for k, n, narrow in ((64, 64, None), (64, 100, 2), (64, 102, 2), (63, 64, 1), (1, 7, 1)):
        a, b = meta(128, k, dtype=torch.float16), meta(k, n, dtype=torch.float16)
        (kernel,) = cost_of(aten.mm.default, (a, b), {}, a @ b).kernels
        assert kernel.product.narrow == narrow
    a, b = meta(128, 64, dtype=torch.float16), meta(7, 64, dtype=torch.float16).t()
    (kernel,) = cost_of(aten.mm.default, (a, b), {}, a @ b).kernels
    assert kernel.product.narrow == 1  # of the result's rows
    a, b = meta(128, 62), meta(62, 64)
    (kernel,) = cost_of(aten.mm.default, (a, b), {}, a @ b).kernels
    assert kernel.product.narrow == 2  # of fp32, 8 bytes


def test_compiled_code_pads_rows_where_that_is_quicker():
    def products(rows, words):
        a, b = meta(rows, words, dtype=torch.bfloat16), meta(words, 768, dtype=torch.bfloat16)
        cost = cost_of(aten.mm.default, (a, b), {}, a @ b)
        return cost.seconds(A100), cost.as_compiled().seconds(A100)

    as_it_lies, padded = products(8192, 50257)
    aligned, same = products(8192, 50264)
    assert aligned == same < padded < as_it_lies / 2
    few, not_padded = products(8, 50257)
    assert few == not_padded


def test_a_sparse_tensor_in_a_list_costs_what_it_has():
    with par.simulate("1x-v100-nvswitch", with_values=True) as (gpu,):
        few, many = (torch.eye(512, device=gpu).to_sparse(), torch.ones(512, 512, device=gpu))
        seconds = [
            par.measure(lambda a=a: torch.cat([a, a])).median_s
            for a in (few, many.to_sparse(), few)
        ]
    assert seconds[0] == pytest.approx(seconds[2])
    assert seconds[1] > 2 * seconds[0]


def test_packed_attention_of_nothing_costs_a_kernel():
    empty, ends = torch.empty(0, 8, 64, dtype=torch.half), torch.zeros(2, dtype=torch.int32)
    args = (empty, empty, empty, ends, ends, 0, 0, 0.0, False, False)
    assert cost_of(aten._flash_attention_forward.default, args, {}, empty).seconds(A100) > 0


@pytest.mark.parametrize("causal", [False, True])
def test_a_flash_kernel_that_is_called_by_itself_costs_the_same(causal):
    """Tokens come before heads there, and those of all sequences may lie in a row."""
    batch, heads, of_keys, tokens, size = 3, 8, 2, 512, 64
    q, k = (torch.empty(batch, n, tokens, size, dtype=torch.half) for n in (heads, of_keys))
    whole = cost_of(
        aten._scaled_dot_product_flash_attention.default, (q, k, k, 0.0, causal), {}, q
    ).seconds(A100)
    rows, of_rows = (t.transpose(1, 2).contiguous() for t in (q, k))
    ends = torch.arange(batch + 1, dtype=torch.int32) * tokens
    for packed in (False, True):
        given = [t.flatten(0, 1) if packed else t for t in (rows, of_rows, of_rows)]
        ranges = [ends, ends] if packed else [None, None]
        args = (*given, *ranges, tokens, tokens, 0.0, causal, False)
        alone = cost_of(aten._flash_attention_forward.default, args, {}, given[0])
        assert alone.seconds(A100) == whole


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("form", ["to_sparse_coo", "to_sparse_csr"])
def test_a_sparse_product_moves_a_row_for_each_number(form):
    """And the numbers with their indices, and the result; not what a dense matrix would have."""
    n, width = 512, 256
    dense = torch.ones(n, width)
    for bands in (1, 3):
        whole = torch.ones(n, n).tril().triu(1 - bands)
        numbers = int(whole.sum())
        cost = cost_of(aten.mm.default, (getattr(whole, form)(), dense), {}, dense)
        (kernel,) = cost.kernels
        moved = cost.bytes + (kernel.again.bytes if kernel.again else 0)
        of_matrix = 12 * numbers + 8 * (n + 1) if form == "to_sparse_csr" else 20 * numbers
        assert moved == of_matrix + 4 * width * (numbers + n)
        assert cost.flops == 2 * numbers * width


def test_sparse_factors_have_no_rows_to_align(gpus):
    with par.simulate("1x-v100-nvswitch", with_values=True) as (gpu,):
        a = torch.eye(8, device=gpu).to_sparse()
        assert torch.equal((a @ torch.ones(8, 3, device=gpu)).cpu(), torch.ones(8, 3))


# --- bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "arrays"),
    [
        (aten.add.Tensor, (meta(100), meta(100)), {}, 3),
        (aten.add_.Tensor, (meta(100), meta(100)), {}, 3),
        (aten.add.out, (meta(100), meta(100)), {"out": meta(100)}, 3),
        (aten.relu_.default, (meta(100),), {}, 2),
        (aten.zero_.default, (meta(100),), {}, 1),
        (aten._foreach_add_.List, ([meta(100), meta(100)], [meta(100), meta(100)]), {}, 6),
    ],
    ids=lambda value: str(value) if isinstance(value, torch._ops.OpOverload) else "",
)
def test_bytes_are_what_is_read_and_what_is_written(func, args, kwargs, arrays):
    cost = cost_of(func, args, kwargs, func(*args, **kwargs))
    assert cost.bytes == arrays * 400


def normed(shape, training=True, dtype=torch.float32, last=False):
    """The cost of a batch norm, and of its gradients."""
    x, channel = meta(*shape, dtype=dtype, last=last), meta(shape[1])
    args = (x, channel, channel, channel, channel, training, 0.1, 1e-5)
    outputs = aten.native_batch_norm(*args)
    forward = cost_of(aten.native_batch_norm.default, args, {}, outputs)
    args = (x, x, *[channel] * 5, training, 1e-5, [True] * 3)
    outputs = aten.native_batch_norm_backward(*args)
    return forward, cost_of(aten.native_batch_norm_backward.default, args, {}, outputs)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # cuDNN's and PyTorch's own
def test_batch_norm_reads_twice_while_it_learns(dtype, last):
    def passes(cost):
        return cost.bytes // (8 * 4 * 5 * 5 * dtype.itemsize)  # beside numbers of channels

    learning, gradients = normed((8, 4, 5, 5), True, dtype, last)
    evaluated, _ = normed((8, 4, 5, 5), False, dtype, last)
    assert (passes(learning), passes(gradients), passes(evaluated)) == (3, 5, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_channel_that_is_first_keeps_one_block_which_more_bandwidth_does_not_help(dtype):
    faster = replace(A100, memory_bytes_per_s=10 * A100.memory_bytes_per_s)
    few, many = (256, 4, 64, 64), (64, 16, 64, 64)  # as many numbers
    first = zip(normed(few, dtype=dtype), normed(many, dtype=dtype), strict=True)
    for of_few, of_many in first:
        assert of_few.seconds(A100) == pytest.approx(4 * of_many.seconds(A100), rel=0.2)
        assert of_few.seconds(faster) > 0.9 * of_few.seconds(A100)
    of_few, of_many = (normed(shape, dtype=dtype, last=True) for shape in (few, many))
    for a, b in zip(of_few, of_many, strict=True):
        assert a.seconds(A100) == pytest.approx(b.seconds(A100), rel=1e-3)
        assert a.seconds(faster) < 0.5 * a.seconds(A100)


def test_rows_of_numbers_have_their_channels_last():
    rows, _ = normed((65536, 64))
    images, _ = normed((64, 64, 32, 32), last=True)
    assert rows.seconds(A100) == pytest.approx(images.seconds(A100), rel=1e-2)


def test_a_group_of_an_image_is_the_work_of_one_block_in_any_data_type():
    def costs(images, groups, dtype):
        x, channel = meta(images, 64, 64, 64, dtype=dtype), meta(64, dtype=dtype)
        args = (x, channel, channel, images, 64, 64 * 64, groups, 1e-5)
        outputs = aten.native_group_norm(*args)
        forward = cost_of(aten.native_group_norm.default, args, {}, outputs)
        args = (x, x, *outputs[1:], channel, images, 64, 64 * 64, groups, [True] * 3)
        outputs = aten.native_group_norm_backward(*args)
        backward = cost_of(aten.native_group_norm_backward.default, args, {}, outputs)
        return forward, backward

    for dtype in (torch.float16, torch.float32):
        of_eight, backward = costs(32, 8, dtype)
        of_one, _ = costs(32, 1, dtype)
        passes = [
            cost.bytes // (32 * 64 * 64 * 64 * dtype.itemsize) for cost in costs(32, 8, dtype)
        ]
        assert passes == [3, 5]
        waiting = [cost.kernels[0].serial_reads for cost in (of_one, of_eight, backward)]
        assert waiting == [512, 64, 8]  # 512 threads, number by number; sums are of channels
        assert of_one.seconds(A100) > 2 * of_eight.seconds(A100)


def test_what_the_cache_holds_is_not_waited_for_as_long():
    cached, _ = normed((1, 2, 512, 512), dtype=torch.float16)
    longer, _ = normed((64, 2, 512, 512), dtype=torch.float16)
    assert longer.seconds(A100) > 1.5 * 64 * (cached.seconds(A100) - A100.kernel_latency_s)


# --- convolutions ---------------------------------------------------------------------------------


def test_a_convolution_is_a_product():
    cost = convolved(meta(16, 64, 28, 28), meta(128, 64, 1, 1))
    (kernel,) = cost.kernels
    assert kernel.product == Product(128, 28 * 28, 64, 16)  # one an image, as it lies
    (last,) = cost.as_compiled().kernels
    assert last.product == Product(128, 16 * 28 * 28, 64, 1)
    assert kernel.flops == 2 * 16 * 28 * 28 * 64 * 128
    assert kernel.bytes == 4 * (16 * 64 * 28**2 + 128 * 64 + 16 * 128 * 28**2)
    assert kernel.winograd is None


def test_of_few_channels_in_three_dimensions_tensor_cores_compute_as_with_more():
    def seconds(channels, dtype):
        x, weight = (
            meta(2, channels, 64, 64, 64, dtype=dtype),
            meta(32, channels, 3, 3, 3, dtype=dtype),
        )
        args = (x, weight, None, [1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1)
        return cost_of(aten.convolution.default, args, {}, aten.convolution(*args)).seconds(A100)

    assert seconds(4, torch.float16) > 0.8 * seconds(32, torch.float16)
    assert seconds(4, torch.float32) < 0.3 * seconds(32, torch.float32)


def test_compiled_code_leaves_biases_to_its_own_kernels_if_there_are_others():
    main, biases = Kernel(10**9, 10**6), Kernel(0, 10**6)
    compiled = Cost(main, biases, convolves=True).as_compiled()
    assert len(compiled.kernels) == 1
    assert compiled.flops == main.flops
    assert Cost(biases, convolves=True).as_compiled().kernels == (biases,)


@pytest.mark.parametrize(
    ("sizes", "form"), [((32, 32), torch.channels_last), ((16, 16, 16), torch.channels_last_3d)]
)
def test_images_with_channels_last_need_no_transposing(sizes, form):
    dimensions = len(sizes)
    x = meta(4, 64, *sizes, dtype=torch.float16)
    weight = meta(64, 64, *[3] * dimensions, dtype=torch.float16)
    rest = ([1] * dimensions, [1] * dimensions, [1] * dimensions, False, [0] * dimensions, 1)
    found = []
    for tensor in (x, x.contiguous(memory_format=form)):
        args = (tensor, weight, None, *rest)
        (kernel,) = cost_of(aten.convolution.default, args, {}, aten.convolution(*args)).kernels
        found.append(kernel.transposed_bytes)
    assert found == [2 * 2 * x.numel() * 2, 0]


def test_images_may_be_the_filters_too():
    x = meta(64, 64, 7, 7)
    assert convolved(x, x).bytes == pytest.approx(2 * x.numel() * 4, rel=0.05)  # y is small


def test_its_backward_is_a_product_for_each_gradient():
    dy, x, weight = meta(16, 128, 14, 14), meta(16, 64, 28, 28), meta(128, 64, 3, 3)
    args = (dy, x, weight, [128], [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])
    cost = cost_of(aten.convolution_backward.default, args, {}, aten.convolution_backward(*args))
    images, weights, biases = cost.kernels
    assert images.product == Product(64, 16 * 14 * 14, 128 * 9, 1)
    assert weights.product == Product(128, 64 * 9, 16 * 14 * 14, 1)
    assert images.flops == weights.flops == 2 * 16 * 14 * 14 * 64 * 9 * 128
    assert (biases.flops, biases.bytes) == (0, dy.numel() * 4)


def test_a_transposed_convolution_applies_its_kernels_to_what_comes_in():
    x, weight, y = meta(16, 64, 14, 14), meta(64, 32, 4, 4), meta(16, 32, 28, 28)
    how = ([2, 2], [1, 1], [1, 1], True, [0, 0], 1)
    args = (x, weight, None, *how)
    (forward,) = cost_of(aten.convolution.default, args, {}, y).kernels
    args = (y, x, weight, [32], *how, [True, True, False])
    cost = cost_of(aten.convolution_backward.default, args, {}, aten.convolution_backward(*args))
    images, weights = cost.kernels
    pixels = 16 * 14 * 14
    assert forward.product == Product(32, pixels, 64 * 16, 1)
    assert images.product == Product(64, pixels, 32 * 16, 1)
    assert weights.product == Product(64, 32 * 16, pixels, 1)
    assert forward.flops == images.flops == weights.flops == 2 * pixels * 64 * 32 * 16


def test_no_images_are_convolved_both_ways(gpus):
    x = torch.empty(0, 3, 8, 8, device=gpus[0], requires_grad=True)
    weight = torch.ones(4, 3, 3, 3, device=gpus[0], requires_grad=True)
    torch.conv2d(x, weight).sum().backward()
    assert not weight.grad.any()


def test_grouped_convolutions_are_bound_by_memory():
    cost = convolved(meta(16, 64, 28, 28), meta(64, 1, 3, 3), padding=1, groups=64)
    (kernel,) = cost.kernels
    assert (kernel.product, kernel.winograd) == (None, None)
    assert cost.seconds(V100) == pytest.approx(traffic(kernel.bytes).seconds(V100))


@pytest.mark.parametrize(
    ("dtype", "side", "last", "times"),
    [
        (torch.float32, 3, False, 9),
        (torch.float16, 3, False, 1),
        (torch.float16, 7, False, 49),
        (torch.float16, 7, True, 1),
        (torch.bfloat16, 3, False, 9),
        (torch.bfloat16, 3, True, 1),
    ],
)
def test_depthwise_kernels_of_pytorch_read_images_for_each_place_of_a_filter(
    dtype, side, last, times
):
    """cuDNN's do not: those of half precision, with channels last or small filters of fp16."""
    x = meta(16, 64, 28, 28, dtype=dtype, last=last)
    weight = meta(64, 1, side, side, dtype=dtype)
    backward = torch.ops.aten.convolution_backward.default
    plain = ([1, 1], [side // 2] * 2, [1, 1], False, [0, 0], 64, [True, True, False])
    cost = cost_of(backward, (x, x, weight, None, *plain), {}, (x, weight, None))
    kernels = [*convolved(x, weight, padding=side // 2, groups=64).kernels, *cost.kernels]
    image = x.numel() * x.element_size()
    images = [kernel.bytes / image for kernel in kernels]  # weights are small
    assert images == pytest.approx([times + 1, times + 1, 2 * times], rel=1e-2)


def test_transposed_ones_have_several_filters_for_a_channel():
    x = meta(2, 4, 9, 9, dtype=torch.float16)
    weight = meta(4, 2, 3, 3, dtype=torch.float16)  # inputs, outputs of a group
    args = (x, weight, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 4)
    y = aten.convolution(*args)
    assert y.shape == (2, 8, 11, 11)
    cost = cost_of(aten.convolution.default, args, {}, y)
    assert cost.bytes >= 2 * (x.numel() + weight.numel() + y.numel())


def test_winograds_forms_multiply_less_than_half_and_a_quarter_as_often():
    y, weight = meta(16, 128, 32, 32), meta(128, 64, 3, 3)
    plain = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    work = winograd(y.shape, weight.shape, *plain)
    direct = 2 * 16 * 32 * 32 * 128 * 64 * 9
    assert direct / (work.blocks * work.block_flops) == pytest.approx(36 / 16)
    for form in (work, work.of_images(), work.of_weights()):
        m, n, k, batch, _ = form.product
        assert direct / (2 * m * n * k * batch) == pytest.approx(144 / 36)
    assert winograd(y.shape, weight.shape, [2, 2], *plain[1:]) is None
    assert winograd(y.shape, (128, 64, 5, 5), *plain) is None


def test_its_blocks_have_eight_by_sixteen_pixels_and_32_channels():
    # Grids of cuDNN's `winograd_128x128_ldg1_ldg4_relu_tile148t_nt` on V100 (sitar-lab/NeuSight).
    plain = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    for samples, inputs, outputs, side, blocks in (
        (36, 1126, 131, 14, 180 * 2 * 1),
        (47, 143, 18, 114, 47 * 15 * 8),
        (1, 1074, 456, 5, 15 * 1 * 1),
    ):
        shapes = (samples, outputs, side, side), (outputs, inputs, 3, 3)
        assert winograd(*shapes, *plain).blocks == blocks


def test_winograd_is_for_what_ordinary_cores_multiply():
    images, weight = (64, 256, 28, 28), (256, 256, 3, 3)
    single = convolved(meta(*images), meta(*weight), padding=1)
    half = convolved(
        meta(*images, dtype=torch.float16), meta(*weight, dtype=torch.float16), padding=1
    )
    direct_s = single.flops / (15.7e12 * MATMUL_EFFICIENCY * CONVOLUTION_EFFICIENCY)
    assert single.seconds(V100) < 0.6 * direct_s
    assert half.seconds(V100) > half.flops / (125e12 * CONVOLUTION_EFFICIENCY)
    p100 = ACCELERATORS["P100-SXM2-16GB"]
    assert half.seconds(p100) < single.seconds(p100) < single.flops / p100.rate("float32")


def test_kepler_has_no_kernels_of_winograd():
    # cuDNN's are for Maxwell and later: a K40's convolutions of 3 x 3 are direct ones.
    images, weight = (64, 256, 28, 28), (256, 256, 3, 3)
    cost = convolved(meta(*images), meta(*weight), padding=1)
    k40, titan = (ACCELERATORS[name] for name in ("Tesla K40", "GeForce GTX Titan X"))
    assert cost.seconds(k40) > cost.flops / k40.rate("float32")
    assert cost.seconds(titan) < cost.flops / titan.rate("float32")


def test_tensor_cores_want_channels_last():
    images, weight = (64, 256, 28, 28), (256, 256, 3, 3)
    first, last = (
        convolved(
            meta(*images, dtype=torch.float16, last=is_last),
            meta(*weight, dtype=torch.float16),
            padding=1,
        )
        for is_last in (False, True)
    )
    moved_s = 4 * 64 * 256 * 28**2 * 2 / (9e11 * MEMORY_EFFICIENCY)
    assert first.seconds(V100) - last.seconds(V100) == pytest.approx(moved_s)


def test_filters_of_a_single_channel_read_images_as_they_lie():
    x = meta(64, 96, 28, 28, dtype=torch.float16)
    for groups, outputs, is_transposed in ((96, 96, False), (96, 192, False), (32, 96, True)):
        weight = meta(outputs, 96 // groups, 3, 3, dtype=torch.float16)
        (kernel,) = convolved(x, weight, padding=1, groups=groups).kernels
        assert bool(kernel.transposed_bytes) is is_transposed
    # With one channel in all, it is a convolution as any other.
    (kernel,) = convolved(x[:, :1], meta(96, 1, 3, 3, dtype=torch.float16), padding=1).kernels
    assert kernel.transposed_bytes


@pytest.mark.parametrize("with_values", [False, True], ids=["shapes", "values"])
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
def test_channels_stay_where_they_are(with_values, last):
    register.register_backend()
    form = torch.channels_last if last else torch.contiguous_format
    with par.simulate("1x-v100-nvswitch", with_values=with_values) as (gpu,):
        x = torch.ones(2, 4, 6, 6, device=gpu).contiguous(memory_format=form)
        convolution = torch.nn.Conv2d(4, 8, 1).to(gpu)
        assert convolution(x).is_contiguous(memory_format=form)


@pytest.mark.parametrize(
    ("change", "transposed"),
    [
        ({}, False),
        ({"stride": 2}, True),
        ({"padding": 1}, True),
        ({"side": 3}, True),
    ],
    ids=str,
)
def test_a_product_of_channels_is_taken_as_it_lies(change, transposed):
    """Its rows are 28 x 28 numbers of 2 bytes: 16 divide them. Of 7 x 7 only 2 do: what is quicker
    is transposed."""
    side = change.pop("side", 1)
    for width, narrow in ((28, None), (7, 1)):
        x, weight = (
            meta(*shape, dtype=torch.float16)
            for shape in ((8, 64, width, width), (64, 64, side, side))
        )
        cost = convolved(x, weight, **change)
        (kernel,) = cost.kernels
        assert bool(kernel.transposed_bytes) is (transposed or narrow is not None)
        assert kernel.product.narrow == (None if transposed else narrow)
        (last,) = cost.as_compiled().kernels
        assert (last.transposed_bytes, last.product.narrow) == (0, None)


def test_the_gradients_of_a_product_of_channels_are_transposed():
    x, weight = meta(8, 64, 28, 28, dtype=torch.float16), meta(64, 64, 1, 1, dtype=torch.float16)
    args = (x, x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    outputs = aten.convolution_backward(*args)
    cost = cost_of(aten.convolution_backward.default, args, {}, outputs)
    assert all(kernel.transposed_bytes == 4 * x.nbytes for kernel in cost.kernels)


def test_writing_hides_where_tiles_take_long():
    """On chips for graphics a product hides most of it, on an A100 nothing."""
    work = Kernel(2 * 2**34, 2**27, Product(2**13, 2**13, 2**8, 1), written=2**27)
    for name, hides in (("GeForce RTX 3090", True), ("A100-SXM4-40GB", False)):
        card = ACCELERATORS[name]
        all_s, computing_s = (
            Cost(kernel, dtype="float16").seconds(card)
            for kernel in (work, work._replace(bytes=0, written=0))
        )
        writing_s = MemoryRates(card).seconds(2**27)
        if hides:
            assert all_s - computing_s < 0.3 * writing_s
        else:
            assert all_s - computing_s == pytest.approx(writing_s)


# --- norms and softmax ----------------------------------------------------------------------------


def test_few_rows_leave_most_of_a_device_idle():
    """A block a row: as many rows as multiprocessors, and eight of eight times the length."""
    many, few = (meta(rows, 2**30 // rows) for rows in (A100.multiprocessors, 8))
    seconds = [
        cost_of(aten._softmax.default, (x, -1, False), {}, aten._softmax(x, -1, False))
        for x in (many, few)
    ]
    many_s, few_s = (cost.seconds(A100) for cost in seconds)
    assert few_s > 4 * many_s
    of_one = 67e9 * 0.6  # of the cache's rate, what one multiprocessor has
    # Such rows are read three times, and written.
    assert few_s == pytest.approx(4 * few.nbytes / (8 * of_one), rel=0.01)


def test_rows_lie_along_any_dimension():
    x = meta(6, 5, 4)
    for along, rows in ((0, 20), (1, 24), (-1, 1)):  # 64 rows of 4 that lie so are a block
        outputs = aten._log_softmax(x, along, False)
        (kernel,) = cost_of(aten._log_softmax.default, (x, along, False), {}, outputs).kernels
        assert kernel.blocks == rows


@pytest.mark.parametrize(
    ("length", "dtype", "times"),
    [
        *[(1024, torch.float32, 1), (12_284, torch.float32, 1), (12_288, torch.float32, 3)],
        *[(1023, torch.float64, 3), (4001, torch.float32, 3), (24_568, torch.float16, 1)],
    ],
    ids=str,
)
def test_softmax_reads_a_row_once_if_it_can_keep_it(length, dtype, times):
    """In registers, or in 48 KiB of shared memory, if 16 bytes at a time lie in it."""
    x = meta(512, length, dtype=dtype)
    args = (x, -1, False)
    (kernel,) = cost_of(aten._softmax.default, args, {}, aten._softmax(*args)).kernels
    assert kernel.bytes == 2 * x.nbytes
    assert (kernel.again.bytes if kernel.again else 0) == (times - 1) * x.nbytes


@pytest.mark.parametrize(("rows", "length", "blocks"), [(64, 10, 4), (64, 100, 8), (64, 1000, 16)])
def test_short_rows_share_a_block_of_softmax(rows, length, blocks):
    """Of 128 threads: by 16 each for 10 numbers, by 32 for more, two rows up to 128 numbers."""
    x = meta(rows, length)
    args = (x, -1, False)
    (kernel,) = cost_of(aten._softmax.default, args, {}, aten._softmax(*args)).kernels
    assert kernel.blocks == blocks


def test_the_gradient_of_softmax_multiplies_first():
    y = meta(512, 4096)
    for op, tensors in (
        (aten._softmax_backward_data, [3, 3]),
        (aten._log_softmax_backward_data, [3]),
    ):
        args = (y, y, -1, torch.float32)
        kernels = cost_of(op.default, args, {}, op(*args)).kernels
        assert [kernel.bytes for kernel in kernels] == [n * y.nbytes for n in tensors]
        assert kernels[-1].again.bytes == y.nbytes


def test_a_layer_norm_finds_rows_in_the_cache_that_it_reads_again():
    """As far as the rows of all blocks fit: 16 on each of 108 multiprocessors, 40 MB of cache."""

    def reading_again_s(columns):
        x, row = meta(2**29 // columns, columns), meta(columns)
        args = (x, [columns], row, row, 1e-5)
        cost = cost_of(aten.native_layer_norm.default, args, {}, aten.native_layer_norm(*args))
        (kernel,) = cost.kernels
        once = Cost(kernel._replace(again=None))
        return cost.seconds(A100) - once.seconds(A100), x.nbytes

    seconds, nbytes = reading_again_s(1024)
    assert nbytes / seconds == pytest.approx(67e9 * 108 * 0.6)
    seconds, nbytes = reading_again_s(32_768)
    assert nbytes / seconds == pytest.approx(1555e9 * MEMORY_EFFICIENCY)


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_norms_gradients_of_weights_read_all_once_more(norm, wanted):
    x, weight, mean = meta(64, 8, 96), meta(96), meta(64, 8, 1)
    if norm == "layer":
        func = aten.native_layer_norm_backward.default
        args = (x, x, [96], mean, mean, weight, weight, [True, wanted, wanted])
    else:  # its name begins as those of fused optimizers do
        func = aten._fused_rms_norm_backward.default
        args = (x, x, [96], mean, weight, [True, wanted])
    cost = cost_of(func, args, {}, func(*args))
    assert [kernel.blocks for kernel in cost.kernels] == [512, 3][: 1 + wanted]
    if wanted:
        assert cost.kernels[1].bytes == 2 * x.nbytes


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of older torch's own code
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_compiled_code_sums_gradients_of_weights_in_a_loop_of_their_own(norm):
    """It goes down the columns, and the one for the input along the rows."""
    with par.simulate("1x-a100-nvswitch") as (gpu,):
        x, weight = torch.empty(2**14, 4096, device=gpu), torch.empty(4096, device=gpu)
        function = torch.compile(lambda x, w: getattr(torch.nn.functional, norm)(x, (4096,), w))

        def backward_bytes(*wanted):
            for tensor in (x, weight):
                tensor.requires_grad_(any(tensor is one for one in wanted))
            y = function(x, weight)
            with par.record() as timeline:
                torch.autograd.grad(y, wanted, torch.empty_like(y))
            return sum(span.bytes for span in timeline if span.kind == "compute")

        assert backward_bytes(x, weight) > backward_bytes(x) + 1.9 * x.nbytes


@pytest.mark.parametrize("name", ["addmm", "baddbmm", "addbmm"])
def test_a_product_added_in_place_costs_what_it_costs_elsewhere(fresh_gpus, name):
    gpu = fresh_gpus[0]
    batch = () if name == "addmm" else (4,)
    a, b = (torch.ones(*batch, 256, 256, device=gpu) for _ in range(2))
    total = torch.zeros(*(() if name == "addbmm" else batch), 256, 256, device=gpu)
    with par.record() as timeline:
        getattr(torch, name)(total, a, b)
        getattr(total, f"{name}_")(a, b)
    first, second = (span for span in timeline.spans if span.kind == "compute")
    assert first.flops == second.flops == 2 * 256**3 * (batch or (1,))[0]
    assert second.end_s - second.start_s == pytest.approx(first.end_s - first.start_s, rel=0.1)


@pytest.mark.parametrize("with_values", [False, True], ids=["shapes", "values"])
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm_is_one_kernel_as_on_cuda(with_values, weighted):
    register.register_backend()
    with par.simulate("1x-a100-nvswitch", with_values=with_values) as (gpu,), par.record() as tl:
        x = torch.ones(8, 64, device=gpu, requires_grad=True)
        weight = torch.ones(64, device=gpu, requires_grad=True) if weighted else None
        y = torch.nn.functional.rms_norm(x, (64,), weight)
        torch.autograd.grad(y, [x, weight][: 1 + weighted], torch.ones_like(y))
    names = [span.name for span in tl.spans if span.kind == "compute"]
    kernels = [name for name in names if name not in ("ones", "ones_like", "fill_")]
    assert kernels == ["_fused_rms_norm", "_fused_rms_norm_backward"]


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 4, 5), (8,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm_and_its_gradients_are_the_cpus(fresh_gpus, shape, dtype, weighted):
    generator = torch.Generator().manual_seed(1)
    rows = shape[-2:] if len(shape) == 4 else shape[-1:]
    arrays = [torch.randn(s, generator=generator, dtype=dtype) for s in (shape, rows, shape)]
    results = []
    for device in ("cpu", fresh_gpus[0]):
        x, weight, gradient = (array.to(device) for array in arrays)
        inputs = [x.requires_grad_(), weight.requires_grad_()][: 1 + weighted]
        y = torch.nn.functional.rms_norm(x, rows, weight if weighted else None)
        results.append([y, *torch.autograd.grad(y, inputs, gradient)])
    for one, other in zip(*results, strict=True):
        assert other.dtype == dtype
        tolerance = 1e-5 if dtype is torch.float32 else 4e-2
        torch.testing.assert_close(other.cpu(), one, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("dtype", "real"),
    [
        (torch.complex64, torch.float32),
        (torch.complex128, torch.float64),
    ],
)
def test_a_product_of_complex_numbers_is_four_of_real_ones(dtype, real):
    """BLAS counts 8 FLOP for each multiplication of CGEMM and ZGEMM."""
    a, b = meta(2048, 2048, dtype=dtype), meta(2048, 2048, dtype=dtype)
    cost = cost_of(aten.mm.default, (a, b), {}, meta(2048, 2048, dtype=dtype))
    (kernel,) = cost.kernels
    assert (kernel.flops, cost.dtype) == (8 * 2048**3, str(real).removeprefix("torch."))
    assert kernel.bytes == 3 * 2048**2 * dtype.itemsize
    c, d = meta(2048, 2048, dtype=real), meta(2048, 2048, dtype=real)
    of_real = cost_of(aten.mm.default, (c, d), {}, meta(2048, 2048, dtype=real))
    assert cost.seconds(A100) == pytest.approx(4 * of_real.seconds(A100), rel=0.1)


N = 4096
FACTORED = {  # FLOP of a square matrix, in n³ (LAPACK Working Note 41; Golub and Van Loan)
    "cholesky": (torch.linalg.cholesky, 1 / 3),
    "lu": (torch.linalg.lu_factor, 2 / 3),
    "inverse": (torch.linalg.inv, 2),
    "solve": (lambda a: torch.linalg.solve(a, a), 2 / 3 + 2),
    "triangular": (lambda a: torch.linalg.solve_triangular(a, a, upper=True), 1),
    "qr": (torch.linalg.qr, 8 / 3),
    "eigh": (torch.linalg.eigh, 9),
    "svd": (torch.linalg.svd, 22),
    "pinv": (torch.linalg.pinv, 24),
    "eig": (torch.linalg.eig, 25),
}


@pytest.mark.parametrize("name", FACTORED)
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_no_factorization_is_quicker_than_its_flop_allow(name, precision, request):
    request.addfinalizer(partial(torch.set_float32_matmul_precision, "highest"))
    torch.set_float32_matmul_precision(precision)
    factor, cubes = FACTORED[name]
    with par.simulate("1x-h100-nvswitch") as (gpu,):
        a = torch.empty(N, N, device=gpu)
        begin_s = now_s()
        factor(a)
        seconds = now_s() - begin_s
    least_s = cubes * N**3 / ACCELERATORS["H100-SXM5-80GB"].rate("float32")
    assert least_s < seconds < 40 * least_s


@pytest.mark.parametrize(
    ("work", "alike"),
    [
        (
            lambda r: torch.linalg.solve(r(8, N, N), r(8, N)),
            lambda r: torch.linalg.solve(r(8, N, N), r(8, N, 1)),
        ),
        (
            lambda r: torch.linalg.solve_triangular(r(8, N, N), r(8, 2, N), upper=True, left=False),
            lambda r: torch.linalg.solve_triangular(r(8, N, N), r(8, N, 2), upper=True),
        ),
        (
            lambda r: torch.linalg.solve_triangular(r(N, N), r(8, N, N), upper=True),
            lambda r: torch.linalg.solve_triangular(r(8, N, N), r(8, N, N), upper=True),
        ),
        (
            lambda r: torch.cholesky_solve(r(8, N, N), r(N, N)),
            lambda r: torch.cholesky_solve(r(8, N, N), r(8, N, N)),
        ),
    ],
    ids=["vectors", "from-the-right", "one-triangle", "one-factor"],
)
def test_right_hand_sides_cost_the_same_however_they_are_written(work, alike):
    with par.simulate("1x-h100-nvswitch") as (gpu,):
        taken = []
        for compute in (work, alike):
            begin_s = now_s()
            compute(lambda *shape: torch.empty(shape, device=gpu))
            taken.append(now_s() - begin_s)
    assert taken[0] == pytest.approx(taken[1], rel=0.1)
