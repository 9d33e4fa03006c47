"""Pages of each kind of the site, as readers see them: on a telephone, in the dark, by keyboard."""

import functools
import http.server
import shutil
import threading

import nbformat
import pytest
from book import __main__ as book
from book import pages, plan_page, render, search
from lab_in_browser import in_chromium

NOTEBOOKS = (
    "00_start_here.ipynb",  # with a timeline, if its figures were drawn
    "04_multi_gpu_from_scratch.ipynb",  # with a picture of pyplot's
    "03_auto_parallelism.ipynb",  # with wide code, pictures and a formula
    "museum/01_only_rank_0.ipynb",
)
IN_CHINESE = ("zh", "docs/zh/run-your-own-program")
PAGES = ("index", "plan", "search", *IN_CHINESE, *(f"notebooks/{path[:-6]}" for path in NOTEBOOKS))
WINDOWS = ((1280, 720), (640, 360), (390, 800))  # a screen, the same at 200 %, a telephone
MOST_TABS = 150

# Pictures without a text, headings that leave a level out, names that are there twice, and text
# that is hardly darker, or lighter, than what it stands on (below 4.5 to 1, and 3 to 1 if large).
FAULTS = """() => {
    const found = [], levels = [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')];
    for (const image of document.images) {
        const said = image.alt && !image.src.endsWith(image.alt.split('/').pop());  // its file
        if (!said && !image.closest('.card')) found.push(`no text: ${image.outerHTML}`);
        if (image.complete && !image.naturalWidth) found.push(`no picture: ${image.outerHTML}`);
    }
    levels.map(one => +one.tagName[1]).reduce((before, level, i) => {
        if (level > before + 1) found.push(`a level is left out: ${levels[i].textContent}`);
        return level;
    }, 0);
    const names = [...document.querySelectorAll('[id]')].map(one => one.id);
    found.push(...names.filter((id, i) => names.indexOf(id) < i).map(id => `twice: ${id}`));
    const parts = color => color.match(/[\\d.]+/g).map(Number);
    const light = rgb => rgb.slice(0, 3).map(part => part / 255)
        .map(part => part <= 0.04 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0.05);
    const ground = one => {
        const rgba = one ? parts(getComputedStyle(one).backgroundColor) : [255, 255, 255];
        return rgba[3] < 1 ? ground(one.parentElement) : rgba;
    };
    for (const one of document.querySelectorAll('body *')) {
        const written = [...one.childNodes].some(part => part.nodeType === 3 && part.data.trim());
        if (!written || !one.checkVisibility()) continue;
        const style = getComputedStyle(one), size = parseFloat(style.fontSize);
        const color = one.closest('svg') ? style.fill : style.color;
        const [low, high] = [parts(color), ground(one)].map(light).sort((a, b) => a - b);
        const least = size >= 24 ? 3 : 4.5;
        if (high / low < least) found.push(`${high / low} to 1: ${one.outerHTML.slice(0, 200)}`);
    }
    return found;
}"""
BESIDE = """() => {
    const {scrollWidth, clientWidth} = document.documentElement;
    return scrollWidth - clientWidth;
}"""
# What Tab has come to: its name, whether it can be seen, and whether that shows where one is.
FOCUSED = """() => {
    const one = document.activeElement, style = getComputedStyle(one);
    const shown = one.querySelector('img') ?? one;  // a link around it is only as high as a line
    if (one === document.body || one.dataset.seen) return null;
    one.dataset.seen = 'yes';
    const {top, bottom, left, right} = shown.getBoundingClientRect();
    const inView = bottom > 0 && top < innerHeight && right > 0 && left < innerWidth;
    const ring = style.outlineStyle !== 'none' || one.matches('canvas');  // which draws its own
    return [one.outerHTML.slice(0, 100), inView, ring];
}"""
AT_ONCE = "* { scroll-behavior: auto !important; transition: none !important }"
# Without the link to the top, which is there only after one has scrolled up.
CONTROLS = """() => [...document.querySelectorAll('a[href], button, input, select, [tabindex]')]
    .filter(one => !one.matches('.back-to-top'))
    .filter(one => one.tabIndex >= 0 && one.type !== 'hidden' && !one.dataset.seen)
    .filter(one => one.checkVisibility({visibilityProperty: true}))
    .map(one => one.outerHTML.slice(0, 100))"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that does not report each of them."""

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of a site with the course's first page, a few others and its settings."""
    for name in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("site")
    source, extra = folder / "source", folder / "extra"
    for path in NOTEBOOKS:
        target = source / "notebooks" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(nbformat.writes(pages.page(pages.NOTEBOOKS / path)[0]), encoding="utf-8")
    shutil.copytree(pages.IMAGES, source / pages.IMAGES.name)
    pages.write_guides(source)
    plan_page.write_page(source, extra)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(book, "EXTRA", extra)
        (source / "index.md").write_text(book.index(0, 0), encoding="utf-8")
        (source / "zh.md").write_text(book.front_in("zh"), encoding="utf-8")
    search.write_scorer(folder / "scorer.js", [], pages.ROOT, last=book.REFERENCE)
    settings = {"html_extra_path": extra, "html_search_scorer": folder / "scorer.js"}
    # It lacks pages that others lead to.
    settings |= {"suppress_warnings": "toc,myst.xref_missing,myst.header", "nitpicky": 0}
    render.run_sphinx(source, folder / "built", folder / "doctrees", **settings)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=folder / "built")
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(browser, request):
    """A page of Chromium in the scheme of colours that the test asks for."""
    page = browser.new_page(color_scheme=getattr(request, "param", "light"))
    page.faults = []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("console", lambda said: page.faults.append(said.text) if said.type == "error" else None)
    yield page
    page.close()


@in_chromium
@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
@pytest.mark.parametrize("name", PAGES)
def test_it_can_be_read_in_every_window_and_by_ear(site, page, name):
    page.goto(f"{site}/{name}.html")
    found = page.evaluate(FAULTS)
    for width, height in WINDOWS:
        page.set_viewport_size({"width": width, "height": height})
        beside_px = page.evaluate(BESIDE)
        found += [f"{beside_px} px wider than {width}"] if beside_px > 0 else []
    assert found + page.faults == []


@in_chromium
@pytest.mark.parametrize(("width", "height"), WINDOWS)
@pytest.mark.parametrize("name", PAGES)
def test_keys_reach_all_of_it_and_show_where_one_is(site, page, name, width, height):
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"{site}/{name}.html")
    page.add_style_tag(content=AT_ONCE)
    found = []
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        reached = page.evaluate(FOCUSED)
        if reached is None:
            break
        found += [] if all(reached[1:]) else [reached]
    assert found == []
    assert page.evaluate(CONTROLS) == []


@in_chromium
@pytest.mark.parametrize(
    ("icon", "drawer"),
    [(".nav-overlay-icon", ".sidebar-drawer"), (".toc-header-icon", ".toc-drawer")],
)
def test_a_drawer_opens_and_closes_by_keys(site, page, icon, drawer):
    page.set_viewport_size({"width": 640, "height": 360})
    page.goto(f"{site}/notebooks/03_auto_parallelism.html")
    page.locator(icon).focus()
    page.keyboard.press("Enter")
    assert page.locator(drawer).evaluate("one => one.contains(document.activeElement)")
    page.keyboard.press("Escape")
    page.locator(drawer).wait_for(state="hidden")
    assert page.locator(icon).evaluate("one => one === document.activeElement")


@in_chromium
def test_the_search_puts_a_lesson_first(site, page):
    page.goto(f"{site}/index.html")
    page.get_by_placeholder("Search").fill("stream")
    page.keyboard.press("Enter")
    first = page.locator("#search-results li a").first
    first.wait_for()
    assert "03_auto_parallelism" in first.get_attribute("href")
