"""What `make lab` exports: a page in which every picture has its alternative text."""

import html
import re
from pathlib import Path

import pytest
from nbconvert import HTMLExporter, SlidesExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output
from traitlets.config.loader import PyFileConfigLoader

from d2lpar import plots

ROOT = Path(__file__).parents[2]
ALT = 'two "curves" < one & a half'


@pytest.fixture(scope="module")
def config():
    return PyFileConfigLoader(str(ROOT / ".jupyter" / "jupyter_server_config.py")).load_config()


@pytest.fixture(scope="module")
def notebook():
    picture = plots.axes(summary="a picture", alt=ALT).figure
    data, metadata = picture.bundle(picture.png())
    output = new_output("display_data", data=data, metadata=metadata)
    return new_notebook(cells=[new_code_cell("draw()", outputs=[output, output])])


def test_an_exported_page_describes_its_pictures(config, notebook):
    page, _ = HTMLExporter(config=config).from_notebook_node(notebook)
    found = re.findall(r"""<img [^>]*?alt=(["'])(.*?)\1""", page)
    assert [html.unescape(alt) for _, alt in found] == [ALT, ALT]


def test_exported_slides_are_still_slides(config, notebook):
    page, _ = SlidesExporter(config=config).from_notebook_node(notebook)
    assert "reveal" in page
