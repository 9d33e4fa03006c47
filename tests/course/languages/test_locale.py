"""What the package says in another language: sentences that are found again with their values."""

from __future__ import annotations

import pytest

from d2lpar import locale
from d2lpar.checks.verdict import RIGHT, WRONG, Verdict
from d2lpar.locale.messages import Messages
from d2lpar.timeline.printing import say

KNOWN = Messages(
    {
        "✗ wrong: {text}": "✗ 错误：{text}",
        "{call}: expected {expected:.3g}, got {got!r}": "{call}：应为{expected}，得到{got}",
        "{call}: expected {expected}, got half: a multiply-and-add is 2 FLOP": (
            "{call}：应为{expected}，得到一半：一次乘加是2 FLOP"
        ),
        "{n} rank{s} wait": "{n}个进程在等待",
        ". Is it synchronised?": "。同步了吗？",
        "a {{b}} of {c}": "{c}的{{b}}",
        "the first": "第一个",
        "{a}: {b}, {c}": "{a}：{b}，{c}",
        "for {why}": "因为{why}",
        ", ": "，",
        ": ": "：",
        "rank {}, position {}": "第{0}个进程，位置{1}",
        "time ({unit})": "时间（{unit}）",
        "your {check.__name__}": "你的{check.__name__}",
    }
)


@pytest.mark.parametrize(
    ("english", "said"),
    [
        ("f(1, 2): expected 3, got 4", "f(1, 2)：应为3，得到4"),
        # The one with most words of its own.
        (
            "f: expected 3, got half: a multiply-and-add is 2 FLOP",
            "f：应为3，得到一半：一次乘加是2 FLOP",
        ),
        ("✗ wrong: f: expected 3, got the first", "✗ 错误：f：应为3，得到第一个"),
        ("✗ wrong: it is late. Is it synchronised?", "✗ 错误：it is late。同步了吗？"),
        ("2 ranks wait", "2个进程在等待"),
        ("1 rank wait", "1个进程在等待"),
        ("a {b} of x", "x的{b}"),
        ("rank 2, position 3", "第2个进程，位置3"),
        ("✗ wrong: 2 ranks wait, the first", "✗ 错误：2个进程在等待，第一个"),
        ("✗ wrong: f(x): the first", "✗ 错误：f(x)：第一个"),
        ("✗ wrong: [1, 2]", "✗ 错误：[1, 2]"),
        ("✗ wrong: 2 ranks wait, or so it is", "✗ 错误：2 ranks wait, or so it is"),
        ("from 1, 2 to 3: 4", "from 1, 2 to 3: 4"),
        ("{a}: {b}, {c}", "{a}：{b}，{c}"),  # a template by itself
        ("for others", "for others"),
        ("for the first", "因为第一个"),
        ("time (ms)", "时间（ms）"),  # which is no word
        ("your flat", "你的flat"),  # a function
        ("your own time", "your own time"),
        ("time (flies)", "time (flies)"),
        ("time (New York)", "时间（New York）"),
        ("Nothing that is known", "Nothing that is known"),
        ("2 ranks wait · the first", "2个进程在等待 · 第一个"),
        ("title\n  2 ranks wait\nend", "title\n  2个进程在等待\nend"),
    ],
)
def test_a_sentence_is_found_with_its_values(english, said):
    assert KNOWN.translated(english) == said


def test_english_is_what_the_code_says(capsys, monkeypatch):
    monkeypatch.delenv(locale.VARIABLE, raising=False)
    verdict = Verdict(WRONG, "your function returned nothing: end it with `return …`")
    assert repr(verdict) == f"✗ wrong: {verdict.text}"
    say("d2lpar: interrupted")
    assert capsys.readouterr().out == "d2lpar: interrupted\n"


def test_verdicts_and_what_is_printed_are_chinese_where_the_reader_wants_it(capsys, monkeypatch):
    monkeypatch.setenv(locale.VARIABLE, "zh_CN.UTF-8")
    verdict = Verdict(WRONG, "your function returned nothing: end it with `return …`")
    assert repr(verdict).startswith("✗ 错误：你的函数")
    assert "`return …`" in repr(verdict)
    assert verdict.text.startswith("your function")  # which a grader's report has
    assert repr(Verdict(RIGHT, "")).startswith("✓ 正确")
    say("d2lpar: interrupted")
    assert "interrupted" not in capsys.readouterr().out


def test_the_language_of_a_copy_is_that_of_what_runs_in_it(tmp_path, monkeypatch):
    monkeypatch.delenv(locale.VARIABLE, raising=False)
    copy = tmp_path / locale.COPY
    deeper = copy / "deeper"
    (copy / locale.HIDDEN).mkdir(parents=True)
    deeper.mkdir()
    for folder in (deeper, tmp_path):  # the copy's, and that of the course, where commands run
        (copy / locale.HIDDEN / locale.CHOSEN).unlink(missing_ok=True)
        monkeypatch.chdir(folder)
        locale._of_copy.cache_clear()
        assert locale.chosen() == "en"
        locale._of_copy.cache_clear()
        (copy / locale.HIDDEN / locale.CHOSEN).write_text("zh\n")
        assert locale.chosen() == "zh"
        monkeypatch.setenv(locale.VARIABLE, "en")
        assert locale.chosen() == "en"
        monkeypatch.delenv(locale.VARIABLE)
    locale._of_copy.cache_clear()


def test_a_language_without_messages_is_english(monkeypatch):
    monkeypatch.setenv(locale.VARIABLE, "xx")
    assert locale.translated("d2lpar: interrupted") == "d2lpar: interrupted"
