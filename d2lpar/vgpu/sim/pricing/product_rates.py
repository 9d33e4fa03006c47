"""What products of matrices reach of a peak: by architecture, data type and power.

Three things stand between a product and the peak of its data sheet. *Issue*: even tiles that lie in
shared memory keep the units busy for a share of the cycles only. *Power*: tensor cores that work on
random numbers draw more than the board may, and its clock falls (He, "Strangely, matrix
multiplications on GPUs run faster when given predictable data", https://www.thonking.ai/p/
strangely-matrix-multiplications, 2024). A board that has fewer watts for a FLOP/s falls further:
dynamic power is f V², and V falls with f until it reaches its floor, so the clock goes with a power
of the watts between 1/3 and 1 (`by_power`): the square root is taken for tensor cores of servers'
chips, 2/3 for chips for graphics, whose boards spend more on what does not slow down, and for
ordinary cores. *Feeding*: a small tile needs more bytes of shared memory for a FLOP
(`Reach.full_tile`; see `tiles`).
"""

from __future__ import annotations

from typing import NamedTuple

from ....machines.hardware import FLOAT8, TERA, Accelerator
from ..constants import (
    CONVOLUTION_EFFICIENCY,
    FLOAT8_POWER,
    KEPLER_PLAIN_EFFICIENCY,
    MATMUL_EFFICIENCY,
    NARROW_FLOPS_A_CYCLE,
    NARROW_ON_TURING,
    SMALL_TENSOR_CONVOLUTION_EFFICIENCY,
    WIDE_PLAIN_EFFICIENCY,
)
from .multiprocessors import clock_hz

PLAIN = ("float32", "float64")
HALF = ("float16", "bfloat16")


class Reach(NamedTuple):
    """What the kernels of one architecture reach.

    `plain` is the share of peak on ordinary cores, on boards of `plain_watts` W for each TFLOP/s of
    fp32 or more; `issued` that of tensor cores as long as their power lasts, `sustained` that of
    16 bits under load on a board of `watts` W for each TFLOP/s (None: power never limits), which
    goes with the power `by_power` of the watts. Tiles of r × c reach all of it from
    r c / (r + c) = `full_tile` on. `hides` is the exponent with which reading hides behind
    arithmetic (that it is 3 on chips for graphics is a hypothesis), `adding_s` what it costs to add
    the slices of a sum. A board whose power is not known is taken to be the one of `watts`, or
    where `is_roomy` to have power enough: GeForce cards have. `gathers` is the share of a product's
    rate that convolutions reach on tensor cores; `hides_writing` says if writing hides behind
    arithmetic as reading does, `transforms` if cuDNN has kernels for Winograd's convolutions.
    `narrow` is the share that it reaches of `NARROW_FLOPS_A_CYCLE`.
    """

    plain: float
    plain_watts: float | None
    issued: float
    sustained: float
    watts: float | None
    full_tile: float
    hides: float
    adding_s: float
    is_roomy: bool = False
    gathers: float = CONVOLUTION_EFFICIENCY
    hides_writing: bool = False
    by_power: float = 1 / 2
    transforms: bool = True
    narrow: float = 1.0


PLAIN_BY_POWER = 2 / 3  # the same for ordinary cores: see the lines on `wide` and `ada`
ADDING_S, CLUSTER_ADDING_S = 3e-6, 1e-6  # by a kernel of its own, or in the memory of a cluster

# - volta: 85 of 125 TFLOP/s in fp16 are the least that was said of a V100 (hma02/cublasHgemm-P100,
#   pull request 1, 2019), 0.88 of peak what it reaches in fp64 (bewantbe/busy-gemm-benchmark);
#   between them. Turing comes from the same process (12 nm), with nearly the same tensor cores.
#   The 18 W for a TFLOP/s of fp32 of a V100 on PCIe are taken to be enough; a V100S of 15 reaches
#   13.6 of 16.4 TFLOP/s, a T4 of 8.6 4.2 and 4.4 of 8.1 (zzc0721/torch-performance-test-data).
# - ampere: an A100 of 400 W multiplies zeros at 295 of 312 TFLOP/s, random numbers at 257 (He 2024;
#   Azure, AI-benchmarking-guide, 2024: 256.5 at 16384³). 128 bytes of shared memory a cycle feed
#   2,048 FLOP: a tile of 64 x 64, by warps of 32 x 32, would need 192.
# - wide: GA102 to GA107, with 128 lanes of fp32. 23.2 of 38.7 TFLOP/s on an A6000 of 300 W
#   (siboehm/SGEMM_CUDA), and with torch (zzc0721) 0.60 to 0.72 of peak on boards of 7.3 to 10.7 W
#   for a TFLOP/s (A4000, A6000, A40, RTX 3090, 3080, 3080 Ti): 0.78 times (W / 11.2)^(2/3), within
#   6 %. In 16 bits 0.78 and 0.80 of peak on A6000 and A40 of 2 W for a TFLOP/s, 0.76 on an A4000.
#   As long as power lasts these chips clock about a tenth above the boost clock that their peaks
#   are reckoned with, so `issued` is above 1: training VGG-16 with AMP on a 3090
#   (huggingface/pytorch-image-models) takes 51 of 71 TFLOP/s with all its memory traffic.
#   A multiprocessor does 512 FLOP a cycle, an A100's 2,048, out of as many registers: two tiles in
#   them take so long that one is written while the other multiplies: if it were not, timm's
#   networks would be 9 to 14 % slower in inference on a 3090 than published (NHWC, AMP, PyTorch
#   2.4: ResNet-18 and -50, VGG-16, DenseNet-121: 11189, 3730, 1729, 3032 images/s). That reading
#   hides as well as TMA lets it on Hopper, with exponent 3, is a hypothesis: no published figure
#   was found that shows it by itself.
# - ada: attention takes 155 of 165 TFLOP/s on a 4090 (HazyResearch/ThunderKittens, README), which
#   clocks above its peak's, too; the process is Hopper's (4N). In fp32 torch's products (zzc0721)
#   reach 0.36 of peak on an L4 of 2.4 W for a TFLOP/s, 0.51 on an L40S (3.8), 0.61 on an L20 (4.6),
#   0.66 on an RTX 4090 (5.4), 0.71 on an RTX 4070 SUPER (6.2), cublasLt 0.75 on an RTX 4060 Ti
#   (7.3: AD2605/gemm-zoo): 0.78 times (W / 7.2)^(2/3), within 6 %. In 16 bits 0.74 on an L40S of
#   0.97 W for a TFLOP/s and 0.49 on an L4 of 0.60.
# - hopper: fp8 on an H100 of 700 W: 1377 of 1979 TFLOP/s at 16384³ (Azure), and 593 in bf16 at
#   256 x 43008 x 5376 (vllm-project/vllm, pull request 49363). 4,096 FLOP a cycle; TMA fetches
#   without instructions of the cores, so reading hides better.
# - blackwell: fp8 on a GB200 of 1200 W: 2907 of 5000 TFLOP/s at 16384³ (Azure).
# - kepler: four schedulers issue to 128 of the 192 lanes in a cycle; the other 64 wait for a second
#   instruction of the same warp that does not depend on the first. cuBLAS 7.0 on a K40 of 5.04
#   TFLOP/s: 3.28 at 4096³ (clMathLibraries/clBLAS, doc/performance/cuBLAS_7.0/Tesla_K40), a board
#   of 47 W for a TFLOP/s. A K80's two GPUs have 34 each. Winograd's convolutions came to cuDNN
#   with version 5, for Maxwell and Pascal.
_SMALL = SMALL_TENSOR_CONVOLUTION_EFFICIENCY
_VOLTA = Reach(MATMUL_EFFICIENCY, 17.8, 0.90, 0.77, 300 / 125, 32, 2, ADDING_S, gathers=_SMALL)
_AMPERE = Reach(MATMUL_EFFICIENCY, None, 0.945, 0.82, 400 / 312, 64, 2, ADDING_S)
_HOPPER = Reach(WIDE_PLAIN_EFFICIENCY, 7.2, 0.90, 0.75, 700 / 989.4, 80, 3, CLUSTER_ADDING_S)
_WIDE_AMPERE = _AMPERE._replace(
    issued=1.02,
    sustained=0.78,
    watts=2.0,
    by_power=2 / 3,
    plain=WIDE_PLAIN_EFFICIENCY,
    plain_watts=11.2,
    full_tile=48,
    hides=3,
    is_roomy=True,
    gathers=_SMALL,
    hides_writing=True,
)
_ADA = _HOPPER._replace(
    issued=1.02,
    sustained=0.735,
    watts=0.967,
    by_power=2 / 3,
    full_tile=48,
    adding_s=ADDING_S,
    is_roomy=True,
    gathers=_SMALL,
    hides_writing=True,
)
# Any other: as between those that are known.
OTHER = Reach(MATMUL_EFFICIENCY, None, 0.90, 0.75, None, 64, 2, ADDING_S)
_REACH = {
    "kepler": OTHER._replace(plain=KEPLER_PLAIN_EFFICIENCY, plain_watts=47, transforms=False),
    "volta": _VOLTA,
    "turing": _VOLTA._replace(narrow=NARROW_ON_TURING),
    "ampere": _AMPERE,
    "ada": _ADA,
    "hopper": _HOPPER,
    "blackwell": _HOPPER._replace(sustained=0.67, watts=1200 / 2500, full_tile=85),
}
# Chips for graphics, whose tensor cores are small: those of Blackwell are built as Ada's.
_GRAPHICS = {"ampere": _WIDE_AMPERE, "blackwell": _ADA}


def reach(accelerator: Accelerator) -> Reach:
    """What the architecture of `accelerator` reaches; that of `OTHER` if it is not known."""
    found = _REACH.get(accelerator.architecture, OTHER)
    is_for_graphics = _half_rate(accelerator) < 8 * accelerator.rate("float32")
    return _GRAPHICS.get(accelerator.architecture, found) if is_for_graphics else found


def uses_tensor_cores(accelerator: Accelerator, dtype: str) -> bool:
    """Whether products of a data type ("float16") run on tensor cores."""
    return accelerator.rated_as(dtype) not in PLAIN


def issued_flops_per_s(accelerator: Accelerator, dtype: str) -> float:
    """FLOP/s of full tiles on all multiprocessors as long as the clock holds."""
    known = reach(accelerator)
    tensor = uses_tensor_cores(accelerator, dtype)
    return accelerator.rate(dtype) * (known.issued if tensor else known.plain)


def narrow_flops_per_s(
    accelerator: Accelerator, dtype: str, *, convolves: bool
) -> tuple[float, float]:
    """FLOP/s on tensor cores where threads fetch one number with an instruction, or two."""
    cycles_per_s = (accelerator.multiprocessors or 1) * clock_hz(accelerator)
    share = convolving_share(accelerator, dtype) if convolves else 1.0
    rate = reach(accelerator).narrow * share * cycles_per_s
    return rate * NARROW_FLOPS_A_CYCLE[1], rate * NARROW_FLOPS_A_CYCLE[2]


def convolving_share(accelerator: Accelerator, dtype: str) -> float:
    """What convolutions reach of a product's rate."""
    if uses_tensor_cores(accelerator, dtype):
        return reach(accelerator).gathers
    return CONVOLUTION_EFFICIENCY


def sustained_flops_per_s(accelerator: Accelerator, dtype: str) -> float:
    """FLOP/s that the board's power lasts for; at most what is issued."""
    known = reach(accelerator)
    peak, issued = accelerator.rate(dtype), issued_flops_per_s(accelerator, dtype)
    if accelerator.power_w is None and known.is_roomy:
        return issued
    if not uses_tensor_cores(accelerator, dtype):
        watts = _watts(accelerator, accelerator.rate("float32"))
        share = watts / known.plain_watts if watts and known.plain_watts else 1.0
        return min(share, 1.0) ** PLAIN_BY_POWER * issued
    sustained = known.sustained * (FLOAT8_POWER if dtype.startswith(FLOAT8) else 1.0) * peak
    watts = _watts(accelerator, _half_rate(accelerator))
    if watts and known.watts:
        sustained *= (watts / known.watts) ** known.by_power
    return min(sustained, issued)


def _watts(accelerator: Accelerator, flops_per_s: float) -> float | None:
    """Watts of the board for each TFLOP/s; None if they are not known."""
    if accelerator.power_w is None or not flops_per_s:
        return None
    return accelerator.power_w / (flops_per_s / TERA)


def _half_rate(accelerator: Accelerator) -> float:
    return max(accelerator.flops_per_s.get(name, 0.0) for name in HALF)
