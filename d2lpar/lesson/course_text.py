"""The text of this very course, as numbers for a small GPT."""

from __future__ import annotations

import re
from functools import cached_property
from importlib.resources import files

import torch
from torch import Tensor, nn

from ..timeline.inputs import Count, checked

PIECES = re.compile(r" ?\w+|\n| ?[^\w\n]")  # a word with the space before it, a mark, a line's end
TEMPERATURE = 0.6  # below 1, likely words become likelier: fewer slips, less variety


class CourseText:
    """The sentences of the lessons, one a line, and a number for each of their words.

    A token is a whole word or a mark, with the space before it. So whatever a network writes is
    made of words, and there is nothing to train before the network itself.

    Of a part of it, which a network learns sooner, `text` is what stands there.

    Attributes:
        text: all sentences, each ended by a line's end.
        vocabulary: the tokens, sorted; a token's number is its place here.
        tokens: the whole text, int64 [tokens].

    """

    def __init__(self, text: str = "") -> None:
        whole = files(__package__).joinpath("course_text.txt")
        self.text = text or whole.read_text(encoding="utf-8")
        self.vocabulary = sorted(set(PIECES.findall(self.text)))

    @cached_property
    def _number(self) -> dict[str, int]:
        return {piece: number for number, piece in enumerate(self.vocabulary)}

    @cached_property
    def tokens(self) -> Tensor:
        """The whole text, int64 [tokens]."""
        return self.encode(self.text)

    def encode(self, text: str) -> Tensor:
        """The numbers of its words, int64 [tokens].

        Raises:
            ValueError: a word is not in the course; it is named.

        """
        pieces = PIECES.findall(text)
        unknown = next((piece for piece in pieces if piece not in self._number), None)
        if unknown is not None:
            raise ValueError(
                f"the course nowhere says {unknown!r}, so the GPT has no number for it. "
                "A word counts with the space before it: try others, such as 'The GPU'."
            )
        return torch.tensor([self._number[piece] for piece in pieces], dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        """The text of such numbers."""
        return "".join(self.vocabulary[number] for number in tokens.flatten().tolist())

    @checked
    def batch(self, samples: Count, length: Count = 32, *, step: int = 0) -> tuple[Tensor, Tensor]:
        """Pieces of the text from random places, and what follows each of their tokens: both int64
        [samples, length].

        The same `step` gives the same pieces.
        """
        generator = torch.Generator().manual_seed(step)
        last = len(self.tokens) - length
        first = torch.randint(last, (samples, 1), generator=generator)
        pieces = self.tokens[first + torch.arange(length + 1)]
        return pieces[:, :-1], pieces[:, 1:]

    def written_by(
        self, net: nn.Module, start: str = "The", *, most: int = 40, length: int = 32, seed: int = 0
    ) -> str:
        """A sentence that begins with `start`: `net` draws one token after another.

        Args:
            net: int64 tokens [1, up to `length`] to scores [1, the same, vocabulary].
            start: words of the course.
            most: tokens, if no end of a line comes before.
            length: as many tokens as the network sees at once.
            seed: another seed, another sentence.

        """
        generator = torch.Generator().manual_seed(seed)
        device = next(net.parameters()).device
        written = self.encode(f"\n{start}")
        with torch.inference_mode():
            for _ in range(most):
                scores = net(written[None, -length:].to(device))[0, -1].cpu()
                chances = (scores / TEMPERATURE).softmax(0)
                drawn = torch.multinomial(chances, 1, generator=generator)
                if self.vocabulary[drawn] == "\n":
                    break
                written = torch.cat([written, drawn])
        return self.decode(written[1:])
