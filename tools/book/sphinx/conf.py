"""How Sphinx turns the pages into a site; `python -m book` says what changes between builds."""

import base64
import hashlib
import json
import re
import sys
from pathlib import Path

from bs4 import BeautifulSoup
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.addnodes import pending_xref

sys.path.insert(0, str(Path(__file__).parents[2]))  # Sphinx reads this file wherever it is called
from translations.catalogues import common

# What a timeline looks like is the package's: the same in notebooks and here.
VIEW = Path(__file__).parents[3] / "d2lpar" / "timeline" / "traces" / "page"

project = "Parallel deep learning"
html_title = project
html_show_copyright = html_show_sphinx = html_copy_source = False

extensions = ["myst_nb"]
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
root_doc = "index"
exclude_patterns = ["jupyter_execute"]

# The reference: short names in signatures, long ones with a line for each parameter.
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
# A name of the package that is not there is an error; what others have is not looked up.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!d2lpar\.).*")]

html_theme = "furo"
templates_path = ["templates"]
html_favicon = "static/icon.svg"
html_static_path = ["static", str(VIEW / "view.js"), str(VIEW / "view.css")]
html_css_files = ["book.css", "view.css"]
html_js_files = [("sliders.js", {"defer": "defer"})]
html_js_files += [(name, {"type": "module"}) for name in ("timelines.js", "sidebar.js")]


def described(app, doctree):
    """Gives the pictures of outputs the texts and sizes that the notebook stores beside them."""
    path = Path(app.env.doc2path(app.env.docname))
    if path.suffix != ".ipynb":
        return
    known = dict(pictures(json.loads(path.read_text(encoding="utf-8"))))
    for image in doctree.findall(nodes.image):
        image.attributes.update(known.get(Path(image["uri"]).stem, {}))


def exact(_, doctree):
    """Lets no name in a signature lead to another module's that is called so, too."""
    for reference in doctree.findall(pending_xref):
        if not reference.get("refspecific"):
            reference.attributes.pop("refspecific", None)  # that it is there counts


def pictures(notebook):
    """(name that MyST-NB gives its file, attributes) of each PNG that is an output."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if png := data.get("image/png"):
                shown = {"alt": "".join(data.get("text/plain", "a picture"))}
                shown |= output["metadata"].get("image/png", {})
                name = hashlib.sha256(base64.b64decode("".join(png))).hexdigest()
                yield name, {k: str(shown[k]) for k in ("alt", "width", "height") if k in shown}


def inline_math(translator, node):
    """Formulas as MathML, which browsers show by themselves: nothing is fetched."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def block_math(translator, node):
    translator.body.append(f"<div>{tex2mathml(node.astext(), as_block=True)}</div>")
    raise nodes.SkipNode


def in_its_language(_app, pagename, _template, context, _doctree):
    """Says of a page which language it is in, for who has it read out, and lets what stands around
    it be in that language, too: the theme's own words, and the pages that the sidebar lists."""
    first = re.match(r"(?:notebooks/|docs/)?([a-z]{2})(?:/|$)", pagename)
    context["language"] = first[1] if first else "en"
    if first:
        words = common(first[1])
        context["gettext"] = lambda text: words.get(text) or text
        context["docstitle"] = words.get(project) or project
        context["master_doc"] = first[1]
        context["furo_navigation_tree"] = part_of(context["furo_navigation_tree"], first[1])


def part_of(tree, language):
    """What the sidebar lists below the first page of a language, as if that were the whole."""
    found = BeautifulSoup(tree, "html.parser")
    here = found.select_one("li.current > a")  # on that page itself, whose own address is "#"
    first = found.select_one(f'a[href$="/{language}.html"]') or here
    below = first.find_parent("li").find("ul")
    for item in below.find_all("li"):
        item["class"] = [re.sub(r"(?<=toctree-l)\d", higher, name) for name in item["class"]]
    return str(below)


def higher(level):
    return str(int(level[0]) - 1)


def setup(app):
    app.connect("html-page-context", in_its_language, priority=900)  # after the theme
    app.connect("doctree-read", described)
    app.connect("doctree-read", exact)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


html_math_renderer = "mathml"
