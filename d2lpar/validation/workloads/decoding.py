"""Text written word by word, by eager programs: a language model of Llama's kind, and its sampler.

Each is written as a library has it: Hugging Face's transformers append keys and values by `cat`,
litgpt copies them to their place in a buffer (`index_copy`), gpt-fast assigns them (`assign`).
At one text in a batch what the host does between kernels weighs as much as what the GPU reads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import attention as torch_attention
from torch.nn import functional as F

from ...machines.hardware import Machine
from ..parameters import Naive, Parameters, SimulatedRun
from .measuring import DTYPES, INITIAL_SPREAD, filled, gpus, seconds

_FLASH = torch_attention.SDPBackend.FLASH_ATTENTION
_CACHES = {name: name for name in ("cat", "index_copy", "assign", "none")}
_ATTENTION = {name: name for name in ("sdpa", "flash2", "scores")}
_NORMS = {name: name for name in ("rms", "gemma", "layer")}
_MLPS = {"swiglu": F.silu, "geglu": F.gelu, "gelu": None}
_TOP_K, _TOP_P, _TEMPERATURE, _PENALTY = 20, 0.8, 0.7, 1.1


@dataclass(frozen=True)
class Shape:
    """A network and how it is written. `head` is the width of a head, `rotated` how much of it
    positions turn; `together`: one product makes queries, keys and values; `repeated`: keys and
    values are copied for all the heads that share them; `parallel`: attention and perceptron read
    the same norm (phi)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    vocabulary: int
    norm: str
    mlp: str
    cache: str
    attention: str
    bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    together: bool = False
    repeated: bool = True
    parallel: bool = False
    rotated: int = 0

    @classmethod
    def of(cls, p: Parameters) -> Shape:
        """That of a row."""
        layers, hidden, heads = (p.integer(name) for name in ("layers", "hidden", "heads"))
        head, bias = p.integer("head", hidden // heads), p.flag("bias", False)
        p.choice("mlp", _MLPS, "swiglu")
        return cls(
            *(layers, hidden, heads, p.integer("kv_heads", heads), head),
            *(p.integer("ffn"), p.integer("vocabulary")),
            *(p.choice("norm", _NORMS, "rms"), p.text("mlp", "swiglu")),
            *(p.choice("cache", _CACHES, "cat"), p.choice("attention", _ATTENTION, "sdpa")),
            bias=bias,
            qkv_bias=p.flag("qkv_bias", bias),
            qk_norm=p.flag("qk_norm", False),
            together=p.flag("qkv_together", False),
            repeated=p.flag("kv_repeated", True),
            parallel=p.flag("parallel", False),
            rotated=p.integer("rotated", head),
        )


def decode(p: Parameters, machine: Machine) -> SimulatedRun:
    """Generating `new` words after `prompt` ones, for `batch` texts at once.

    All steps take as long as one does half way. Words are those that are new, with counts=all those
    of the prompt as well; the host reads each word unless `reads=false`. With new=0 the pass over
    the prompt is measured alone, and nothing is sampled.
    """
    shape, dtype = Shape.of(p), p.choice("dtype", DTYPES)
    batch, prompt, new = p.integer("batch", 1), p.integer("prompt"), p.integer("new")
    sampler = p.choice("sampler", SAMPLERS, "greedy")
    reads, counts_all = p.flag("reads", True), p.choice("counts", {"new": 0, "all": 1}, "new")
    kernels = torch_attention.sdpa_kernel(_FLASH) if shape.attention == "flash2" else nullcontext()
    with gpus(machine) as (gpu,), torch.no_grad(), kernels:
        net = _on(Llama(shape), gpu, dtype)

        def run(queries: int, past: int) -> Callable[[], object]:
            words = filled(torch.empty(batch, queries, dtype=torch.long, device=gpu))
            written = filled(torch.empty(batch, past + queries, dtype=torch.long, device=gpu))
            state = net.state(past, queries)

            def step() -> None:
                scores = net(words, state)[:, -1]
                if new:
                    chosen = sampler(scores, written)
                    torch.cat([written, chosen], 1)
                    if reads:
                        chosen.max().item()

            return step

        prompt_s = seconds(run(prompt, 0))
        half = prompt + new // 2
        once = run(half, 0) if shape.cache == "none" else run(1, half)
        word_s = seconds(once) if new else 0.0
    count = max(new - 1, 0)
    weights = sum(parameter.numel() for parameter in net.parameters()) * dtype.itemsize
    naive = Naive((count + 1) * weights / machine.accelerators[0].memory_bytes_per_s)
    tokens = batch * (new + counts_all * prompt)
    return SimulatedRun(prompt_s + count * word_s, tokens=tokens, naive=naive)


def _on(net: Llama, device: torch.device, dtype: torch.dtype) -> Llama:
    there = net.to(dtype).to_empty(device=device)
    for parameter in there.parameters():
        filled(parameter, INITIAL_SPREAD)
    return there


# --- the network ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """What the layers share in a step: cosines and sines of the positions, how many words came
    before, where the new ones stand, and what masks the room that is still empty."""

    cos: torch.Tensor
    sin: torch.Tensor
    past: int
    places: torch.Tensor
    mask: torch.Tensor | None


class Norm(nn.Module):
    """The norm by the root of the mean square, in fp32, as programs write it down."""

    def __init__(self, size: int, *, added_one: bool) -> None:
        super().__init__()
        self.weight, self.added_one = nn.Parameter(torch.empty(size)), added_one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] to the same."""
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        if self.added_one:  # Gemma's weights are kept less one
            return (y * (1.0 + self.weight.float())).type_as(x)
        return self.weight * y.to(x.dtype)


def _norm(kind: str, size: int) -> nn.Module:
    return nn.LayerNorm(size) if kind == "layer" else Norm(size, added_one=kind == "gemma")


def _half_turned(x: torch.Tensor) -> torch.Tensor:
    """The two halves exchanged, one of them negative."""
    middle = x.shape[-1] // 2
    return torch.cat((-x[..., middle:], x[..., :middle]), -1)


def _turned(x: torch.Tensor, state: State) -> torch.Tensor:
    """Rotary positions: [batch, heads, queries, width] to the same."""
    return x * state.cos + _half_turned(x) * state.sin


def _turned_in_pairs(x: torch.Tensor, state: State) -> torch.Tensor:
    """The same as gpt-fast has it: neighbours are pairs, and turned in fp32."""
    y = x.float().reshape(*x.shape[:-1], -1, 2)
    even, odd = y[..., 0], y[..., 1]
    cos, sin = (part[..., : even.shape[-1]] for part in (state.cos, state.sin))
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(3).type_as(x)


class Attention(nn.Module):
    """Attention to all words so far, whose keys and values are kept."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        sizes = [shape.head * count for count in (shape.heads, shape.kv_heads, shape.kv_heads)]
        outputs = [sum(sizes)] if shape.together else sizes
        self.qkv = nn.ModuleList(nn.Linear(shape.hidden, n, bias=shape.qkv_bias) for n in outputs)
        self.out = nn.Linear(sizes[0], shape.hidden, bias=shape.bias)
        norms = [_norm(shape.norm, shape.head) for _ in range(2)] if shape.qk_norm else []
        self.norms, self.sizes = nn.ModuleList(norms), sizes
        self.kept: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor, state: State) -> torch.Tensor:
        """[batch, queries, hidden] to the same."""
        batch, queries, _ = x.shape
        parts = [linear(x) for linear in self.qkv]
        if self.shape.together:
            parts = list(parts[0].split(self.sizes, -1))
        q, k, v = (part.view(batch, queries, -1, self.shape.head) for part in parts)
        if self.norms:
            q, k = self.norms[0](q), self.norms[1](k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        q, k = self._placed(q, state), self._placed(k, state)
        k, v = self._with_past(k, v, state)
        y = self._attended(q, k, v, state)
        return self.out(y.transpose(1, 2).reshape(batch, queries, -1))

    def _placed(self, x: torch.Tensor, state: State) -> torch.Tensor:
        if self.shape.cache == "assign":
            return _turned_in_pairs(x, state)
        if self.shape.rotated == self.shape.head and self.shape.cache != "index_copy":
            return _turned(x, state)
        first, rest = x[..., : self.shape.rotated], x[..., self.shape.rotated :]
        return torch.cat((_turned(first, state), rest), -1)

    def _with_past(
        self, k: torch.Tensor, v: torch.Tensor, state: State
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all words, those of the past first."""
        if self.shape.cache == "none" or (self.shape.cache == "cat" and not state.past):
            return k, v
        room = state.past + (0 if self.shape.cache == "cat" else k.shape[2])
        if self.kept is None or self.kept[0].shape[2] != room:
            shape = (*k.shape[:2], room, k.shape[3])
            self.kept = (k.new_empty(shape), v.new_empty(shape))
        if self.shape.cache == "cat":
            return torch.cat((self.kept[0], k), 2), torch.cat((self.kept[1], v), 2)
        for kept, part in zip(self.kept, (k, v), strict=True):
            if self.shape.cache == "index_copy":
                kept.index_copy_(2, state.places, part)
            else:
                kept[:, :, state.places] = part
        return self.kept

    def _attended(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: State
    ) -> torch.Tensor:
        times = self.shape.heads // self.shape.kv_heads
        grouped = times > 1 and not self.shape.repeated
        if times > 1 and self.shape.repeated:
            k, v = (_repeated(part, times) for part in (k, v))
        if self.shape.attention == "scores":
            scores = q @ k.transpose(2, 3) * self.shape.head**-0.5
            if state.mask is not None:
                scores = scores + state.mask
            return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v
        causal = state.mask is None and q.shape[2] > 1
        return F.scaled_dot_product_attention(
            q, k, v, state.mask, is_causal=causal, enable_gqa=grouped
        )


def _repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    """Each head of keys or values, so many times."""
    batch, heads, words, size = x.shape
    return x[:, :, None].expand(-1, -1, times, -1, -1).reshape(batch, heads * times, words, size)


class Perceptron(nn.Module):
    """Gated (Shazeer 2020), or of two layers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_by = _MLPS[shape.mlp]
        gates = [shape.ffn] if self.gate_by else []
        self.gates = nn.ModuleList(nn.Linear(shape.hidden, n, bias=shape.bias) for n in gates)
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=shape.bias)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=shape.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, queries, hidden] to the same."""
        if self.gate_by is None:
            return self.down(F.gelu(self.up(x)))
        return self.down(self.gate_by(self.gates[0](x)) * self.up(x))


class Block(nn.Module):
    """Attention and a perceptron, added to what they read."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention, self.perceptron = Attention(shape), Perceptron(shape)
        norms = 1 if shape.parallel else 2
        self.norms = nn.ModuleList(_norm(shape.norm, shape.hidden) for _ in range(norms))

    def forward(self, x: torch.Tensor, state: State) -> torch.Tensor:
        """[batch, queries, hidden] to the same."""
        y = self.norms[0](x)
        if len(self.norms) == 1:
            return self.perceptron(y) + self.attention(y, state) + x
        x = x + self.attention(y, state)
        return x + self.perceptron(self.norms[1](x))


class Llama(nn.Module):
    """From words [batch, queries] to scores [batch, 1, vocabulary] of the next, on `meta` first."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        with torch.device("meta"):
            self.words = nn.Embedding(shape.vocabulary, shape.hidden)
            self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
            self.norm = _norm(shape.norm, shape.hidden)
            self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=shape.bias)
            self.frequencies = nn.Parameter(torch.empty(shape.rotated // 2))

    def state(self, past: int, queries: int) -> Callable[[], State]:
        """A function that makes, as each step does, what the layers share."""
        device, dtype = self.words.weight.device, self.words.weight.dtype
        places = torch.arange(past, past + queries, device=device)
        in_buffer = self.shape.cache in ("index_copy", "assign")
        scores = self.shape.attention == "scores"
        masked = in_buffer or (scores and queries > 1)
        kind = dtype if scores else torch.bool
        table = torch.empty(past + queries, past + queries, dtype=kind, device=device)
        turns = torch.empty(past + queries, self.shape.rotated, dtype=dtype, device=device)

        def made() -> State:
            mask = table.index_select(0, places)[None, None] if masked else None
            if in_buffer:
                cos, sin = turns.index_select(0, places), turns.index_select(0, places)
            else:
                angles = places[None, :, None].float() * self.frequencies.float()
                angles = torch.cat((angles, angles), -1)
                cos, sin = (f(angles).to(dtype)[:, None] for f in (torch.cos, torch.sin))
            return State(cos, sin, past, places, mask)

        return made

    def forward(self, words: torch.Tensor, state: Callable[[], State]) -> torch.Tensor:
        """The scores of the last word's successor."""
        shared = state()
        x = self.words(words)
        if self.shape.norm == "gemma":
            x = x * self.shape.hidden**0.5
        for layer in self.layers:
            x = layer(x, shared)
        return self.head(self.norm(x)[:, -1:])


# --- samplers: scores [batch, vocabulary] and the words so far to the next ones [batch, 1] --------


def _greedy(scores: torch.Tensor, _written: torch.Tensor) -> torch.Tensor:
    return scores.float().argmax(-1, keepdim=True)


def _of_the_best(scores: torch.Tensor, _written: torch.Tensor) -> torch.Tensor:
    """One of the 200 best, as litgpt and gpt-fast draw it."""
    best, places = scores.topk(200, -1)
    kept = torch.full_like(scores, -torch.inf).scatter_(-1, places, best)
    return torch.multinomial(kept.softmax(-1), 1)


def _warped(scores: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    """A penalty for what was said, a temperature, top-k and top-p: transformers' processors."""
    scores = scores.float()
    said = scores.gather(1, written)
    said = torch.where(said < 0, said * _PENALTY, said / _PENALTY)
    scores = scores.scatter(1, written, said) / _TEMPERATURE
    scores = scores.masked_fill(scores < scores.topk(_TOP_K)[0][..., -1, None], -torch.inf)
    ordered, places = scores.sort(descending=False)
    rare = ordered.softmax(-1).cumsum(-1) <= 1 - _TOP_P
    scores = scores.masked_fill(rare.scatter(1, places, rare), -torch.inf)
    return torch.multinomial(scores.softmax(-1), 1)


SAMPLERS = {"greedy": _greedy, "top_k": _of_the_best, "warped": _warped}
