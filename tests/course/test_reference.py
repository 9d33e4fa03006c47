"""The API reference: every public name once, and docstrings that are wrong are errors."""

import ast
import re
from collections import Counter

import pytest
from book import links, pages, render, search
from lab_in_browser import in_chromium

pytest.importorskip("griffe")
from book.reference import names
from book.reference import pages as reference

DIRECTIVE = re.compile(r"^(`{3,})\{py:(\w+)\} (\w[\w.]*)", re.MULTILINE)
NOT_NAMES = {"data", "attribute"}  # a constant is told of if something is said of it


def told_of(folder):
    """(path, its kind) of everything that the pages of a folder tell of, and on which page."""
    for page in folder.glob("*.md"):
        module, around = "", []
        for fence, kind, name in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            if kind == "module":
                module, around = name, []
            else:
                around = [(other, outer) for other, outer in around if len(other) > len(fence)]
                yield ".".join([module, *(outer for _, outer in around), name]), kind, page.stem
                around.append((fence, name))


def defined(body, inside):
    """The public functions and classes of a body of source, with those of its classes."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from defined(node.body, inside)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name.startswith("_"):
                continue
            yield f"{inside}.{node.name}"
            if isinstance(node, ast.ClassDef):
                yield from defined(node.body, f"{inside}.{node.name}")


def write(folder, **modules):
    """A package `some` with modules of these texts; returns its folder."""
    package = folder / "some"
    package.mkdir()
    for name, text in ({"__init__": '"""A package."""\n'} | modules).items():
        (package / f"{name}.py").write_text(text)
    return package


def page_of(tmp_path, **modules):
    reference.write_pages(tmp_path / "pages", write(tmp_path, **modules))
    return (tmp_path / "pages" / "index.md").read_text()


# The package's own


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The pages of the reference of d2lpar."""
    folder = tmp_path_factory.mktemp("reference")
    assert reference.write_pages(folder) == len(list(folder.iterdir()))
    return folder


def test_every_public_name_is_on_the_page_of_its_room_once(course):
    wanted = {}
    for path in reference.PACKAGE.rglob("*.py"):
        parts = path.relative_to(reference.PACKAGE.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts):
            room = ".".join(path.parent.relative_to(reference.PACKAGE.parent).parts)
            for name in defined(ast.parse(path.read_text()).body, ".".join(parts)):
                wanted[name] = "index" if room == "d2lpar" else room
    told = list(told_of(course))
    assert max(Counter(path for path, _, _ in told).values()) == 1
    assert {path: page for path, kind, page in told if kind not in NOT_NAMES} == wanted


def test_the_first_page_leads_from_the_names_of_a_lesson_to_their_rooms(course):
    text = (course / "index.md").read_text()
    assert "{py:obj}`par.run_ranks <d2lpar.vgpu.ranks.launcher.run_ranks>`" in text
    assert "{py:obj}`par.plots <d2lpar.plots>`" in text
    assert "{py:mod}`vgpu/ <d2lpar.vgpu>`" in text
    assert "{py:obj}`Clock.copy <d2lpar.vgpu.sim.clock.Clock.copy>`" in text


def test_all_links_of_pages_lead_to_what_is_told_of(course):
    places = {path for path, _, _ in told_of(course)}
    texts = [page.read_text() for page in course.iterdir()]
    places |= {name for text in texts for name in re.findall(r"\{py:module\} (\S+)", text)}
    found = {target for text in texts for target in re.findall(r"\{py:\w+\}`[^`<]+<(.+?)>`", text)}
    assert len(found) > 200
    assert found <= places


# A small one

FUNCTIONS = '''
"""Some functions."""
from . import shapes
from .shapes import Shape

LIMIT_S = 3  # how long `area` may take
SILENT = 4

def area(shape: Shape, *, scale: float = 1.0, **others: shapes.Shape) -> list[Shape]:
    """The area of a `shape`, beside `volume` and `other`.

    Args:
        shape: any `Shape`, even
            a long one.
        scale: how large.

    Raises:
        ValueError: it has none.

    Returns:
        One for each.
    """

def volume(shape: Shape) -> float:
    """As `shapes.Shape.size` and `some.functions.area` say, and `nothing.at.all` of a <shape>."""

def _hidden():
    """Not told of."""
'''
SHAPES = '''
"""Some shapes."""
from dataclasses import dataclass

@dataclass
class Shape:
    """A shape of a `size`.

    Attributes:
        sides: how many.
    """

    sides: int = 3

    @property
    def size(self) -> float:
        """How large it is, by `grow`."""

    @classmethod
    def made(cls) -> "Shape":
        """One."""

    def grow(self, by):
        """Add to its `size`."""

class Square(Shape):
    """One with four `sides`."""
'''


def test_signatures_sections_and_comments_are_sphinxs(tmp_path):
    text = page_of(tmp_path, functions=FUNCTIONS, shapes=SHAPES)
    shape = "some.shapes.Shape"
    signature = f"area(shape: {shape}, *, scale: float = 1.0, **others: {shape}) -> list[{shape}]"
    assert f"{{py:function}} {signature}\n" in text
    assert f":param shape: any {{py:obj}}`Shape <{shape}>`, even\n    a long one." in text
    assert ":raises ValueError: it has none." in text
    assert ":returns: One for each." in text
    assert (
        "{py:data} LIMIT_S\n:value: 3\n\nhow long {py:obj}`area <some.functions.area>` may take"
        in text
    )
    assert "{py:class} Shape(sides: int = 3)" in text
    assert "{py:property} size\n:no-contents-entry:\n:type: float" in text
    assert "{py:method} made()" in text.replace(f" -> {shape}", "")
    assert ":classmethod:" in text
    assert ":Attributes:\n    - `sides`: how many." in text
    assert f"Bases: {{py:obj}}`Shape <{shape}>`" in text
    assert "_hidden" not in text
    assert "SILENT" not in text


def test_names_lead_on_where_it_is_clear_what_they_mean(tmp_path):
    package = write(tmp_path, functions=FUNCTIONS, shapes=SHAPES)
    found = names.Names(names.load("some", package.parent))
    area, volume = (found.package[f"functions.{name}"] for name in ("area", "volume"))
    grow = found.package["shapes.Shape.grow"]
    assert found.meant("shape", area) is None  # its parameter
    assert found.meant("area", area) is None  # itself
    assert found.meant("volume", area) == "some.functions.volume"
    assert found.meant("Shape", area) == "some.shapes.Shape"
    assert found.meant("shapes.Shape.size", volume) == "some.shapes.Shape.size"
    assert found.meant("functions.area", grow) == "some.functions.area"  # which grow cannot see
    assert found.meant("size", grow) == "some.shapes.Shape.size"
    assert found.meant("volume", grow) is None
    assert found.meant("nothing.at.all", volume) is None


def test_two_names_with_one_end_lead_nowhere(tmp_path):
    twice = '"""One."""\nclass Same:\n    """A."""\n    def go(self):\n        """Go."""\n'
    user = '"""It uses `Same.go`."""\n'
    assert "<some." not in page_of(tmp_path, one=twice, two=twice, user=user)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('Args:\n        other: not there.\n    ', r"wrong\.py:\d+: Parameter 'other'"),
        ("As `some.nothing` says.", r"wrong\.py:2: `some\.nothing`"),
        ("As `par.nothing` says.", r"wrong\.py:2: `par\.nothing`"),
        ("Yields:\n        int: a number.\n    ", r"some\.wrong\.f: .*'yields'"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_docstring_is_an_error(tmp_path, text, message):
    module = f'"""A module."""\ndef f(one):\n    """A function.\n\n    {text}"""\n'
    with pytest.raises(ValueError, match=message):
        page_of(tmp_path, wrong=module)


# The whole


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The small package's reference, by Sphinx with the course's settings."""
    for name in render.NEEDED:
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("site")
    reference.write_pages(folder / "pages", write(folder, functions=FUNCTIONS, shapes=SHAPES))
    assert render.run_sphinx(folder / "pages", folder / "built", folder / "trees") == 0
    return folder / "built"


@pytest.mark.slow
def test_it_has_the_theme_of_the_course_and_links_in_signatures(site):
    page = (site / "index.html").read_text()
    assert "furo" in page
    signature = page[page.index('id="some.functions.area"') :].partition("</dt>")[0]
    assert 'href="#some.shapes.Shape"' in signature
    assert "some.shapes" not in re.sub(r"<[^>]+>", "", signature)
    assert "of a &lt;shape&gt;" in page
    assert list(links.broken(site)) == []
    assert links.fetched(site) == []


@pytest.mark.slow
def test_a_reference_to_what_is_not_there_is_an_error_of_sphinx(tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# A\n\n{py:obj}`it <d2lpar.nothing>`\n")
    assert render.run_sphinx(tmp_path / "pages", tmp_path / "built", tmp_path / "trees") == 1


@in_chromium
def test_the_search_puts_the_reference_last(tmp_path, browser):
    search.write_scorer(tmp_path / "s.js", [], pages.ROOT, last="reference")
    scores = (
        "[Scorer.score(['reference/a', '', '', '', 26]), Scorer.score(['museum/b', '', '', '', 2])]"
    )
    code = (tmp_path / "s.js").read_text().replace("const ", "var ")
    last, first = browser.new_page().evaluate(f"() => {{ {code}; return {scores} }}")
    assert last < first
