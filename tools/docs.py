"""Builds the API reference from the docstrings: a page per room, in build/docs.

    python tools/docs.py [--into FOLDER] [--home PAGE]

`--home` is a page, seen from that folder, that the first page of the reference leads back to.

A warning, such as a reference to what is not there, is an error.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, BUILD = ROOT / "d2lpar", ROOT / "build"

OPTIONS = {
    "docstring_style": "google",
    "docstring_options": {"warn_unknown_params": False},
    "filters": ["!^_"],
    "heading_level": 2,
    "members_order": "source",
    "separate_signature": True,
    "show_root_heading": True,
    "show_root_full_path": True,
    "show_signature_annotations": True,
    "show_source": False,
    "signature_crossrefs": True,
}


def rooms():
    """The folders of the package that hold modules, each with its public modules' names."""
    for folder in sorted({path.parent for path in PACKAGE.rglob("__init__.py")}):
        names = [
            name(path) for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")
        ]
        yield folder, [name(folder), *names]


def name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def write_pages(pages, *, up):
    """A page per room, and the map of the package in front of them, below the line `up`."""
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    text = text.replace("](__init__.py)", "](d2lpar.md)")
    (pages / "index.md").write_text(up + text, encoding="utf-8")
    (pages / "vgpu").mkdir()
    shutil.copy(PACKAGE / "vgpu" / "README.md", pages / "vgpu" / "README.md")
    for folder, modules in rooms():
        page = pages / f"{name(folder)}.md"
        page.write_text(
            f"# {name(folder)}\n\n" + "\n\n".join(f"::: {module}" for module in modules) + "\n"
        )
        yield page.name


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=BUILD / "docs", metavar="FOLDER")
    parser.add_argument("--home", metavar="PAGE")
    options = parser.parse_args(arguments)
    site = options.into.resolve()
    up = f'<p><a href="{options.home}">← The course</a></p>\n\n' if options.home else ""
    pages = BUILD / "docs-pages"
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    config = {
        "site_name": "d2lpar",
        "docs_dir": str(pages),
        "site_dir": str(site),
        "use_directory_urls": False,  # so that links lead on without a server, too
        "theme": {"name": "readthedocs", "highlightjs": False},  # which other hosts would send
        "nav": ["index.md", *write_pages(pages, up=up)],
        "not_in_nav": "vgpu/README.md",
        "plugins": [
            "search",
            {"mkdocstrings": {"handlers": {"python": {"paths": [str(ROOT)], "options": OPTIONS}}}},
        ],
    }
    file = BUILD / "mkdocs.yml"
    file.write_text(yaml.safe_dump(config))
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--config-file",
        file,
    ]
    status = subprocess.call(command)
    if not status:
        print(f"{site / 'index.html'}: {len(config['nav'])} pages")
    return status


if __name__ == "__main__":
    sys.exit(main())
