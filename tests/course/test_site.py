"""The site: pages from stored outputs, figures that move without a kernel, links that lead on."""

import hashlib
import http.server
import json
import re
import runpy
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import ipywidgets
import nbformat
import pytest
from book import __main__ as book
from book import front, links, pages, render, search, states, timelines, validation
from lab_in_browser import in_chromium
from PIL import Image, ImageChops

import d2lpar as par

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / "notebooks").glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
]


def line(ax, slope=2, sign="plus"):
    """A line"""
    ax.plot([0, 1], [0, slope if sign == "plus" else -slope])


@pytest.fixture
def stored(tmp_path):
    """A figure with a slider and a list, and the folder with its states."""
    figure = par.plots.slider_figure(line, slope=(1, 4), sign=["plus", "minus"], size_px=(200, 120))
    states.store(figure, str(tmp_path / "states"), "a key")
    return figure, tmp_path / "states"


def known(folder):
    return json.loads((folder / "states.json").read_text())


# The first page


def test_it_promises_that_sliders_move_only_where_they_do():
    still, some, moving = (book.index(4, n) for n in (0, 3, 4))
    assert "slider" not in still
    assert "some sliders move" in some
    assert "sliders move" in moving
    assert "some sliders" not in moving


# The validation table


def test_each_column_of_errors_stands_under_its_title():
    page = "\n".join(validation.lines(par.validation.recorded()))
    head, _, first, *_ = page.partition("## By group\n\n")[2].splitlines()
    shown = dict(zip(*(line.strip("| ").split(" | ") for line in (head, first)), strict=True))
    errors = par.validation.recorded().by_group[shown["rows of"]]
    assert shown["number"] == str(errors.rows)
    assert shown["sources"] == str(errors.sources)
    assert shown["median error"] == f"{errors.median:.1%}"
    assert shown["bias"] == f"{errors.bias:+.1%}"
    assert shown["skill"] == f"{errors.skill:.2f}"


def test_a_row_that_does_not_fit_its_head_is_refused():
    with pytest.raises(ValueError, match="1 cells under 2"):
        list(validation.table(("a", "b"), [("1",)]))


# States


def test_a_figure_gets_a_picture_for_each_of_its_states(stored):
    _, folder = stored
    found = known(folder)
    assert [control["label"] for control in found["controls"]] == ["slope", "sign"]
    assert set(found["states"]) == {f"{i} {j}" for i in range(4) for j in range(2)}
    assert len({state["file"] for state in found["states"].values()}) == 8
    assert "slope 4, sign minus" in found["states"]["3 1"]["alt"]


def test_the_state_at_the_start_is_the_picture_that_the_notebook_shows(stored, tmp_path):
    figure, folder = stored
    found = known(folder)
    place = " ".join(str(control["start"]) for control in found["controls"])
    (tmp_path / "shown.png").write_bytes(figure.png)
    with (
        Image.open(tmp_path / "shown.png") as shown,
        Image.open(folder / found["states"][place]["file"]) as state,
        Image.open(folder / found["states"]["0 0"]["file"]) as other,
    ):
        shown = shown.convert("RGB")
        assert not ImageChops.difference(shown, state.convert("RGB")).getbbox()
        assert ImageChops.difference(shown, other.convert("RGB")).getbbox()


def test_a_slider_keeps_its_ends_and_its_start():
    assert states.thinned(range(101), start=33, count=5) == [0, 33, 50, 75, 100]
    assert states.thinned(range(3), start=1, count=9) == [0, 1, 2]


def test_where_all_combinations_are_too_many_one_slider_moves_at_a_time():
    controls = [
        ipywidgets.Dropdown(options=list("abcd")),
        *(ipywidgets.IntSlider(min=1, max=20, value=3) for _ in range(3)),
    ]
    wanted = states.positions(controls)
    found = list(states.places(controls, wanted))
    starts = [states.start_of(*pair) for pair in zip(controls, wanted, strict=True)]
    assert len(found) <= states.MOST_STATES
    assert {place[0] for place in found} == {0, 1, 2, 3}
    moved = [sum(i != s for i, s in zip(p[1:], starts[1:], strict=True)) for p in found]
    assert set(moved) == {0, 1}


def test_a_control_without_positions_is_refused():
    with pytest.raises(TypeError, match="Text has no positions"):
        states.options(ipywidgets.Text())


# Pages


def notebook_with(*cells):
    return nbformat.v4.new_notebook(cells=list(cells), metadata=pages.build.METADATA)


def slider_cell():
    fallback = nbformat.v4.new_output(
        "display_data", {"text/plain": "Run this cell to move the sliders: slope 2, sign plus"}
    )
    picture = nbformat.v4.new_output("display_data", {"image/png": "iVBO", "text/plain": "A line"})
    return nbformat.v4.new_code_cell("figure(x)", id="it", outputs=[fallback, picture])


def test_states_of_code_that_has_changed_are_not_shown(stored, tmp_path, monkeypatch):
    path = tmp_path / "notebooks" / "01_a.ipynb"
    monkeypatch.setattr(states, "STATES", tmp_path / "build")
    key = states.keys(notebook_with(nbformat.v4.new_code_cell("x = 1"), slider_cell()))["it"]
    other = states.keys(notebook_with(nbformat.v4.new_code_cell("x = 2"), slider_cell()))["it"]
    folder = states.folder_of(path, "it")
    shutil.copytree(stored[1], folder)
    (folder / "states.json").write_text(json.dumps(known(folder) | {"key": key}))
    assert pages.load_states(path, "it", key)["states"]
    assert pages.load_states(path, "it", other) is None


def test_a_figure_without_states_says_so(stored):
    still = list(pages.still_or_moving(slider_cell().outputs, None, "../"))
    assert "slope 2, sign plus" in still[0]["data"]["text/plain"]
    assert "image/png" in still[1]["data"]
    [moving] = pages.still_or_moving(slider_cell().outputs, known(stored[1]), "../")
    page = moving["data"]["text/html"]
    assert page.count('type="range"') == 1
    assert page.count("<option") == 2
    assert 'alt="A line · slope 2, sign plus"' in page


ADDRESS = "https://code.example/someone/course"


def test_links_to_what_is_no_page_lead_to_the_repository(monkeypatch):
    monkeypatch.setattr(pages.build, "repository", lambda: ADDRESS)
    path = ROOT / "notebooks" / "06_distributed_sgd.ipynb"
    text = "[a](scripts/README.md) [b](07_pipelining.ipynb) [c](https://x.org/y) [d](#e) [f](none)"
    address = f"{ADDRESS}/blob/main/notebooks/scripts/README.md"
    assert pages.with_links(text, path) == text.replace("scripts/README.md", address)


def test_without_an_address_links_to_what_is_no_page_are_text(monkeypatch):
    monkeypatch.setattr(pages.build, "repository", lambda: None)
    path = ROOT / "notebooks" / "06_distributed_sgd.ipynb"
    text = "[a](scripts/README.md) [b](07_pipelining.ipynb) ![c](../imgs/ring.png) [d](#e)"
    assert pages.with_links(text, path) == text.replace("[a](scripts/README.md)", "a")


def test_guides_lead_to_pages_of_the_site_and_files_to_the_repository(tmp_path, monkeypatch):
    monkeypatch.setattr(pages.build, "repository", lambda: ADDRESS)
    pages.write_guides(tmp_path)
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.md")}
    assert written == {path.relative_to(ROOT) for path in pages.GUIDES.rglob("*.md")}
    text = (
        "[a](for-a-class.md#homework) [b](../notebooks/07_pipelining.ipynb) [c](../imgs/ring.png) "
        "[d](../d2lpar/validation/published.csv) [e](../AGENTS.md)"
    )
    shown = text.replace("../d2lpar/validation/published.csv", "../validation.md")
    shown = shown.replace("../AGENTS.md", f"{ADDRESS}/blob/main/AGENTS.md")
    assert pages.with_links(text, pages.GUIDES / "on-a-hub.md") == shown


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_links_of_texts_lead_to_files_of_the_repository(path):
    found = pages.LINK.findall(path.read_text(encoding="utf-8"))
    assert found
    for address in found:
        assert (path.parent / address).exists(), address


def test_a_page_leads_to_itself_in_the_other_language():
    lessons = ROOT / "notebooks"
    english, chinese = (lessons / f / "04_multi_gpu_from_scratch.ipynb" for f in ("", "zh"))
    assert list(pages.other_languages(english)) == ["[中文](zh/04_multi_gpu_from_scratch.ipynb)"]
    assert list(pages.other_languages(chinese)) == ["[English](../04_multi_gpu_from_scratch.ipynb)"]
    for path in (english, chinese):
        notebook, _ = pages.page(path)
        links = [cell.source for cell in notebook.cells[:4] if cell.id == "languages"]
        assert links == list(pages.other_languages(path))
    assert pages.language_of(chinese) == "zh"


TREE = """
<ul><li class="toctree-l1"><a href="../00.html">00 Start</a></li>
<li class="toctree-l1 has-children"><a href="../../zh.html">中文</a><input/><ul>
<li class="toctree-l2"><a href="00.html">00 开始</a></li>
<li class="toctree-l2 has-children"><a href="museum/README.html">博物馆</a><input/><ul>
<li class="toctree-l3"><a href="museum/01.html">01</a></li></ul></li></ul></li></ul>
"""


@pytest.mark.parametrize("own", ["../../zh.html", "#"])
def test_the_sidebar_of_a_language_lists_the_pages_of_that_language_alone(own):
    settings = theme_settings()
    tree = TREE.replace("../../zh.html", own)
    if own == "#":  # on the first page itself
        tree = tree.replace("toctree-l1 has", "toctree-l1 current has")
    shown = settings.part_of(tree, "zh")
    assert re.findall(r"<a[^>]*>(.*?)</a>", shown) == ["00 开始", "博物馆", "01"]
    assert re.findall(r"toctree-l(\d)", shown) == ["1", "1", "2"]


@pytest.mark.parametrize(
    "page", ["zh", "notebooks/zh/04_multi_gpu_from_scratch", "docs/zh/on-a-hub"]
)
def test_what_stands_around_a_page_is_in_its_language(page):
    context = {"furo_navigation_tree": TREE}
    theme_settings().in_its_language(None, page, "page.html", context, None)
    assert context["language"] == context["master_doc"] == "zh"
    theme = Path(pytest.importorskip("furo").__file__).parent / "theme"
    shown = "".join(path.read_text("utf-8") for path in theme.rglob("page.html"))
    words = [*re.findall(r'_\("([A-Z][^"]+)"\)', shown), "Search", context["docstitle"]]
    assert len(words) > 4
    for word in words:
        assert re.search("[\u4e00-\u9fff]", context["gettext"](word)), word


@pytest.mark.parametrize(
    "page", ["index", "notebooks/04_multi_gpu_from_scratch", "reference/index"]
)
def test_what_stands_around_an_english_page_is_the_themes_own(page):
    context = {"furo_navigation_tree": TREE}
    theme_settings().in_its_language(None, page, "page.html", context, None)
    assert context == {"furo_navigation_tree": TREE, "language": "en"}


def theme_settings():
    for name in ("sphinx", "furo"):
        pytest.importorskip(name)
    return SimpleNamespace(**runpy.run_path(str(render.SETTINGS / "conf.py")))


def test_links_to_headings_have_the_names_of_the_site():
    path = ROOT / "notebooks" / "06_distributed_sgd.ipynb"
    text = "[a](#Which-split,-first?) [b](07_pipelining.ipynb#The-rule) [c](https://x.org/y#Z)"
    shown = "[a](#which-split-first) [b](07_pipelining.ipynb#the-rule) [c](https://x.org/y#Z)"
    assert pages.with_links(text, path) == shown


@pytest.mark.parametrize("repository", [ADDRESS, None])
def test_a_page_has_no_cells_that_only_a_kernel_needs(monkeypatch, repository):
    monkeypatch.setattr(pages.build, "repository", lambda: repository)
    for path in pages.build.course(pages.NOTEBOOKS):
        notebook, _ = pages.page(path)
        assert not any({"install", "navigation"} & set(pages.tags(c)) for c in notebook.cells)
        assert any(pages.is_title(cell) for cell in notebook.cells)
        text = "".join(cell.source for cell in notebook.cells)
        assert ("Open in [Colab]" in text) == (repository is not None)


# Timelines


def timeline_cell(*texts):
    shown = {"image/png": {"alt": "bars", "width": 700, "height": 300}}
    outputs = [
        nbformat.v4.new_output(
            "display_data", {"image/png": "iVBO", "text/plain": text}, metadata=shown
        )
        for text in texts
    ]
    return nbformat.v4.new_code_cell("par.plots.gantt(timeline)", id="it", outputs=outputs)


def test_timelines_of_a_notebook_that_has_run_take_the_place_of_their_pictures(tmp_path):
    cell = timeline_cell("Gantt chart of host", "A curve", "Gantt chart of vgpu:0")
    for output, model in zip(cell.outputs, ("a", "b", "c"), strict=True):
        output.data[timelines.WIDGET_VIEW] = {"model_id": model}
    models = {name: {"state": {"packed": f"packed {name}"}} for name in "abc"}
    notebook = notebook_with(cell)
    notebook.metadata["widgets"] = {timelines.STATE: {"state": models}}
    timelines.store(notebook, cell, tmp_path, "a key")
    packed = timelines.load(tmp_path, "a key")
    assert packed == ["packed a", "packed c"]
    assert timelines.load(tmp_path, "another key") == []
    first, curve, last = timelines.touchable(cell.outputs, packed)
    assert 'data-packed="packed a"' in first["data"]["text/html"]
    assert 'alt="bars" width="700"' in first["data"]["text/html"]
    assert curve == cell.outputs[1]
    assert 'data-packed="packed c"' in last["data"]["text/html"]


def test_without_what_was_kept_a_timeline_is_a_picture():
    cell = timeline_cell("Gantt chart of host")
    assert list(timelines.touchable(cell.outputs, [])) == cell.outputs


# The first page


def test_each_lesson_of_the_readme_has_a_card_that_leads_to_its_page(tmp_path):
    text = front.cards((ROOT / "README.md").read_text(), tmp_path, "figures/")
    lessons = {path.stem for path in pages.build.lessons_in(pages.NOTEBOOKS)}
    assert set(re.findall(r'href="notebooks/(\w+)\.html"', text)) == lessons
    written = {f"figures/{file.name}" for file in tmp_path.iterdir()}
    assert set(re.findall(r'src="([^"]+)"', text)) == written
    assert len(written) > len(lessons) / 2


def test_the_first_page_has_a_timeline_or_a_picture_of_one(monkeypatch, tmp_path):
    monkeypatch.setattr(states, "STATES", tmp_path)
    assert "figures/step_in_time.gif" in front.timeline(tmp_path, "figures/")
    assert (tmp_path / "step_in_time.gif").exists()
    notebook = pages.read(front.SHOWN)
    cell = next(filter(timelines.has_timelines, notebook.cells))
    folder = states.folder_of(front.SHOWN, cell.id)
    folder.mkdir(parents=True)
    kept = {"key": states.keys(notebook)[cell.id], "packed": ["kept"]}
    (folder / timelines.FILE).write_text(json.dumps(kept))
    assert 'data-packed="kept"' in front.timeline(tmp_path, "figures/")


# Search


def test_a_word_leads_to_the_lesson_that_has_most_to_say_of_it():
    found = search.most_of({"a": "bubble bubbles bubble", "b": "bubbles link link link"})
    assert found == {"bubble": "a", "link": "b"}
    lessons = pages.build.lessons_in(pages.NOTEBOOKS)
    most = search.most_of({path.stem: search.text_of(path) for path in lessons})
    assert most["bubble"] == "07_pipelining"
    assert most["roofline"] == "01_hardware"


# Links


@pytest.mark.parametrize(
    ("address", "leads"),
    [
        ("b/two.html", True), ("b/two.html#place", True), ("b", False), ("#here", True),
        ("b/two.html#nowhere", False), ("three.html", False), ("https://x.org", True),
        ("../outside.html", False),
    ],
)  # fmt: skip
def test_links_are_followed_to_the_place(tmp_path, address, leads):
    site = tmp_path / "site"
    (site / "b").mkdir(parents=True)
    (tmp_path / "outside.html").write_text("")
    (site / "b" / "two.html").write_text('<p id="place">')
    (site / "one.html").write_text(f'<p id="here"><a href="{address}">')
    assert list(links.broken(site)) == ([] if leads else [(site / "one.html", address)])


def test_what_a_browser_would_fetch_elsewhere_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<script src="https://x.org/a.js"></script><a href="https://y.org">'
    )
    assert links.fetched(tmp_path) == ["https://x.org/a.js"]
    assert links.external(tmp_path) == ["https://x.org/a.js", "https://y.org"]


# The whole


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site of one page with a figure, by Sphinx with the course's settings, and its server."""
    for name in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("site")
    figure = par.plots.slider_figure(line, slope=(1, 4), sign=["plus", "minus"], size_px=(200, 120))
    states.store(figure, str(folder / "extra" / pages.FIGURES), "a key")
    data, metadata = figure.picture.bundle(figure.png)
    still = nbformat.v4.new_output("display_data", data, metadata=metadata)
    shown = pages.figure(known(folder / "extra" / pages.FIGURES), "")
    moving = nbformat.v4.new_output("display_data", {"text/html": shown})
    cells = [
        nbformat.v4.new_markdown_cell("# A page\n\n$$a \\le b$$"),
        nbformat.v4.new_code_cell("1", outputs=[still]),
        nbformat.v4.new_code_cell("2", outputs=[moving]),
    ]
    (folder / "source").mkdir()
    (folder / "source" / "index.ipynb").write_text(nbformat.writes(notebook_with(*cells)))
    settings = ["-c", ROOT / "tools" / "book" / "sphinx", "-D", f"html_extra_path={folder}/extra"]
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", *settings]
    subprocess.run([*command, folder / "source", folder / "built"], check=True)
    return folder / "built", hashlib.sha256(figure.png).hexdigest()


@pytest.mark.slow
def test_pictures_have_their_texts_and_nothing_is_fetched(site):
    built, name = site
    page = (built / "index.html").read_text(encoding="utf-8")
    [image] = re.findall(rf'<img[^>]*src="_images/{name}.png"[^>]*>', page)
    assert 'alt="A line · slope 2, sign plus"' in image
    assert "<math" in page
    assert links.fetched(built) == []
    assert list(links.broken(built)) == []


@in_chromium
def test_sliders_move_without_a_kernel(site, browser):
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=site[0])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        page = browser.new_page(viewport={"width": 400, "height": 800})
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        image = page.locator("figure.drawn-before img")
        before = image.get_attribute("src")
        page.get_by_label("slope").press("ArrowRight")
        assert image.get_attribute("src") != before
        assert image.get_attribute("alt") == "A line · slope 3, sign plus"
        page.get_by_label("sign").select_option("minus")
        assert image.get_attribute("alt") == "A line · slope 3, sign minus"
        assert image.evaluate("async image => (await image.decode(), image.naturalWidth)") == 400
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
    finally:
        server.shutdown()
        server.server_close()


@in_chromium
@pytest.mark.parametrize(("before_px", "scrolls"), [(900, True), (20, False)])
def test_the_sidebar_shows_the_entry_of_the_page(browser, before_px, scrolls):
    page = browser.new_page()
    page.set_content(
        '<div class="sidebar-scroll" style="height: 200px; overflow: auto">'
        f'<div style="height: {before_px}px"></div><a class="current-page">here</a>'
        '<div style="height: 900px"></div></div>'
    )
    page.add_script_tag(path=render.SETTINGS / "static" / "sidebar.js", type="module")
    page.wait_for_timeout(100)
    sidebar, entry = (page.locator(f".{name}") for name in ("sidebar-scroll", "current-page"))
    assert (sidebar.evaluate("bar => bar.scrollTop") > 0) == scrolls
    assert entry.bounding_box()["y"] < sidebar.bounding_box()["y"] + 200
    page.close()
