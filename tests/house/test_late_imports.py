"""Modules that are seen to when a program imports them, whoever finds them."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from d2lpar.vgpu.late_imports import LateImports

NAME = "seen_to_late"


class AsksAll:
    """A finder that asks all others, wherever they stand, as that of virtual processes does."""

    def find_spec(self, name, path, target=None):
        others = [finder for finder in sys.meta_path if not isinstance(finder, AsksAll)]
        found = (finder.find_spec(name, path, target) for finder in others)
        return next((spec for spec in found if spec is not None), None)


class OfThePackage:
    """A finder for a file of another name, as packages have that come in several builds."""

    def __init__(self, folder):
        self.file = Path(folder) / f"{NAME}.some_build.py"

    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_file_location(name, self.file) if name == NAME else None


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Import it with these further finders, before and after ours; what was seen to."""

    def run(before, after, file):
        (tmp_path / file).write_text("value = 3\n", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(sys, "meta_path", [*after(tmp_path), *sys.meta_path])
        seen = []
        late = LateImports([NAME], lambda module: seen.append(module.value))
        sys.meta_path[:0] = before(tmp_path)
        try:
            importlib.import_module(NAME)
        finally:
            late.end()
            sys.modules.pop(NAME, None)
        return seen

    return run


def none(folder):
    return []


def asks_all(folder):
    return [AsksAll()]


@pytest.mark.parametrize("before", [none, asks_all])
@pytest.mark.parametrize("after", [none, asks_all])
def test_a_module_is_seen_to_once(imported, before, after):
    assert imported(before, after, f"{NAME}.py") == [3]


@pytest.mark.parametrize("before", [none, asks_all])
def test_so_is_one_that_a_finder_of_its_package_finds(imported, before):
    def of_package(folder):
        return [OfThePackage(folder), AsksAll()]

    assert imported(before, of_package, f"{NAME}.some_build.py") == [3]


def test_what_is_there_is_seen_to_at_once_and_nothing_after_the_end(imported):
    seen = []
    LateImports(["json"], lambda module: seen.append(module.__name__)).end()
    assert seen == ["json"]
    LateImports([NAME], seen.append).end()
    assert imported(none, none, f"{NAME}.py") == [3]
    assert seen == ["json"]
