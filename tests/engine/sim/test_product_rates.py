"""What products and streams reach, beside published curves of cuBLAS and BabelStream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from d2lpar.machines import ACCELERATORS
from d2lpar.machines.hardware import Accelerator
from d2lpar.vgpu.sim.pricing.kernel_cost import Cost, Kernel, traffic
from d2lpar.vgpu.sim.pricing.memory_rates import MemoryRates
from d2lpar.vgpu.sim.pricing.product_rates import (
    OTHER,
    issued_flops_per_s,
    reach,
    sustained_flops_per_s,
)
from d2lpar.vgpu.sim.pricing.tiles import Product

MIB = 2**20
V100 = replace(ACCELERATORS["V100-SXM2-16GB"], l2_bytes=6 * MIB, power_w=300)
A100 = replace(ACCELERATORS["A100-SXM4-80GB"], l2_bytes=40 * MIB, power_w=400)
FLOAT8 = {"float8_e4m3fn": 1979e12}
H100 = ACCELERATORS["H100-SXM5-80GB"]
H100 = replace(H100, flops_per_s=H100.flops_per_s | FLOAT8, l2_bytes=50 * MIB, power_w=700)
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}


def product(m, n, k, dtype, narrow=None):
    size = BYTES[dtype]
    written = m * n * max(size, 2)  # fp8 gives bf16
    kernel = Kernel(
        2 * m * n * k,
        (m * k + k * n) * size + written,
        Product(m, n, k, 1, narrow),
        written=written,
    )
    return Cost(kernel, dtype=dtype)


def tera(gpu, m, n, k, dtype, narrow=None):
    """TFLOP/s of one product."""
    return 2e-12 * m * n * k / product(m, n, k, dtype, narrow).seconds(gpu)


# Azure, AI-benchmarking-guide (2024), cublasLt with random inputs.
@pytest.mark.parametrize(
    ("gpu", "dtype", "shape", "published"),
    [
        (A100, "float16", (1024, 1024, 1024), 119.4),
        (A100, "float16", (2048, 2048, 2048), 221.8),
        (A100, "float16", (4096, 4096, 4096), 228.0),
        (A100, "float16", (8192, 8192, 8192), 253.7),
        (A100, "float16", (802816, 192, 768), 157.8),
        (H100, "float8_e4m3fn", (1024, 1024, 1024), 274.1),
        (H100, "float8_e4m3fn", (2048, 2048, 2048), 1011.3),
        (H100, "float8_e4m3fn", (8192, 8192, 8192), 1290.1),
        (H100, "float8_e4m3fn", (802816, 192, 768), 663.8),
        # One token and 64 of a decoder: vllm-project/vllm, pull request 49363.
        (H100, "bfloat16", (1, 12288, 5376), 2.870),
        (H100, "bfloat16", (64, 12288, 5376), 182.6),
        # triton-lang/triton, issue 2491, cuBLAS without TF32.
        (A100, "float32", (2048, 2048, 2048), 17.6),
        (V100, "float32", (4000, 4000, 4000), 13.9),  # d2l.ai, Automatic Parallelism
        (V100, "float64", (8000, 8000, 8000), 6.86),  # bewantbe/busy-gemm-benchmark
    ],
)
def test_products_come_out_as_published(gpu, dtype, shape, published):
    assert tera(gpu, *shape, dtype) == pytest.approx(published, rel=0.15)


def test_a_product_never_beats_what_its_power_lasts_for():
    for n in (256, 1000, 4096, 16384):
        for dtype in ("float16", "tfloat32", "float32"):
            rate = sustained_flops_per_s(A100, dtype)
            cost = product(n, n, n, "float32" if dtype == "tfloat32" else dtype)
            assert 2 * n**3 / cost.seconds(A100) < rate or dtype == "tfloat32"


def test_boards_with_less_power_sustain_less_and_never_more_than_they_issue():
    boards = [replace(H100, power_w=watts) for watts in (350, 500, 700, 1400)]
    rates = [sustained_flops_per_s(board, "bfloat16") for board in boards]
    assert rates == sorted(rates)
    assert rates[1] / rates[2] == pytest.approx((500 / 700) ** 0.5)
    assert rates[3] == issued_flops_per_s(H100, "bfloat16")
    unknown = replace(H100, power_w=None)
    assert sustained_flops_per_s(unknown, "bfloat16") == rates[2]


def test_an_unknown_architecture_and_an_unknown_type_have_defaults():
    gpu = Accelerator("new", {"float32": 1e13, "float16": 1e14}, 1e12, 10**10, multiprocessors=100)
    assert reach(gpu) == OTHER
    assert sustained_flops_per_s(gpu, "float16") == pytest.approx(1e14 * OTHER.sustained)
    # A type that the card has no rate for runs as fp32.
    assert issued_flops_per_s(gpu, "bfloat16") == issued_flops_per_s(gpu, "float32")


def test_small_boards_are_limited_by_power_in_fp32_too():
    # cuBLAS on an L4 of 72 W: 11.93 TFLOP/s at 4096³ (huggingface.co/datasets/rtferraz/
    # cuda-kernel-engineering); on an A6000 of 300 W: 23.25 (siboehm/SGEMM_CUDA).
    rates = {"float32": 30.3e12, "float16": 121e12}
    l4 = Accelerator(
        "L4", rates, 3e11, 24 * 10**9, multiprocessors=58, architecture="ada", power_w=72
    )
    assert tera(l4, 4096, 4096, 4096, "float32") == pytest.approx(11.93, rel=0.1)
    rates = {"float32": 38.7e12, "float16": 154.8e12}
    a6000 = Accelerator(
        "A6000", rates, 7.68e11, 48 * 10**9, multiprocessors=84, architecture="ampere", power_w=300
    )
    assert tera(a6000, 4096, 4096, 4096, "float32") == pytest.approx(23.25, rel=0.1)


# torch's products (zzc0721/torch-performance-test-data), on boards of 2.4 to 10.7 W for a TFLOP/s.
@pytest.mark.parametrize(
    ("gpu", "n", "dtype", "published"),
    [
        ("L4-PCIE-24GB", 8192, "bfloat16", 59.40),
        ("L40S-PCIE-48GB", 8192, "bfloat16", 269.15),
        ("A40-PCIE-48GB", 10240, "bfloat16", 122.29),
        ("RTX A4000", 8192, "bfloat16", 56.10),
        ("RTX A2000", 8192, "bfloat16", 28.77),
        ("L4-PCIE-24GB", 10240, "float32", 11.11),
        ("L40S-PCIE-48GB", 8192, "float32", 46.88),
        ("L20-PCIE-48GB", 8192, "float32", 35.88),
        ("GeForce RTX 4090", 8192, "float32", 53.41),
        ("A40-PCIE-48GB", 8192, "float32", 23.73),
        ("GeForce RTX 3080 Ti", 8192, "float32", 24.37),
    ],
)
def test_the_clock_falls_with_the_watts_that_a_board_has(gpu, n, dtype, published):
    assert tera(ACCELERATORS[gpu], n, n, n, dtype) == pytest.approx(published, rel=0.12)


def test_a_t4_has_power_for_half_of_its_ordinary_cores():
    # 4.17 and 4.43 TFLOP/s at best (zzc0721/torch-performance-test-data, database.md).
    rate = sustained_flops_per_s(ACCELERATORS["T4-PCIE-16GB"], "float32")
    assert rate == pytest.approx(4.3e12, rel=0.12)
    for name in ("V100-SXM2-16GB", "V100-PCIE-16GB"):  # those have enough
        v100 = ACCELERATORS[name]
        assert sustained_flops_per_s(v100, "float32") == issued_flops_per_s(v100, "float32")


def test_chips_for_graphics_are_no_servers_chips():
    server = Accelerator("B200", {"float32": 75e12, "float16": 2250e12}, 7.7e12, 10**10)
    graphics = Accelerator("5090", {"float32": 104.8e12, "float16": 209.5e12}, 1.8e12, 10**10)
    for architecture in ("ampere", "blackwell"):
        large, small = (replace(gpu, architecture=architecture) for gpu in (server, graphics))
        assert reach(large).full_tile > reach(small).full_tile
        # GeForce cards have power enough for their few tensor cores.
        assert sustained_flops_per_s(small, "float16") == issued_flops_per_s(small, "float16")


def test_both_types_of_8_bits_have_one_rate():
    gpu = replace(H100, flops_per_s=H100.flops_per_s | {"float8_e4m3": 1979e12})
    for dtype in ("float8_e4m3", "float8_e4m3fn", "float8_e5m2"):
        assert gpu.rate(dtype) == 1979e12
    assert A100.rate("float8_e5m2") == A100.rate("float32")


# Where each is published: `NARROW_FLOPS_A_CYCLE`; of the 4090 pytorch/pytorch, issue 181718.
@pytest.mark.parametrize(
    ("gpu", "dtype", "shape", "narrow", "published"),
    [
        ("H100-SXM5-80GB", "bfloat16", (2047, 8192, 3073), 1, 115),
        ("H100-SXM5-80GB", "bfloat16", (1023, 2512, 1029), 1, 71.2),
        ("H100-SXM5-80GB", "bfloat16", (127, 12288, 4097), 1, 86.8),
        ("H200-SXM-141GB", "bfloat16", (72000, 14336, 3072), 1, 99),
        ("GeForce RTX 4090", "bfloat16", (2055, 2055, 2055), 1, 115.6),
        ("RTX A6000", "bfloat16", (8192, 576, 50257), 1, 66),
        ("T4-PCIE-16GB", "float16", (14976, 50257, 768), 1, 10.4),
    ],
)
def test_rows_that_are_not_aligned_beside_published(gpu, dtype, shape, narrow, published):
    assert tera(ACCELERATORS[gpu], *shape, dtype, narrow) == pytest.approx(published, rel=0.3)


def test_a_vocabulary_of_50257_costs_more_than_one_of_50304():
    aligned, odd = (
        product(8192, n, 768, "bfloat16", narrow).seconds(A100)
        for n, narrow in ((50304, None), (50257, 1))
    )
    assert 2 < odd / aligned < 4


def test_more_of_anything_takes_longer():
    for gpu, dtype in ((V100, "float32"), (A100, "float16"), (H100, "float8_e4m3fn")):
        times = [product(2048, 2048, k, dtype).seconds(gpu) for k in (64, 256, 1024, 4096)]
        assert times == sorted(times)
        times = [product(128 * m, 4096, 4096, dtype).seconds(gpu) for m in (1, 4, 16, 64)]
        assert times == sorted(times)


# --- memory ---------------------------------------------------------------------------------------


# BabelStream: triad on A100 and H100 (Azure), on a V100 (kaanolgu/BabelStream); 2**25 doubles.
@pytest.mark.parametrize(("gpu", "published"), [(A100, 1700), (H100, 2970), (V100, 846.5)])
def test_streams_that_fit_no_cache_run_at_the_speed_of_memory(gpu, published):
    nbytes = 3 * 2**28
    assert nbytes / traffic(nbytes).seconds(gpu) / 1e9 == pytest.approx(published, rel=0.1)


def test_what_fits_in_the_cache_is_faster_and_the_change_is_gradual():
    rates = MemoryRates(A100)
    assert rates.cached_share(16 * MIB) == 1
    assert rates.cached_share(60 * MIB) == 0
    assert rates.seconds(16 * MIB) < 16 * MIB / rates.bytes_per_s / 2
    times = [rates.seconds(size * MIB) for size in range(1, 80)]
    assert times == sorted(times)
    assert rates.seconds(2**30) == 2**30 / rates.bytes_per_s


def test_without_a_known_cache_nothing_is_faster():
    rates = MemoryRates(replace(A100, l2_bytes=None))
    assert rates.seconds(1000) == 1000 / rates.bytes_per_s
    measured = MemoryRates(replace(A100, measured=True))
    assert measured.seconds(1000) == 1000 / A100.memory_bytes_per_s
