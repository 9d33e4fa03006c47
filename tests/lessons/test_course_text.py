"""The text that the course's GPT learns, and the GPT itself."""

import course_text as tool
import pytest
import torch
from torch import nn

import d2lpar as par
from d2lpar import models


@pytest.fixture(scope="module")
def text():
    return par.CourseText()


def test_text_becomes_numbers_and_text_again(text):
    assert text.decode(text.tokens) == text.text
    assert text.decode(text.encode("The GPU waits.")) == "The GPU waits."


def test_a_word_that_the_course_does_not_have_is_named(text):
    with pytest.raises(ValueError, match="xylophone"):
        text.encode("The xylophone waits.")


def test_words_follow_words(text):
    X, y = text.batch(5, 7, step=3)
    assert X.shape == y.shape == (5, 7)
    assert torch.equal(X[:, 1:], y[:, :-1])
    assert all(text.decode(torch.cat([a, b[-1:]])) in text.text for a, b in zip(X, y, strict=True))


def test_a_step_has_its_own_pieces(text):
    again, other = text.batch(4, step=1)[0], text.batch(4, step=2)[0]
    assert torch.equal(text.batch(4, step=1)[0], again)
    assert not torch.equal(again, other)


def test_prose_is_whole_sentences_without_marks():
    markdown = (
        "# A heading of five words.\n\nSee [the *next* cell](x.ipynb) and `par.record` now. "
        "A batch of $n$ images is split.\n\n| a | row | of | tables. |\n\n"
        "- An item\n  of two lines is one.\n"
    )
    assert tool.sentences(markdown) == [
        "See the next cell and par.record now.",
        "An item of two lines is one.",
    ]


def test_a_word_sees_only_the_words_before_it(text):
    torch.manual_seed(0)
    net = models.gpt(100)
    X = torch.arange(32)[None]
    changed = X.clone()
    changed[0, 20] = 99
    same = (net(X) == net(changed)).all(-1)[0]
    assert same[:20].all()
    assert not same[20:].any()


def test_gpt_learns_the_text_and_writes_its_words(text):
    torch.manual_seed(0)
    net = models.gpt(len(text.vocabulary), layers=1, width=32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for step in range(30):
        X, y = text.batch(16, step=step)
        loss = models.next_word_loss(net(X), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.tensor(len(text.vocabulary)).log().item(), abs=0.05)
    assert losses[-1] < losses[0] - 1
    sentence = text.written_by(net, "The GPU", most=10)
    assert sentence.startswith("The GPU")
    assert len(text.encode(sentence)) <= 12
    assert text.written_by(net, "The GPU", most=10) == sentence


def test_parts_of_the_gpt_are_the_whole():
    net = models.gpt(50)
    assert [name for name, _ in net.named_children()] == [
        "embed", "block1", "block2", "block3", "block4", "head",
    ]  # fmt: skip
    X = torch.arange(16)[None]
    assert torch.equal(net[3:](net[:3](X)), net(X))
    assert isinstance(net[:3], nn.Sequential)
