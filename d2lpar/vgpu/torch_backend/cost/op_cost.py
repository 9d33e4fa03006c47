"""What torch's operations cost: the kernels of each, from its arguments.

FLOP are those of `torch.utils.flop_counter`; bytes are those of the tensors read and written, each
once, but for kernels that must read them twice. `kernel_cost` says how long that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ....machines.hardware import Accelerator
from ...sim.pricing.attention_cost import CUDNN, EFFICIENT, FLASH, Attention, AttentionCost
from ...sim.pricing.kernel_cost import Cost, Kernel
from ...sim.pricing.recurrent_cost import RecurrentCost, Steps
from ...sim.pricing.tiles import Product, fetched_at_once
from ...sim.pricing.winograd_convolution import Winograd, winograd
from ..private import (
    torch_attention,
    torch_operators,
    torch_recurrent,
    torch_settings,
    torch_tensors,
)
from .factor_cost import factoring
from .image_norm_cost import IMAGE_NORMS
from .moved_bytes import (
    Arguments,
    Packet,
    moved_again,
    moved_bytes,
    rows_again,
    size_bytes,
    tensors_in,
)
from .row_cost import BY_ROWS, read_again
from .sort_cost import sorting

aten = torch.ops.aten
_CONVOLUTIONS = {aten.convolution, torch_operators.convolution}
_ATTENTION = {
    torch_attention.flash_attention: (FLASH, False),
    torch_attention.flash_attention_backward: (FLASH, True),
    torch_attention.efficient_attention: (EFFICIENT, False),
    torch_attention.efficient_attention_backward: (EFFICIENT, True),
    torch_attention.cudnn_attention: (CUDNN, False),
    torch_attention.cudnn_attention_backward: (CUDNN, True),
}
# The kernels of flash attention called by themselves: tokens come before heads, and sequences may
# be packed one behind the other.
_FLASH_ALONE = {
    "aten::_flash_attention_forward": False,
    "aten::_flash_attention_backward": True,
    "torch_attn::_varlen_attn": False,
    "torch_attn::_varlen_attn_out": False,
    "torch_attn::_varlen_attn_backward": True,
}
_SEQUENCES = {torch_recurrent.forward, torch_recurrent.backward}
FEWEST_CHANNELS = 32
_ADDED_TO = {aten.addmm: aten.mm, aten.baddbmm: aten.bmm}  # products that something is added to


def rounded(cost: Cost, accelerator: Accelerator) -> Cost:
    """The cost in TF32, if its fp32 may be rounded so and the accelerator has it."""
    kind = _rounds(cost, accelerator)
    return cost.in_tf32() if kind and torch_settings.may_round_to_tf32(kind) else cost


def with_rounded_products(cost: Cost, accelerator: Accelerator) -> Cost:
    """The cost with `torch.set_float32_matmul_precision("high")`, whatever is set."""
    return cost.in_tf32() if _rounds(cost, accelerator) == "matmul" else cost


def _rounds(cost: Cost, accelerator: Accelerator) -> str:
    """What PyTorch calls the kind of operations whose fp32 may be rounded to TF32; "" if none."""
    if cost.dtype != "float32" or not cost.flops or "tfloat32" not in accelerator.flops_per_s:
        return ""
    if cost.convolves:
        return "conv"
    return "rnn" if isinstance(cost, RecurrentCost) else "matmul"


def _flops_of(packet: Packet, args: Arguments, kwargs: dict[str, object], outputs: object) -> int:
    if packet in _ADDED_TO:  # torch's formula calls that of the product, with all that is around it
        packet, args = _ADDED_TO[packet], args[1:]
    formula = flop_registry.get(packet)
    return _flops(formula, args, kwargs, outputs) if formula else 0


def _flops(
    formula: Callable[..., int], args: Arguments, kwargs: dict[str, object], outputs: object
) -> int:
    """By torch's formula. What torch puts around most of them to find the shapes leaves garbage in
    cycles, which programs that look for their own would find."""
    of_shapes = getattr(formula, "__wrapped__", None)
    if of_shapes is None:
        return int(formula(*args, **kwargs, out_val=outputs))
    shapes = _shapes([list(args), kwargs, outputs])
    return int(of_shapes(*shapes[0], **shapes[1], out_shape=shapes[2]))


def _shapes(value: Any) -> Any:
    """The same with shapes for tensors."""
    if isinstance(value, torch.Tensor):
        return value.shape
    if isinstance(value, (list, tuple)):
        return type(value)(map(_shapes, value)) if type(value) in (list, tuple) else value
    return {name: _shapes(v) for name, v in value.items()} if type(value) is dict else value


def cost_of(
    func: torch._ops.OpOverload,
    args: Arguments,
    kwargs: dict[str, object],
    outputs: object,
) -> Cost:
    """The cost of `outputs = func(*args, **kwargs)`, from shapes and data types alone."""
    if func in _ATTENTION or torch_operators.schema_of(func).name in _FLASH_ALONE:
        return AttentionCost(attention_of(func, args, kwargs))
    if func in _SEQUENCES:
        return RecurrentCost(_steps(args, backward=func is torch_recurrent.backward))
    packet = _SAME_PRODUCT.get(func.overloadpacket, func.overloadpacket)
    if packet in _FACTORS and (found := _sparse_product(packet, args, outputs)) is not None:
        return found
    flops = _flops_of(packet, args, kwargs, outputs)
    tensors = [*tensors_in(args), *tensors_in(kwargs.values()), *tensors_in([outputs])]
    dtype, times = _arithmetic(tensors)
    flops *= times
    if packet is aten.convolution_backward:
        return Cost(*_convolution_backward(args), dtype=dtype, convolves=True)
    if packet in _CONVOLUTIONS:
        assert isinstance(outputs, torch.Tensor)
        kernels = [_convolution(args, outputs, flops), *_added_biases(args, outputs)]
        return Cost(*kernels, dtype=dtype, convolves=True)
    nbytes = moved_bytes(func, args, kwargs, outputs)
    if (factors := factoring(packet, args, kwargs, nbytes, dtype, times)) is not None:
        return factors
    if packet is aten.sort:
        assert isinstance(args[0], torch.Tensor)
        along = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        assert isinstance(along, int)
        return Cost(*sorting(args[0], along))
    if packet is aten.multinomial:
        return Cost(*_drawing(args, nbytes))
    if packet in BY_ROWS:  # before optimizers': one is called _fused_rms_norm
        return Cost(*BY_ROWS[packet](args, nbytes), dtype=dtype)
    nbytes += read_again(packet, args)
    if packet in IMAGE_NORMS:
        return Cost(*IMAGE_NORMS[packet](args, nbytes), dtype=dtype)
    if packet is aten.max_pool2d_with_indices_backward:  # adds to zeros: DilatedMaxPool2d.cu
        zeros = Kernel(0, sum(map(size_bytes, tensors_in([outputs]))))
        return Cost(zeros, Kernel(0, nbytes), dtype=dtype)
    if torch_operators.schema_of(func).name.startswith(_MANY):
        count = _launches(args, outputs)
        return Cost(*[Kernel(flops // count, nbytes // count)] * count, dtype=dtype)
    product = _product(packet, args, outputs, times)
    written = sum(map(size_bytes, tensors_in([outputs]))) if product else 0
    again = None if product else moved_again(func, args, kwargs, outputs)
    return Cost(Kernel(flops, nbytes, product, written=written, again=again), dtype=dtype)


def _arithmetic(tensors: Sequence[torch.Tensor]) -> tuple[str, int]:
    """The data type of the arithmetic, and how many multiplications of it are one: a product of
    complex numbers has four, with as many additions (BLAS counts those of CGEMM so)."""
    dtypes = (t.dtype for t in tensors)
    found = next((d for d in dtypes if d.is_floating_point or d.is_complex), torch.float32)
    if found.is_complex:
        return str(found.to_real()).removeprefix("torch."), 4
    return str(found).removeprefix("torch."), 1


# --- drawing by chance ----------------------------------------------------------------------------


def _drawing(args: Arguments, nbytes: int) -> list[Kernel]:
    """The kernels of `torch.multinomial`, unless it draws several with replacement (PyTorch,
    ATen/native/Distributions.cpp): the largest and the smallest of the chances, and their sum, of
    which the device, not the host, sees whether they are any; then the largest of the quotients of
    chances and random numbers, or several."""
    x, count, *replacement = args
    if count != 1 and any(replacement):
        return [Kernel(0, nbytes)]
    assert isinstance(x, torch.Tensor)
    once, asked = Kernel(0, size_bytes(x)), Kernel(0, x.element_size())
    seen = [once, *[asked] * 4, once, *[asked] * (2 + x.dim())]
    return [*seen, once, Kernel(0, 3 * size_bytes(x)), once]


# --- fused attention ------------------------------------------------------------------------------


def attention_of(func: torch._ops.OpOverload, args: Arguments, kwargs: dict[str, Any]) -> Attention:
    """The work of a fused kernel of attention. Packed sequences are taken to be as long as the
    longest: how long each is, its values say."""
    schema = torch_operators.schema_of(func)
    alone = _FLASH_ALONE.get(schema.name)
    kind, backward = _ATTENTION[func] if alone is None else (FLASH, alone)
    names = schema.arguments
    given: dict[str, Any] = {a.name: a.default_value for a in names if a.has_default_value()}
    given |= {a.name: value for a, value in zip(names, args, strict=False)} | kwargs
    query, key, value = given["query"], given["key"], given["value"]
    batch = prod(query.shape[:-3])
    heads, queries = query.shape[-3:-1]
    keys_heads, keys = key.shape[-3:-1]
    if alone is not None:
        heads, queries, keys_heads, keys = queries, heads, keys, keys_heads
        if query.dim() == 3:  # packed
            longest, keys = max(given["max_q"], 1), given["max_k"]
            batch, queries = max(ceil(queries / longest), 1), longest
    right = (given.get("window_size") or (None, given.get("window_size_right")))[1]
    return Attention(
        kind,
        batch,
        heads,
        keys_heads,
        queries,
        keys,
        query.shape[-1],
        value.shape[-1],
        str(query.dtype).removeprefix("torch."),
        given["is_causal"] or right == 0,
        given.get("dropout_p", 0) > 0,
        backward,
        _mask_bytes(given.get("attn_bias"), given.get("grad_input_mask")),
    )


def _mask_bytes(mask: torch.Tensor | None, wanted: list[bool] | None) -> int:
    """Of what is in memory of a mask that was expanded, and of its gradient, which is whole."""
    if mask is None:
        return 0
    gradient = mask.numel() * mask.element_size() if wanted and wanted[3] else 0
    return size_bytes(mask) + gradient


# --- recurrent networks ---------------------------------------------------------------------------


def _steps(args: Arguments, *, backward: bool) -> Steps:
    call = torch_recurrent.Call.of(args)
    return Steps(
        call.kind,
        call.steps,
        call.rows,
        call.hx.shape[1],
        call.input.shape[-1],
        call.hidden_size,
        call.outputs,
        call.num_layers,
        call.directions,
        bool(call.batch_sizes),
        str(call.input.dtype).removeprefix("torch."),
        backward,
        not backward or args[21][0],
    )


# --- many tensors at once -------------------------------------------------------------------------

# A launch takes so many tensors, by how many lists of them there are, and so many blocks of so
# many elements: PyTorch's MultiTensorApply.cuh.
_MANY = ("aten::_foreach_", "aten::_fused_")
_MOST_TENSORS = (110, 64, 48, 36, 30)
_MOST_BLOCKS = 320
_BLOCK = 65536


def _launches(args: Arguments, outputs: object) -> int:
    """How many kernels an operation on lists of tensors takes."""
    lists = [list(tensors_in([value])) for value in (*args, outputs) if isinstance(value, list)]
    lists = [tensors for tensors in lists if tensors]
    if not lists:
        return 1
    most = _MOST_TENSORS[min(len(lists), len(_MOST_TENSORS)) - 1]
    blocks = sum(-(-tensor.numel() // _BLOCK) for tensor in lists[0])
    return max(1, -(-len(lists[0]) // most), -(-blocks // _MOST_BLOCKS))


# --- matrix products, and convolutions as such ----------------------------------------------------


# Products that add to what is there: torch's counter knows one form of each.
_SAME_PRODUCT = {
    aten.addmm_: aten.addmm,
    aten.baddbmm_: aten.baddbmm,
    aten.addbmm: aten.baddbmm,
    aten.addbmm_: aten.baddbmm,
}

# Where the factors stand among the arguments; `_scaled_mm` is the product of fp8.
_FACTORS = {
    aten.mm: 0,
    aten.bmm: 0,
    aten.addmm: 1,
    aten.baddbmm: 1,
    torch_operators.sparse_product: 1,
    torch_operators.scaled_product: 0,
}


def _product(packet: Packet, args: Arguments, outputs: object, times: int) -> Product | None:
    """The sizes of a product, as long as `times` of real numbers."""
    first = _FACTORS.get(packet)
    if first is None:
        return None
    a, b = args[first], args[first + 1]
    found = [_fetched_at_once(matrix) for matrix in tensors_in([a, b, outputs])]
    narrow = min((numbers for numbers in found if numbers is not None), default=None)
    return Product(a.shape[-2], b.shape[-1], times * a.shape[-1], prod(a.shape[:-2]), narrow)


def _sparse_product(packet: Packet, args: Arguments, outputs: object) -> Cost | None:
    """That of a sparse matrix and a dense one, of which it takes a row for each of its numbers; or
    of two sparse ones, whose numbers meet by chance."""
    first = _FACTORS[packet]
    factors = tensors_in(args[first : first + 2])
    sparse = [matrix for matrix in factors if matrix.layout is not torch.strided]
    if not sparse or len(factors) < 2 or not isinstance(outputs, torch.Tensor):
        return None
    dtype, times = _arithmetic(factors)
    numbers = torch_tensors.sparse_parts(sparse[0])[-1].numel()
    others = sum(map(size_bytes, [*tensors_in(args[:first]), *sparse, outputs]))
    if len(sparse) == 2:
        pairs = numbers * torch_tensors.sparse_parts(sparse[1])[-1].numel()
        return Cost(Kernel(2 * times * pairs // max(factors[1].shape[-2], 1), others), dtype=dtype)
    dense = factors[0] if sparse[0] is factors[1] else factors[1]
    wide = dense.shape[-2 if dense is factors[0] else -1]
    whole, taken = size_bytes(dense), numbers * wide * dense.element_size()
    again = rows_again(taken, whole, whole)
    return Cost(
        Kernel(2 * times * numbers * wide, others + min(taken, whole), again=again), dtype=dtype
    )


def _fetched_at_once(matrix: torch.Tensor) -> int | None:
    if matrix.layout is not torch.strided or min(matrix.shape[-2:]) <= 1:
        return None
    size = matrix.element_size()
    return fetched_at_once(max(matrix.stride()[-2:]) * size, size)


def _convolution(args: Arguments, y: torch.Tensor, flops: int) -> Kernel:
    """Every pixel is a row, every channel that comes out a column."""
    x, weight = args[:2]
    pixels, channels, depth = _kernel_places(x, y, weight, transposed=args[6])
    other = winograd(y.shape, weight.shape, *args[3:9], element_bytes=x.element_size())
    summed = depth * channels // y.shape[1]
    shape = (y.shape[1], pixels, _gathered(summed, weight))
    kernel = _of_images([x, y], weight, y, shape, args[8], flops, other)
    return _as_it_lies(kernel, x) if _is_product(args, weight) else kernel


def _added_biases(args: Arguments, y: torch.Tensor) -> list[Kernel]:
    """What adds them to the result of cuDNN's kernels, which do not (PyTorch, aten/src/ATen/native/
    Convolution.cpp, `reshape_bias`); PyTorch's own depthwise kernels do."""
    x, weight, biases = args[:3]
    if biases is None or (_is_depthwise(args[8], [x, y]) and not _has_cudnn_depthwise(x, weight)):
        return []
    return [Kernel(0, 2 * size_bytes(y) + size_bytes(biases))]


def _is_product(args: Arguments, weight: torch.Tensor) -> bool:
    """Whether it is nothing but the weights times the channels, pixel by pixel."""
    one = all(n == 1 for n in (*weight.shape[2:], *args[3], args[8]))
    return one and not args[6] and not any(args[4])


def _as_it_lies(kernel: Kernel, x: torch.Tensor) -> Kernel:
    """Such a product needs no transposing: a row is a channel of an image, pixel by pixel, so each
    image is a product of its own.

    So timm's inference loses no more by channels first than its other convolutions have to be
    transposed: in fp16 on an RTX 4090 20 µs an image of DenseNet-121, 41 of ResNet-50, 19 of
    ResNet-18 and 118 of VGG-16, of 95, 95, 20 and 98 that it would take to transpose all of them
    (huggingface/pytorch-image-models, results, PyTorch 2.4). Gradients are transposed: 0.88 to 1.25
    of all that is lost in training on an RTX 3090 (PyTorch 1.12).
    """
    if _has_channels_last(x) or kernel.product is None:
        return kernel
    pixels, size = prod(x.shape[2:]), x.element_size()
    narrow = fetched_at_once(pixels * size, size)
    product = kernel.product._replace(n=pixels, batch=x.shape[0], narrow=narrow)
    if narrow is None:
        return kernel._replace(product=product, transposed_bytes=0)
    return kernel._replace(product=product)  # or it is transposed, if that is quicker


def _convolution_backward(args: Arguments) -> list[Kernel]:
    """The gradient of the images, that of the weights, that of the biases."""
    dy, x, weight = args[:3]
    groups, (wants_x, wants_weight, wants_bias) = args[9], args[10]
    pixels, channels, depth = _kernel_places(x, dy, weight, transposed=args[7])
    flops = 2 * pixels * depth * channels
    other = winograd(dy.shape, weight.shape, *args[4:10], element_bytes=x.element_size())
    kernels = []
    if wants_x:
        shape = (x.shape[1], pixels, _gathered(depth * channels // x.shape[1], weight))
        of_images = other and other.of_images()
        kernels.append(_of_images([x, dy], weight, x, shape, groups, flops, of_images))
    if wants_weight:
        shape = (channels, _gathered(depth, weight), pixels)
        of_weights = other and other.of_weights()
        kernels.append(_of_images([x, dy], weight, weight, shape, groups, flops, of_weights))
    if wants_bias:
        kernels.append(Kernel(0, size_bytes(dy)))
    return kernels


def _kernel_places(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, *, transposed: bool
) -> tuple[int, int, int]:
    """Where the kernels are applied: pixels, channels, and multiplications for each of these.

    They are the pixels that come out, of a transposed convolution those that come in.
    """
    places = x if transposed else y
    return places.numel() // places.shape[1], places.shape[1], prod(weight.shape[1:])


def _gathered(summed: int, weight: torch.Tensor) -> int:
    """Over how many numbers a kernel of tensor cores sums, of so many, where images have three
    dimensions: it gathers the channels of one place of a filter after the other, and computes with
    at least `FEWEST_CHANNELS` of each. On A100 4 of 128³ take 3.6 ms, 32 take 3.9, on V100 5.5 and
    8.6 (xwang233/code-snippet, conv3d-channels-last, 2020). For first layers of two dimensions
    cuDNN has kernels of their own: timm's ResNet-18 shows no such loss in inference.
    """
    places = prod(weight.shape[2:])
    if weight.dim() < 5 or places == 1 or weight.dtype not in (torch.float16, torch.bfloat16):
        return summed
    return places * max(ceil(summed / places), FEWEST_CHANNELS)


def _of_images(
    images: list[torch.Tensor],
    weight: torch.Tensor,
    result: torch.Tensor,
    shape: tuple[int, int, int],
    groups: int,
    flops: int,
    other: Winograd | None,
) -> Kernel:
    """Of images that go in and come out, one of which, or the weight, is the `result`. Grouped
    convolutions have kernels of their own, of which it is known but what they move."""
    x = images[0]
    product = Product(*shape, 1) if groups == 1 else None
    depthwise = _is_depthwise(groups, images)
    as_it_lies = depthwise or _has_channels_last(x)
    transposed = 0 if as_it_lies else 2 * sum(map(size_bytes, images))
    nbytes, written = size_bytes(weight) + sum(map(size_bytes, images)), size_bytes(result)
    if depthwise and not _has_cudnn_depthwise(x, weight):
        read = 2 if result is weight else 1
        nbytes = max(nbytes, _read_by_each_place(read, x, flops) + written)
    return Kernel(flops, nbytes, product, transposed, other, written)


def _has_cudnn_depthwise(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether PyTorch has cuDNN's kernels for it, which read an image once: in half precision with
    channels last, and in fp16 with filters of up to 5 × 5 (`use_cudnn_depthwise` in aten/src/ATen/
    native/Convolution.cpp)."""
    if x.dtype not in (torch.float16, torch.bfloat16) or x.dim() != 4:
        return False
    if _has_channels_last(x):
        return True
    height, width = weight.shape[2:]
    small = height == width and height in (1, 3, 5)
    return x.dtype == torch.float16 and small and x.shape[3] >= 7 and x.shape[1] >= 32


def _read_by_each_place(images: int, x: torch.Tensor, flops: int) -> int:
    """Bytes that depthwise kernels read, where each place of a filter reads its images again.

    PyTorch's gradient of the weights has a block for each place of each filter
    (https://github.com/pytorch/pytorch, aten/src/ATen/native/cuda/DepthwiseConv2d.cu), cuDNN's
    kernels are no better: a step of ConvNeXt-L takes 0.84 s on H100 where all else needs 0.30 s
    (mila-iqia/milabench, 2025), and EfficientNet-B0 13 ms more on V100 (facebookresearch/pycls).
    """
    return flops // 2 * x.element_size() * images


def _is_depthwise(groups: int, images: list[torch.Tensor]) -> bool:
    """Whether each channel has a filter of its own: kernels for that read channels first.

    PyTorch's (`conv_depthwise2d`) know no other form, cuDNN's for fp16 are direct ones.
    """
    return groups > 1 and groups == min(image.shape[1] for image in images)


def _has_channels_last(x: torch.Tensor) -> bool:
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return form is not None and x.is_contiguous(memory_format=form)
