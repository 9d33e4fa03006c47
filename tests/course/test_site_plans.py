"""The page "Does it fit?" of the site: what it shows is what `d2lpar plan` says."""

import json
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from book import plan_page, plans
from lab_in_browser import in_chromium

from d2lpar import machines
from d2lpar.command import cli

SPHINX = Path(plan_page.__file__).parent / "sphinx"
DRAWN = re.compile(r"\|[ █·]*\|")
CHOICES = list(plans.choices())
SOME = random.Random(7).sample(CHOICES, 6)
MOST_BYTES = 1_500_000


@pytest.fixture(scope="module")
def kept():
    return plans.load()


def printed(capsys, words):
    """The words that the command says, without its bars; of an error, why."""
    if cli.main(["plan", *words]):
        return ["No", "plan:", *capsys.readouterr().err.removeprefix("d2lpar: ").split()]
    return DRAWN.sub(" ", capsys.readouterr().out).split()


def words_of(parts):
    """The words of kept parts, in the order in which they are read."""
    for question, short, above, bars, below in parts:
        texts = [question, short, *above, *(f"{bar[0]} {bar[1]}" for bar in bars), *below]
        yield from " ".join(texts).split()


def test_each_choice_has_an_answer_and_nothing_else_has(kept):
    found = {(model, key) for model, of_model in kept.items() for key in of_model}
    assert found == {(choice.model, choice.key) for choice in CHOICES}


@pytest.mark.parametrize("choice", SOME, ids=lambda choice: f"{choice.model} {choice.key}")
def test_what_is_kept_is_what_the_command_says_today(kept, capsys, choice):
    """If not, the simulator has changed since: `make site-plans`."""
    parts = kept[choice.model][choice.key]
    assert list(words_of(parts)) == printed(capsys, choice.words)
    assert parts == json.loads(json.dumps(plans.plain(plans.answer(choice))))


def test_bars_lie_one_behind_the_other_and_fill_the_whole(kept):
    checked = 0
    for choice in CHOICES:
        for question, _, _, bars, _ in kept[choice.model][choice.key]:
            if question == "How long?" and bars:
                assert bars[0][2] == 0
                ends = [begin + size for _, _, begin, size, _ in bars]
                assert [bar[2] for bar in bars[1:]] == ends[:-1]
                assert ends[-1] == pytest.approx(plans.MILLI, abs=3)
                checked += 1
    assert checked > 100


def test_one_can_choose_all_gpus_and_fewer_but_of_a_cluster_all():
    assert plans.gpus_of("8x-h100-nvswitch") == [1, 2, 4, 8]
    assert plans.gpus_of("1x-a10") == [1]
    assert plans.gpus_of("2x8x-h100-nvswitch-8xib-ndr") == [16]
    for choice in CHOICES:
        assert choice.gpus <= len(machines.machine(choice.machine).accelerators)


def test_a_prompt_is_as_long_as_the_model_reads_it():
    short = plans.Choice("gpt2", "1x-a10", 1, plans.INFERENCE, 1)
    assert short.words[-2:] == ["--sequence", "768"]
    assert "--sequence" not in short._replace(kind=plans.TRAINING).words
    assert "--sequence" not in short._replace(model="llama-3.1-8b").words


def test_it_is_small_and_has_a_card(tmp_path):
    (tmp_path / "source").mkdir()
    plan_page.write_page(tmp_path / "source", tmp_path / "extra")
    scripts = list((tmp_path / "extra" / plan_page.ANSWERS).iterdir())
    assert {script.stem for script in scripts} == set(plans.MODELS)
    assert sum(script.stat().st_size for script in scripts) < MOST_BYTES
    card = plan_page.card()
    assert 'href="plan.html"' in card
    assert card.count("<rect") >= 4
    assert "weights 16.1 GB" in card


# In a browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The page and the two that it leads to, by Sphinx with the course's settings."""
    for name in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("plans")
    source, extra = folder / "source", folder / "extra"
    (source / "docs").mkdir(parents=True)
    plan_page.write_page(source, extra)
    for name in ("does-it-fit", "how-far-to-trust-it"):
        (source / "docs" / f"{name}.md").write_text(f"# {name}\n")
    listed = "plan\ndocs/does-it-fit\ndocs/how-far-to-trust-it"
    (source / "index.md").write_text(f"# Site\n\n```{{toctree}}\n{listed}\n```\n")
    settings = ["-c", SPHINX, "-D", f"html_extra_path={extra}"]
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", *settings]
    subprocess.run([*command, source, folder / "built"], check=True)
    yield folder / "built"
    shutil.rmtree(folder)


@pytest.fixture
def page(site, browser):
    """The page as a file, in a narrow window."""
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.address = (site / "plan.html").as_uri()
    page.goto(page.address)
    yield page
    assert page.errors == []
    page.close()


def waits_for(page, kept, choice):
    """Wait until the page shows the answer to a choice."""
    expected = " ".join(words_of(kept[choice.model][choice.key]))
    page.wait_for_function(
        "text => [...document.querySelectorAll('.model-plan :is(p, span, b)')]"
        ".map(one => one.textContent).join(' ').split(/\\s+/).join(' ').trim() === text",
        arg=expected,
    )


@in_chromium
def test_it_shows_what_is_chosen_with_the_command_and_an_address(page, kept, capsys):
    choice = plan_page.FIRST
    waits_for(page, kept, choice)
    for label, change in [
        ("Machine", {"machine": "4x-rtx-4090", "gpus": 4}),
        ("GPUs of it", {"gpus": 2}),
        ("For", {"kind": plans.INFERENCE, "batch": 32}),
        ("Batch", {"batch": 1}),
        ("Model", {"model": "gpt2"}),
    ]:
        choice = choice._replace(**change)
        page.get_by_label(label).select_option(str(next(iter(change.values()))))
        waits_for(page, kept, choice)
    command = shlex.split(page.get_by_label("The same in a terminal").input_value())
    assert command[:2] == ["d2lpar", "plan"]
    words = list(words_of(kept[choice.model][choice.key]))
    assert words == printed(capsys, command[2:])
    assert page.url.endswith("#model=gpt2&machine=4x-rtx-4090&gpus=2&for=inference&batch=1")
    said = page.locator("[role=status]").inner_text()
    assert "Does it fit? Yes" in said
    page.reload()
    waits_for(page, kept, choice)


@in_chromium
def test_an_address_chooses_and_says_what_is_not_there(page, kept):
    choice = plans.Choice("llama-3.1-70b", "8x-h100-nvswitch", 4, plans.TRAINING, 512)
    asked = "#model=llama-3.1-70b&machine=8x-h100-nvswitch&gpus=4&batch=512"
    page.goto(page.address + asked)
    waits_for(page, kept, choice)
    assert page.locator("[role=alert]").inner_text() == ""
    page.goto(page.address + "#model=gpt-17&gpus=3&machine=1x-a10")
    said = page.get_by_text("Not among the choices: model gpt-17, gpus 3.")
    said.wait_for()
    waits_for(page, kept, plan_page.FIRST._replace(machine="1x-a10", gpus=1))


@in_chromium
def test_keys_are_enough_and_nothing_is_wider_than_the_window(page, kept):
    waits_for(page, kept, plan_page.FIRST)
    page.get_by_label("Batch").focus()
    page.keyboard.press("ArrowDown")
    waits_for(page, kept, plan_page.FIRST._replace(batch=512))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "plan-command"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("button", name=re.compile("Copied|Selected")).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    bars = page.locator(".model-plan li i")
    assert bars.count() >= 5
    assert all(bar.bounding_box()["width"] > 300 for bar in bars.all())
