"""What is to be trained: a transformer by its sizes, its parameters and its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from ...timeline.inputs import Count, Index, beyond, checked, is_count, is_number, require

_SIZES = ("layers", "hidden", "heads", "sequence", "vocabulary")
_OPTIONAL_SIZES = ("kv_heads", "ffn", "head", "places", "scored")
_FLAGS = ("gated", "tied", "bias", "causal", "qk_norm")
NORMS = ("layer", "rms")
POSITIONS = ("learned", "rotary", "none")


@dataclass(frozen=True)
class Experts:
    """Perceptrons: a router chooses `top_k` of `count` for each token (Shazeer et al. 2017).

    Each gets an even share. Raises ValueError for numbers that are not there.
    """

    count: int
    top_k: int = 2

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 2 or not is_count(self.count):
            what = f"two or more{beyond(self.count)}"
            raise ValueError(f"experts are {what}, not {self.count!r}; None is one perceptron")
        if type(self.top_k) is not int or not 1 <= self.top_k <= self.count:
            raise ValueError(f"top_k is a number from 1 to {self.count} experts, not {self.top_k}")


@dataclass(frozen=True)
class Transformer:
    """A decoder such as GPT: `layers` of width `hidden`, with `heads` of attention each.

    `sequence` is the length of a sample in tokens. `dropout` is the share that is dropped, in
    attention and after each block. What newer networks do otherwise:

    - `kv_heads`: keys and values of so many heads, which groups of queries share (None: all);
    - `ffn`: the perceptron's inner width (None: four times `hidden`); `gated`: it is a SwiGLU,
      with a third matrix (Shazeer 2020); `experts`: there are many of it;
    - `tied`: input and output embeddings are one matrix;
    - `norm` is "layer" or "rms"; `positions` are "learned", "rotary", or "none" that cost anything
      (ALiBi); `bias`: products and norms have one;
    - `causal`: a token attends to those before it, which halves fused attention's work;
    - `head`: the width of a head (None: `hidden` over `heads`); `qkv_bias`: queries, keys and
      values have a bias (None: as `bias` says); `qk_norm`: the heads of queries and keys are
      normalised by their RMS (Qwen3);
    - `places` are learned positions (None: as many as `sequence`);
    - `scored`: so many tokens of a sample are scored (None: all; 1 of a picture);
    - `extra`: parameters beside layers, words, positions and the last norm, such as a pooler's.

    Raises ValueError for what is no size, flag or share, and heads that do not divide the width.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int = 2048
    vocabulary: int = 51_200
    dropout: float = 0.1
    source: str = ""
    kv_heads: int | None = None
    ffn: int | None = None
    gated: bool = False
    tied: bool = True
    norm: str = "layer"
    positions: str = "learned"
    bias: bool = True
    causal: bool = True
    experts: Experts | None = None
    head: int | None = None
    qkv_bias: bool | None = None
    qk_norm: bool = False
    places: int | None = None
    scored: int | None = None
    extra: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        if self.head is None and self.hidden % self.heads:
            raise ValueError(
                f"{self.name}: {self.heads} heads do not divide a width of {self.hidden}; take a "
                "width that is a multiple of the heads"
            )
        if self.heads % self.key_heads:
            raise ValueError(
                f"{self.name}: {self.key_heads} heads of keys do not divide {self.heads} heads; "
                "take a divisor, or None for as many"
            )
        if not (is_number(self.dropout) and 0 <= self.dropout < 1):
            raise ValueError(f"{self.name}: dropout is a share from 0 to 1, not {self.dropout!r}")
        for field, allowed in (("norm", NORMS), ("positions", POSITIONS)):
            if (value := getattr(self, field)) not in allowed:
                raise ValueError(
                    f"{self.name}: {field} is one of {', '.join(allowed)}, not {value!r}"
                )

    def _check_types(self) -> None:
        sizes = {name: getattr(self, name) for name in (*_SIZES, *_OPTIONAL_SIZES)}
        given = {k: v for k, v in sizes.items() if v is not None or k in _SIZES}
        if wrong := {k: v for k, v in given.items() if type(v) is not int or not is_count(v)}:
            what = f"whole numbers from 1 on{beyond(wrong)}"
            raise ValueError(f"{self.name}: sizes are {what}, not {wrong}")
        require(self.name, Index, extra=self.extra)
        flags = {name: getattr(self, name) for name in _FLAGS}
        if self.qkv_bias is not None:
            flags["qkv_bias"] = self.qkv_bias
        if wrong := {k: v for k, v in flags.items() if not isinstance(v, bool)}:
            raise ValueError(f"{self.name}: flags are True or False, not {wrong}")
        if not (self.experts is None or isinstance(self.experts, Experts)):
            raise ValueError(
                f"{self.name}: experts are par.planner.Experts(count, top_k) or None, not "
                f"{self.experts!r}"
            )

    @property
    def head_size(self) -> int:
        """Numbers of a head."""
        return self.hidden // self.heads if self.head is None else self.head

    @property
    def width(self) -> int:
        """Numbers of all heads together."""
        return self.heads * self.head_size

    @property
    def scored_tokens(self) -> int:
        """Tokens of a sample that are scored."""
        return self.sequence if self.scored is None else min(self.scored, self.sequence)

    @property
    def has_qkv_bias(self) -> bool:
        """Whether queries, keys and values have a bias."""
        return self.bias if self.qkv_bias is None else self.qkv_bias

    @property
    def position_parameters(self) -> int:
        """Those of learned positions; 0 without any."""
        if self.positions != "learned":
            return 0
        return self.hidden * (self.sequence if self.places is None else self.places)

    @property
    def active_parameters(self) -> int:
        """Of all parameters those that a token meets: of experts, only the chosen ones."""
        if self.experts is None:
            return self.parameters
        idle = self.experts.count - self.experts.top_k
        return self.parameters - self.layers * idle * self._perceptron_parameters(1)

    @property
    def key_heads(self) -> int:
        """Heads that have keys and values of their own."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def inner(self) -> int:
        """The perceptron's inner width."""
        return 4 * self.hidden if self.ffn is None else self.ffn

    def key_heads_per_rank(self, tensor: int) -> int:
        """Of one of `tensor` ranks; ranks that are more than these heads have copies."""
        return -(-self.key_heads // tensor)

    # --- parameters -------------------------------------------------------------------------------

    @property
    def parameters(self) -> int:
        """Weights and biases in all: Narayanan et al. 2021, equation 2, and the last norm's."""
        words = self.word_parameters() * (1 if self.tied else 2)
        beside = words + self.position_parameters + self._norm_parameters + self.extra
        return self.layers * self.layer_parameters() + beside

    def layer_parameters(self, tensor: int = 1, expert: int = 1) -> int:
        """Those of one layer that one of `tensor` ranks holds, and of `expert` ranks its experts.

        Matrices are split, and the biases of those that are split by columns; the other biases,
        two norms and the router are not (Shoeybi et al. 2019).
        """
        for count in (tensor, expert):
            if not (type(count) is int and count >= 1):  # a search asks thousands of times
                require(self.name, Count, tensor=tensor, expert=expert)
        whole = 2 * self._norm_parameters + (self.hidden if self.bias else 0)
        whole += 2 * self.head_size if self.qk_norm else 0
        if self.experts is None:
            return self._attention_parameters(tensor) + self._perceptron_parameters(tensor) + whole
        router = self.hidden * self.experts.count
        return (
            self._attention_parameters(tensor)
            + self.expert_parameters(tensor, expert)
            + router
            + whole
        )

    def expert_parameters(self, tensor: int = 1, expert: int = 1) -> int:
        """Those of a layer's experts on one of `tensor` × `expert` ranks; 0 without experts."""
        if self.experts is None:
            return 0
        return self.experts.count // expert * self._perceptron_parameters(tensor)

    def matrices(self, tensor: int = 1) -> list[int]:
        """Parameters of a layer's single matrices on one of `tensor` ranks, without experts."""
        h, inner = self.hidden, self.inner // tensor
        ups = [h * inner] * (2 if self.gated else 1)
        return [h * self._qkv_columns(tensor), self.width * h // tensor, *ups, inner * h]

    def _qkv_columns(self, tensor: int) -> int:
        heads = self.heads // tensor + 2 * self.key_heads_per_rank(tensor)
        return heads * self.head_size

    def _attention_parameters(self, tensor: int) -> int:
        columns = self._qkv_columns(tensor)
        biases = columns if self.has_qkv_bias else 0
        return self.hidden * columns + self.width * self.hidden // tensor + biases

    def _perceptron_parameters(self, tensor: int) -> int:
        columns = self.inner // tensor * (2 if self.gated else 1)
        biases = columns + self.hidden if self.bias else 0
        return self.hidden * (columns + self.inner // tensor) + biases

    @property
    def _norm_parameters(self) -> int:
        return self.hidden * (2 if self.norm == "layer" and self.bias else 1)

    def word_parameters(self, tensor: int = 1) -> int:
        """Those of one embedding of words, which is split by words."""
        return self.words_per_rank(tensor) * self.hidden

    def words_per_rank(self, tensor: int) -> int:
        """Words that one of `tensor` ranks scores; the vocabulary is padded if need be."""
        return -(-self.vocabulary // tensor)

    # --- arithmetic -------------------------------------------------------------------------------

    @checked
    def flops(self, samples: Count, *, recompute: bool = False, causal: bool = False) -> float:
        """FLOP of a step of so many samples: Narayanan et al. 2021, equation 3.

        A backward pass is two forward passes; of experts those count that are chosen. `recompute`:
        layers are computed forward twice; the scores of words, which stay, are not. `causal`:
        attention counts half; publications mostly count all of it, and so does this.
        """
        tokens = samples * self.sequence
        passes = 4 if recompute else 3
        attention = 4 * self.sequence * self.width / (2 if causal else 1)
        layer = 2 * self._products_per_token + attention
        scores = 6 * self.hidden * self.vocabulary * samples * self.scored_tokens
        return tokens * passes * self.layers * layer + scores

    @property
    def _products_per_token(self) -> int:
        """Multiplications of one token with a layer's matrices."""
        qkv, out, *perceptron = self.matrices()
        if self.experts is None:
            return qkv + out + sum(perceptron)
        router = self.hidden * self.experts.count
        return qkv + out + router + self.experts.top_k * sum(perceptron)
