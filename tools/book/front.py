"""The site's first page: a timeline to touch, and a card for each lesson with a picture of it."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
import shutil
from pathlib import Path

from PIL import Image

import build
from d2lpar.command.course.notebook_file import code_cells, read

from . import states, timelines

ROOT = build.ROOT
ROW = re.compile(r"^\| \[(?P<title>[^]]+)\]\((?P<path>notebooks/[^)]+)\) \| (?P<text>.+) \|$", re.M)
SHOWN = ROOT / "notebooks" / "04_multi_gpu_from_scratch.ipynb"  # whose first timeline is a step
STILL = '<img class="still" src="{address}" alt="{alt}">'
GIF = ROOT / "imgs" / "step_in_time.gif"
GIF_ALT = (
    "A step on two virtual GPUs grows on its timeline, and its gradients are summed at the end"
)
CARD = """\
<a class="card" href="{address}"><span class="picture">{picture}</span>\
<span class="title">{title}</span><span class="text">{text}</span></a>"""
WIDTH, HEIGHT = 480, 270  # of a card's picture


def timeline(pictures: Path, up: str) -> str:
    """HTML of a step's timeline, as far as it was kept, else of a moving picture of one, which is
    put into a folder, to which `up` leads from the first page."""
    notebook = read(SHOWN)
    for cell_id, key in states.keys(notebook).items():
        packed = timelines.load(states.folder_of(SHOWN, cell_id), key)
        cell = next(cell for cell in notebook.cells if cell.id == cell_id)
        for output in timelines.touchable(cell.outputs, packed):
            if "timeline-view" in output.get("data", {}).get("text/html", ""):
                text: str = output["data"]["text/html"]
                return text
    pictures.mkdir(parents=True, exist_ok=True)
    shutil.copy(GIF, pictures)
    return STILL.format(address=f"{up}{GIF.name}", alt=html.escape(GIF_ALT))


def cards(readme: str, pictures: Path, up: str, *, more: str = "") -> str:
    """HTML of a card for each row of the README's table of lessons; their pictures are written
    into a folder, to which `up` leads from the first page. `more` is put behind them."""
    found = []
    for row in ROW.finditer(readme):
        path = ROOT / row["path"]
        if path.suffix == ".ipynb":
            picture = _picture(path, pictures, up)
            address = Path(row["path"]).with_suffix(".html").as_posix()
            title, text = html.escape(row["title"]), _plain(row["text"])
            found.append(CARD.format(address=address, picture=picture, title=title, text=text))
    return '<div class="cards">\n' + "\n".join([*found, more]) + "\n</div>"


def _plain(markdown: str) -> str:
    return html.escape(re.sub(r"[`*]", "", markdown))


def _picture(path: Path, pictures: Path, up: str) -> str:
    """The first picture of a lesson, small; nothing if it has none."""
    for cell in code_cells(read(path)):
        for output in cell.outputs:
            if png := output.get("data", {}).get("image/png"):
                data = _smaller(base64.b64decode("".join(png)))
                file = f"{hashlib.sha256(data).hexdigest()[:16]}.webp"
                pictures.mkdir(parents=True, exist_ok=True)
                (pictures / file).write_bytes(data)
                size = f'width="{WIDTH}" height="{HEIGHT}"'
                return f'<img src="{up}{file}" alt="" {size} loading="lazy">'
    return ""


def _smaller(png: bytes) -> bytes:
    """A picture in a card's shape, on white."""
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        shown = image.convert("RGB")
        shown.thumbnail((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
        card = Image.new("RGB", (WIDTH, HEIGHT), "white")
        card.paste(shown, ((WIDTH - shown.width) // 2, (HEIGHT - shown.height) // 2))
        card.save(buffer, "WEBP", quality=80, method=4)
    return buffer.getvalue()
