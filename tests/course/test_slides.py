"""Lessons as slides: one file that needs no network, in which every slide fits on a screen."""

import json
from pathlib import Path

import nbformat
import pytest
import slides
from book import states, timelines
from lab_in_browser import SCREEN, SMALLEST_CODE_PX, SMALLEST_PX, in_chromium
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from d2lpar.timeline import Span, Timeline
from d2lpar.timeline.traces.page import page_data

# A PNG of one white pixel.
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4//8/AAX+Av4N70a4AAAAAElFTkSuQmCC"
)
LESSONS = slides.chosen([])
WIDTH, HEIGHT = SCREEN.values()

# Of each slide with all that it reveals: how far text and pictures reach, and the smallest type.
MEASURE = """() => Reveal.getSlides().map(slide => {
    const {h, v} = Reveal.getIndices(slide);
    Reveal.slide(h, v, 99);
    const shown = element => element.checkVisibility() && !element.closest('aside');
    const elements = [...slide.querySelectorAll('*')].filter(shown);
    const own = element => [...element.childNodes].filter(
        node => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    const boxes = elements.flatMap(element => {
        const range = document.createRange();
        return own(element).flatMap(node => {
            range.selectNodeContents(node);
            return [...range.getClientRects()];
        }).concat(element.matches('img, svg') ? [element.getBoundingClientRect()] : []);
    });
    const size = element => parseFloat(getComputedStyle(element).fontSize);
    const written = elements.filter(element => own(element).length);
    const code = element => element.closest('pre, code, table');
    return {
        text: slide.innerText.trim().slice(0, 60),
        right: Math.max(0, ...boxes.map(box => box.right)),
        bottom: Math.max(0, ...boxes.map(box => box.bottom)),
        prose: Math.min(99, ...written.filter(element => !code(element)).map(size)),
        code: Math.min(99, ...written.filter(code).map(size)),
        pictures: slide.querySelectorAll('img').length,
        broken: [...slide.querySelectorAll('img')].filter(image => !image.naturalWidth).length,
    };
})"""


def cell_of(kind, source, slide_type, outputs=()):
    metadata = {"slideshow": {"slide_type": slide_type}}
    if kind == "markdown":
        return new_markdown_cell(source, metadata=metadata)
    return new_code_cell(source, metadata=metadata, outputs=list(outputs), execution_count=1)


def printed(text):
    return [new_output("stream", name="stdout", text=text)]


def saved(tmp_path, *cells):
    path = tmp_path / "03_a_lesson.ipynb"
    nbformat.write(new_notebook(cells=list(cells)), path)
    return path


# Without a browser


def test_links_lead_to_other_slides_or_nowhere(tmp_path):
    text = "[a](02_b.ipynb) [c](deeper/02_b.ipynb) [d](02_b.ipynb#e) [f](https://g.example/02)"
    path = saved(tmp_path, cell_of("markdown", text, "slide"))
    found = slides.prepared(path, {"02_b"}).cells[0].source
    assert found == "[a](02_b.html) c [d](02_b.html) [f](https://g.example/02)"
    other = slides.prepared(path, {"04_other"}).cells[0].source
    assert other == "a c d [f](https://g.example/02)"


def test_what_follows_a_prediction_is_hidden_until_it_is_told(tmp_path):
    path = saved(
        tmp_path,
        cell_of("code", "1", "slide", printed("before")),
        cell_of("code", "guess = par.predict('?')", "fragment", printed("?")),
        cell_of("code", "two = 1 + 1", "fragment"),
        cell_of("code", "print(two)", "fragment", printed("2")),
        cell_of("code", "guess.beside(two)", "fragment", printed("2")),
        cell_of("code", "3", "fragment", printed("after")),
        cell_of("code", "par.predict('?')", "fragment", printed("?")),
        cell_of("code", "4", "slide", printed("on another slide")),
    )
    cells = slides.prepared(path, set()).cells
    hidden = [index for index, cell in enumerate(cells) if cell.metadata.get(slides.ANSWERS)]
    assert hidden == [3, 4]


def gantt_cell():
    data = {"image/png": PIXEL, "text/plain": "Gantt chart of host · 1a2b3c4d"}
    shown = {"image/png": {"alt": "bars", "width": 700, "height": 300}}
    output = new_output("display_data", data, metadata=shown)
    return cell_of("code", "par.plots.gantt(timeline)", "slide", [output])


@pytest.fixture
def with_a_timeline(tmp_path, monkeypatch):
    """A lesson whose timeline was kept."""
    path = saved(tmp_path, gantt_cell())
    monkeypatch.setattr(states, "STATES", tmp_path / "kept")
    ((cell_id, key),) = states.keys(nbformat.read(path, 4)).items()
    folder = states.folder_of(path, cell_id)
    folder.mkdir(parents=True)
    timeline = Timeline("simulated", [Span("host", "main", "host", "it", 0.0, 1.0)])
    packed = page_data.packed(timeline.clock, timeline.spans)
    (folder / timelines.FILE).write_text(json.dumps({"key": key, "packed": [packed]}))
    return path


def test_a_timeline_that_was_kept_is_on_its_slide(with_a_timeline):
    (cell,) = slides.prepared(with_a_timeline, []).cells
    assert 'class="timeline-view"' in cell.outputs[0].data["text/html"]
    assert f"base64,{PIXEL}" in cell.outputs[0].data["text/html"]


def test_a_script_cannot_end_its_element():
    assert (
        slides.script("a = '</script>'; b = '</SCRIPT>'") == r"a = '<\/script>'; b = '<\/SCRIPT>'"
    )


def test_an_unknown_lesson_is_named():
    with pytest.raises(SystemExit, match="no lesson 42: there are 00, 01"):
        slides.chosen(["3", "42"])
    assert [path.name[:2] for path in slides.chosen(["3"])] == ["03"]


# In a browser


@pytest.fixture
def context(browser):
    context = browser.new_context(viewport=SCREEN, offline=True)
    yield context
    context.close()


def opened(context, path: Path, file: Path):
    """The page with the slides of the notebook at `path`, and all that went wrong on it."""
    file.write_text(slides.page(path, {lesson.stem for lesson in LESSONS}), encoding="utf-8")
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.on("request", lambda request: wrong.append(request.url[:100]) if remote(request) else None)
    page.goto(file.as_uri())
    page.wait_for_function("() => window.Reveal?.isReady()")
    return page, wrong


def remote(request) -> bool:
    return not request.url.startswith(("file:", "data:"))


def unfit(found: dict) -> bool:
    """Whether a slide is larger than the screen, or smaller written than can be read."""
    return (
        found["right"] > WIDTH
        or found["bottom"] > HEIGHT
        or found["prose"] < SMALLEST_PX
        or found["code"] < SMALLEST_CODE_PX
    )


@in_chromium
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_slide_of_a_lesson_fits_and_needs_no_network(context, tmp_path, path):
    page, wrong = opened(context, path, tmp_path / "slides.html")
    found = page.evaluate(MEASURE)
    assert wrong == []
    assert [slide for slide in found if unfit(slide) or slide["broken"]] == []
    assert [slide for slide in found if not slide["text"] and not slide["pictures"]] == []
    notebook = nbformat.read(path, as_version=4)
    starts = [
        cell.metadata.slideshow.slide_type in ("slide", "subslide") for cell in notebook.cells
    ]
    assert len(found) >= sum(starts)
    pictures = sum(
        "image/png" in output.get("data", {})
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert sum(slide["pictures"] for slide in found) >= pictures


@in_chromium
def test_a_timeline_is_touched_in_the_place_of_its_picture(context, with_a_timeline, tmp_path):
    page, wrong = opened(context, with_a_timeline, tmp_path / "slides.html")
    page.locator("figure.timeline-view img").press("Enter")
    page.locator("figure.timeline-view canvas").focus()
    page.keyboard.press("ArrowRight")
    assert "it" in page.locator("figure.timeline-view [role=status]").inner_text()
    assert not wrong


@in_chromium
def test_what_is_too_high_is_cut_and_nothing_of_it_is_lost(context, tmp_path):
    code = "\n".join(f"line_{number} = {number}" for number in range(15))
    lines = "".join(f"output {number}\n" for number in range(70))
    items = "\n".join(f"{number}. item {number}" for number in range(1, 41))
    path = saved(
        tmp_path,
        cell_of("markdown", "# A lesson\n\ntext", "slide"),
        cell_of("code", code, "fragment", printed(lines)),
        cell_of("markdown", f"## Items\n\n{items}", "slide"),
        cell_of("code", "x = " + "1 + " * 40 + "1", "fragment"),
    )
    page, wrong = opened(context, path, tmp_path / "slides.html")
    found = page.evaluate(MEASURE)
    assert wrong == []
    assert len(found) >= 5
    assert [slide for slide in found if unfit(slide)] == []
    parts = "() => [...document.querySelectorAll('.slides :is(li, pre)')].map(e => e.textContent)"
    words = " ".join(" ".join(page.evaluate(parts)).split()) + " "
    asked = {"output {} ": range(70), "item {} ": range(1, 41), "line_{} ": range(15)}
    for part, numbers in asked.items():
        assert [number for number in numbers if words.count(part.format(number)) != 1] == []
    firsts = page.evaluate("() => [...document.querySelectorAll('ol')].map(list => list.start)")
    counts = page.evaluate("() => [...document.querySelectorAll('ol')].map(l => l.children.length)")
    assert firsts == [1 + sum(counts[:index]) for index in range(len(counts))]


@in_chromium
def test_a_slide_that_cannot_be_cut_is_found_too_large(context, tmp_path):
    rows = "\n".join(f"| {number} | b |" for number in range(60))
    path = saved(
        tmp_path,
        cell_of("markdown", "# Fits", "slide"),
        cell_of("markdown", f"## Too high\n\n| a | b |\n|---|---|\n{rows}", "slide"),
        cell_of("markdown", f"## Too wide\n\n{'n' * 200}", "slide"),
        cell_of("markdown", '## Too small\n\n<p style="font-size: 9px">fine print</p>', "slide"),
    )
    page, _ = opened(context, path, tmp_path / "slides.html")
    found = page.evaluate(MEASURE)
    bad = [slide["text"].split("\n")[0] for slide in found if unfit(slide)]
    assert {"Too wide", "Too small"} <= set(bad)
    assert any(slide["bottom"] > HEIGHT for slide in found)
    assert "Fits" not in bad


@in_chromium
def test_an_answer_is_revealed_and_notes_are_the_speakers(context, tmp_path):
    path = saved(
        tmp_path,
        cell_of("markdown", "# Guess", "slide"),
        cell_of("code", "guess = par.predict('How many?')", "-", printed("How many?")),
        cell_of("markdown", "Ask: who dares? (2 min)", "notes"),
        cell_of("code", "guess.beside(42)", "-", printed("The answer is 42.")),
    )
    page, wrong = opened(context, path, tmp_path / "slides.html")
    shown = page.locator(".slides")
    answer, note = shown.get_by_text("The answer is 42."), shown.get_by_text("who dares?")
    opacity = "element => getComputedStyle(element.closest('.fragment')).opacity"
    assert shown.get_by_text("beside").is_visible()
    assert answer.evaluate(opacity) == "0"
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"element => ({opacity})(element) === '1'", arg=answer.element_handle())
    assert not note.is_visible()
    with context.expect_page() as speaker:
        page.keyboard.press("s")
    notes = speaker.value.locator(".speaker-controls-notes")
    notes.get_by_text("who dares? (2 min)").wait_for()
    assert wrong == []
