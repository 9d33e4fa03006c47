"""Writes the address of the repository to wherever a reader needs it, or leaves it out.

    python tools/addresses.py

`[project.urls]` of pyproject.toml says where this copy of the course is published. Text between the
marks of a file is replaced by what that address gives, and is empty where there is no address: a
link into the blue helps nobody. Notebooks get theirs by `build.relink`.
"""

import sys
import tomllib
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "pyproject.toml"
START = "notebooks/00_start_here.ipynb"
HOSTS = {  # of README's badges: the picture, the page
    "Codespaces": ("https://github.com/codespaces/badge.svg", "https://codespaces.new/{place}"),
    "Colab": (
        "https://colab.research.google.com/assets/colab-badge.svg",
        "https://colab.research.google.com/github/{place}/blob/main/{start}",
    ),
    "Kaggle": (
        "https://kaggle.com/static/images/open-in-kaggle.svg",
        "https://kaggle.com/kernels/welcome?src={repository}/blob/main/{start}",
    ),
}
MARKED = ("README.md", "CITATION.cff", "docs/on-a-hub.md")
BEGIN, END = "{comment}addresses: {name}{close}\n", "{comment}end{close}\n"
COMMENTS = {".md": ("<!-- ", " -->"), ".cff": ("# ", "")}


def repository(project=PROJECT):
    """The address of the course's repository, as `project` has it; None if it says nothing."""
    text = Path(project).read_text(encoding="utf-8")
    return tomllib.loads(text)["project"].get("urls", {}).get("Repository")


def texts(address):
    """What stands between the marks of each name, for an address or None."""
    if address is None:
        return dict.fromkeys(("badges", "citation", "hub"), "")
    words = {"place": address.partition("://")[2].partition("/")[2], "start": START}
    badges = "".join(
        f"[![Open in {host}]({picture})]({page.format(repository=address, **words)})\n"
        for host, (picture, page) in HOSTS.items()
    )
    name = address.rpartition("/")[2]
    link = f"https://HUB/hub/user-redirect/git-pull?repo={quote(address, safe='')}"
    link += f"&urlpath={quote(f'lab/tree/{name}/{START}', safe='')}"
    return {
        "badges": f"\nOr open it in the cloud:\n\n{badges}\n",
        "citation": f"repository-code: {address}\n",
        "hub": f"\nStudents open this link, with the hub's name:\n\n```text\n{link}\n```\n\n",
    }


def filled(text, suffix, address):
    """The text of a file with what belongs between its marks."""
    comment, close = COMMENTS[suffix]
    end = END.format(comment=comment, close=close)
    for name, inside in texts(address).items():
        begin = BEGIN.format(comment=comment, name=name, close=close)
        if begin in text:
            before, _, rest = text.partition(begin)
            text = before + begin + inside + end + rest.partition(end)[2]
    return text


def write(root=ROOT):
    """Fills all marked files below `root` by the setting of its pyproject.toml."""
    address = repository(root / PROJECT.name)
    for path in map(root.joinpath, MARKED):
        text = path.read_text(encoding="utf-8")
        path.write_text(filled(text, path.suffix, address), encoding="utf-8")


if __name__ == "__main__":
    import build

    write()
    try:
        build.relink(ROOT / "notebooks")
    except build.BuildError as error:
        sys.exit(str(error))
