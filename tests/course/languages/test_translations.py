"""The course in other languages: nothing is missing or old, and it says what the English says."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import nbformat
import pytest
from translations import catalogues, cell_strings, generate, sheets
from translations.faults import faults, faults_of_message

from d2lpar.command.course import languages, notebook_file, working_copy
from d2lpar.command.course.command import main
from d2lpar.locale import columns

ROOT = Path(__file__).parents[3]
LANGUAGES = catalogues.languages()
NOTEBOOKS, PAGES = catalogues.notebooks(), catalogues.pages()
LINK = re.compile(r"\]\(([^)\s#]+)|<img[^>]* src=\"([^\"#]+)")


def test_chinese_is_there():
    assert "zh" in LANGUAGES


@pytest.mark.parametrize("language", LANGUAGES)
def test_everything_has_a_translation_of_its_present_english(language):
    left = [f"{notebook}: {cell}" for notebook, cell in generate.stale(language)]
    assert not left, f"make {language}-todo lists them; the first are {left[:5]}"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("notebook", [*NOTEBOOKS, *PAGES], ids=str)
def test_a_translation_says_what_the_english_says(language, notebook):
    """The same links, code, formulas and numbers, in the language's terms and style."""
    wrong = [
        f"{unit.cell}: {fault}"
        for unit in catalogues.units(language, notebook)
        for fault in (faults_of_message if catalogues.is_string(unit.cell) else faults)(
            language, unit.english, unit.translated
        )
    ]
    assert not wrong


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=str)
def test_a_stored_notebook_is_that_of_the_catalogue(language, notebook):
    stored = (catalogues.COURSE / language / notebook).read_text(encoding="utf-8")
    made = notebook_file.serialised(generate.translated(language, notebook))
    assert stored == made, "make translations writes them"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_stored_page_is_that_of_the_catalogue(language, page):
    stored = generate.page_file(language, page).read_text(encoding="utf-8")
    assert stored == generate.translated_page(language, page)


@pytest.mark.parametrize("language", LANGUAGES)
def test_links_lead_to_files(language):
    folder = catalogues.COURSE / language
    for file in folder.rglob("*.ipynb"):
        for cell in notebook_file.read(file).cells:
            found = LINK.findall(cell.source) if cell.cell_type == "markdown" else []
            for target in map("".join, found):
                if not re.match(r"[a-z]+:", target):
                    assert (file.parent / target).exists(), (file, cell.id, target)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=str)
def test_the_code_is_the_english_one_but_for_its_strings(language, notebook):
    english = notebook_file.read(catalogues.COURSE / notebook)
    own = notebook_file.read(catalogues.COURSE / language / notebook)
    for one, other in zip(english.cells, own.cells, strict=True):
        if one.cell_type == "code":
            assert cell_strings.masked(one.source) == cell_strings.masked(other.source), one.id


def test_what_a_cell_puts_out_is_the_english_until_it_has_run_in_the_language(small):
    """And again when the English has changed since."""
    file = small / "zh" / "00_a.ipynb"

    def shown():
        return notebook_file.read(file).cells[3].outputs[0].text

    generate.write("zh")
    assert shown() == "2 GPUs\n"
    run = notebook_file.read(file)
    english = notebook_file.read(small / "00_a.ipynb").cells[3]
    run.cells[3].outputs[0].text = "2块GPU\n"
    run.cells[3].metadata[generate.RUN] = generate.digest(english)
    nbformat.write(run, file)
    generate.write("zh")
    assert shown() == "2块GPU\n"
    notebook = nbformat.read(small / "00_a.ipynb", as_version=4)
    notebook.cells[3].outputs[0].text = "3 GPUs\n"
    nbformat.write(notebook, small / "00_a.ipynb")
    generate.write("zh")
    assert shown() == "3 GPUs\n"


# --- strings of code ------------------------------------------------------------------------------

SOURCE = '''\
%matplotlib inline
def f(x, device=None):
    """Runs on the device."""
    print(f"{x!r:>5} takes {1e9 * t[0]:.2f} ns, {'as' if x else 'is'} said", "in all")
    y = lookup["a key of two words"]
    ax.set(xlabel="step", ylabel='ms "each"')
    print(
        "a long line of words that goes on in a second line "
        f"with {x} in it"
    )
'''


def test_strings_that_a_reader_sees_are_found_and_replaced_where_they_stand():
    found = cell_strings.texts(SOURCE)
    assert "Runs on the device." in found
    assert "step" in found
    assert "{x} takes {value2} ns, {value4} said" in found
    said = {
        "Runs on the device.": "在设备上运行。",
        "{x} takes {value2} ns, {value4} said": "{value4}：{value2} ns（{x}）",
        "step": "步",
        'ms "each"': "每个“ms”",
        "a long line of words that goes on in a second line with {x} in it": "很" * 60 + "{x}",
    }
    new = cell_strings.replaced(SOURCE, lambda text: said.get(text, text))
    assert '"""在设备上运行。"""' in new
    assert "f\"{'as' if x else 'is'}：{1e9 * t[0]:.2f} ns（{x!r:>5}）\"" in new
    assert "xlabel=\"步\", ylabel='每个“ms”'" in new
    assert max(map(columns, new.splitlines())) <= 100
    assert "{x}" in new.splitlines()[-2]
    assert cell_strings.masked(new) == cell_strings.masked(SOURCE)
    assert cell_strings.masked(new.replace("1e9", "1e6")) != cell_strings.masked(SOURCE)
    assert cell_strings.replaced(SOURCE, lambda text: text) == SOURCE


def test_a_program_of_another_cell_magic_has_no_strings_of_ours():
    assert cell_strings.texts("%%writefile a.py\nprint('some words')") == []


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("which", catalogues.OF_PACKAGE, ids=str)
def test_what_the_package_says_is_said_in_the_language(language, which):
    """With the same places, in its terms and style."""
    wrong = [
        f"{unit.english!r}: {fault}"
        for unit in catalogues.units(language, which)
        for fault in faults_of_message(language, unit.english, unit.translated)
    ]
    assert not wrong


def test_places_are_kept_but_for_the_endings_of_english_words():
    assert faults_of_message("zh", "{n} rank{s} of {all}", "{all}个中的{n}个") == []
    assert faults_of_message("zh", "{n} rank{s} of {all}", "{n}个")
    assert faults_of_message("zh", "{n} of {all}", "{all}个中的{n}个和{n}")
    assert faults_of_message("zh", "row wrap", "row wrap") == []


# --- what is found --------------------------------------------------------------------------------

ENGLISH = (
    "## Two\n\nIn `x.y` there are 1,500 words of $a^2$, see [this](a.md):\n\n| a |\n|---|\n| 3 |"
)
CHINESE = "## 二\n\n`x.y`里有1500个词，属于$a^2$，见[这里](a.md)：\n\n| 甲 |\n|---|\n| 3 |"


def test_a_good_translation_has_no_fault():
    assert faults("zh", ENGLISH, CHINESE) == []
    assert faults("zh", "16 million **words**", "1600万个**词**，属于微批次") == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("1500", "1600"), "numbers"),
        (("`x.y`", "`x`"), "code"),
        (("$a^2$", "$a^3$"), "formulas"),
        (("(a.md)", "(b.md)"), "links"),
        (("## 二", "二"), "headings"),
        (("| 3 |", "3"), "rows"),
        (("里有", "里 A 有"), "space"),
        (("，见", ",见"), "punctuation"),
        (("个词", "个宿主机"), "主机"),
        (("里有", "里有**词。**和"), "emphasis"),
    ],
)
def test_faults_are_found(change, word):
    (fault, *_) = faults("zh", ENGLISH, CHINESE.replace(*change))
    assert word in fault


# --- a change of the English ----------------------------------------------------------------------


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A course of one notebook, translated."""
    monkeypatch.setattr(catalogues, "COURSE", tmp_path)
    monkeypatch.setattr(generate, "COURSE", tmp_path)
    monkeypatch.setattr(generate, "pages", list)
    monkeypatch.setattr(generate, "OF_PACKAGE", {})
    generate._titles.cache_clear(), generate._headings.cache_clear()
    cells = [
        nbformat.v4.new_markdown_cell("[Contents](00_a.ipynb)", id="n"),
        nbformat.v4.new_markdown_cell("# Title\n\n![p](../imgs/p.png)", id="a"),
        nbformat.v4.new_markdown_cell("Second, in [it](scripts/x.py).", id="b"),
        nbformat.v4.new_code_cell("1", id="c"),
    ]
    cells[3].outputs = [nbformat.v4.new_output("stream", name="stdout", text="2 GPUs\n")]
    cells[0].metadata["tags"] = ["navigation"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "00_a.ipynb")
    (tmp_path / "zh").mkdir()
    shutil.copy(ROOT / "notebooks" / "zh" / "course.po", tmp_path / "zh")
    translated = {"a": "# 题目\n\n![图](../imgs/p.png)", "b": "第二，在[它](scripts/x.py)里。"}
    catalogues.enter("zh", Path("00_a.ipynb"), translated)
    yield tmp_path
    generate._titles.cache_clear(), generate._headings.cache_clear()


def change(course, cell, text):
    notebook = nbformat.read(course / "00_a.ipynb", as_version=4)
    next(each for each in notebook.cells if each.id == cell).source = text
    nbformat.write(notebook, course / "00_a.ipynb")


def test_what_changes_in_english_is_old_in_chinese_and_shown_in_english(small):
    assert list(generate.stale("zh")) == []
    change(small, "b", "Third.")
    assert list(generate.stale("zh")) == [(Path("00_a.ipynb"), "b")]
    generate.write("zh")
    notebook = notebook_file.read(small / "zh" / "00_a.ipynb")
    texts = {cell.id: cell.source for cell in notebook.cells}
    assert texts["n"] == "[目录](00_a.ipynb)"
    assert texts["a"] == "# 题目\n\n![图](../../imgs/p.png)"
    assert "尚未翻译" in texts["b"]
    assert texts["b"].endswith("Third.")
    assert texts["c"] == "1"


def test_a_sheet_comes_back(small):
    change(small, "b", "Third.")
    sheet = sheets.sheet("zh", Path("00_a.ipynb"))
    assert "Third." in sheet
    assert "第二" in sheet  # what was its translation, as a start
    assert "题目" not in sheet
    assert sheets.read(sheet) == {"b": "Third."}
    catalogues.enter("zh", Path("00_a.ipynb"), {"b": "第三。"})
    assert list(generate.stale("zh")) == []
    with pytest.raises(KeyError, match="z9"):
        catalogues.enter("zh", Path("00_a.ipynb"), {"z9": "x"})


# --- a student's copy -----------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path, monkeypatch):
    for name in ("imgs", "notebooks"):
        (tmp_path / name).mkdir()
    for language in ("", "zh/"):
        for name in ("00_start_here", "11_also_asked"):
            file = f"notebooks/{language}{name}.ipynb"
            (tmp_path / file).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / file, tmp_path / file)
        page = f"notebooks/{language}museum/README.md"
        (tmp_path / page).parent.mkdir()
        shutil.copy(ROOT / page, tmp_path / page)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def texts(file):
    return [cell["source"] for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]]


def test_a_copy_changes_its_language_and_keeps_what_the_student_did(course, capsys):
    mine = course / "my" / "00_start_here.ipynb"
    assert main(["update", "--quiet"]) == 0
    notebook = notebook_file.read(mine)
    code = next(cell for cell in notebook.cells if cell.cell_type == "code" and cell.source)
    code.source += "\nmine = 1"
    mine.write_text(notebook_file.serialised(notebook), encoding="utf-8")

    assert main(["lang", "zh"]) == 0
    text = "".join(map("".join, texts(mine)))
    assert "虚拟" in text
    assert "mine = 1" in text
    assert not (course / "my" / "zh").exists()
    assert main(["update", "--quiet"]) == 0  # stays Chinese
    assert "虚拟" in "".join(map("".join, texts(mine)))

    assert main(["lang", "en", "--quiet"]) == 0
    english = notebook_file.read(course / "notebooks" / "00_start_here.ipynb")
    now = notebook_file.read(mine)
    wanted = [cell.source for cell in english.cells if cell.cell_type == "markdown"]
    assert [cell.source for cell in now.cells if cell.cell_type == "markdown"] == wanted
    assert "mine = 1" in "".join(map("".join, texts(mine)))


def test_links_of_a_copy_lead_where_the_english_ones_do(course):
    main(["lang", "zh", "--quiet"])

    def targets(file):
        cells = notebook_file.read(file).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        return Counter(map("".join, LINK.findall(text)))

    mine = targets(course / "my" / "00_start_here.ipynb")
    assert mine == targets(course / "notebooks" / "00_start_here.ipynb")
    own, english = (
        (course / folder / "museum" / "README.md").read_text(encoding="utf-8")
        for folder in ("my", "notebooks")
    )
    assert "博物馆" in own
    assert LINK.findall(own) == LINK.findall(english)


def test_a_language_that_is_not_there_is_refused(course):
    with pytest.raises(ValueError, match=r"'xx'.*en, zh"):
        working_copy.choose_language(course, "xx")
    assert languages.chosen(course / "my" / working_copy.BASE) == "en"
