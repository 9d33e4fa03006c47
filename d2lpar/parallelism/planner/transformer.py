"""What is to be trained: a transformer by its sizes, its parameters and its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

_SIZES = ("layers", "hidden", "heads", "sequence", "vocabulary")


@dataclass(frozen=True)
class Transformer:
    """A decoder such as GPT: `layers` of width `hidden`, with `heads` of attention each.

    `sequence` is the length of a sample in tokens. `dropout` is the share that is dropped, in
    attention and after each block. Input and output embeddings are one matrix.

    Raises ValueError for sizes below 1, and heads that do not divide the width.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int = 2048
    vocabulary: int = 51_200
    dropout: float = 0.1
    source: str = ""

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in _SIZES}
        if wrong := {k: v for k, v in sizes.items() if type(v) is not int or v < 1}:
            raise ValueError(f"{self.name}: sizes are whole numbers from 1 on, not {wrong}")
        if self.hidden % self.heads:
            raise ValueError(
                f"{self.name}: {self.heads} heads do not divide a width of {self.hidden}; take a "
                "width that is a multiple of the heads"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"{self.name}: dropout is a share from 0 to 1, not {self.dropout!r}")

    @property
    def parameters(self) -> int:
        """Weights and biases in all: Narayanan et al. 2021, equation 2."""
        positions = self.sequence * self.hidden
        return self.layers * self.layer_parameters() + self.word_parameters() + positions

    def layer_parameters(self, tensor: int = 1) -> int:
        """Those of one layer that one of `tensor` ranks holds.

        Matrices are split, and the biases of those that are split by columns; the other biases and
        two layer norms are not (Shoeybi et al. 2019).
        """
        h = self.hidden
        return (12 * h**2 + 7 * h) // tensor + 6 * h

    def word_parameters(self, tensor: int = 1) -> int:
        """Those of the embedding of words, which is split by words."""
        return self.words_per_rank(tensor) * self.hidden

    def words_per_rank(self, tensor: int) -> int:
        """Words that one of `tensor` ranks scores; the vocabulary is padded if need be."""
        return -(-self.vocabulary // tensor)

    def flops(self, samples: int, *, recompute: bool = False) -> float:
        """FLOP of a step of so many samples: Narayanan et al. 2021, equation 3.

        A backward pass is two forward passes. `recompute`: layers are computed forward twice; the
        scores of words, which stay, are not.
        """
        s, h, layers = self.sequence, self.hidden, self.layers
        passes = 96 if recompute else 72
        matrices = passes * samples * s * layers * h**2 * (1 + s / (6 * h))
        return matrices + 6 * samples * s * h * self.vocabulary


def _weak_scaling(name: str, layers: int, hidden: int, heads: int) -> Transformer:
    return Transformer(name, layers, hidden, heads, source=f"{_NARAYANAN}, table 1")


_NARAYANAN = "Narayanan et al. 2021, https://arxiv.org/abs/2104.04473"
_BROWN = "Brown et al. 2020, https://arxiv.org/abs/2005.14165, table 2.1"
_SHOEYBI = "Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053, table 1"

MODELS = {
    model.name: model
    for model in (
        Transformer("megatron-1.2b", 40, 1536, 16, sequence=1024, source=_SHOEYBI),
        _weak_scaling("megatron-1.7b", 24, 2304, 24),
        _weak_scaling("megatron-3.6b", 30, 3072, 32),
        _weak_scaling("megatron-7.5b", 36, 4096, 32),
        # The table of its authors gives a width of 5140, which 40 heads of 128 do not have.
        Transformer("gpt-3-13b", 40, 5120, 40, source=f"{_BROWN}; 40 heads of 128"),
        _weak_scaling("megatron-18.4b", 40, 6144, 48),
        _weak_scaling("megatron-39.1b", 48, 8192, 64),
        _weak_scaling("megatron-76.1b", 60, 10240, 80),
        _weak_scaling("megatron-145.6b", 80, 12288, 96),
        Transformer("gpt-3-175b", 96, 12288, 96, source=_BROWN),
        _weak_scaling("megatron-310.1b", 96, 16384, 128),
        _weak_scaling("megatron-529.6b", 105, 20480, 128),
        _weak_scaling("megatron-1008b", 128, 25600, 160),
    )
}


def model(which: str | Transformer) -> Transformer:
    """A model by its name in `MODELS`, or the one given. Raises ValueError for an unknown name."""
    if isinstance(which, Transformer):
        return which
    if which not in MODELS:
        raise ValueError(
            f"no model is called {which!r}; there is {', '.join(MODELS)}, or a Transformer(…)"
        )
    return MODELS[which]
