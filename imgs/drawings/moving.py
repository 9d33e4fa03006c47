"""A picture whose time passes, for README."""

import io

from PIL import Image, ImageDraw

from .timelines import step_on_two_gpus

FRAMES, FRAME_MS = 30, 150  # under five seconds, and once: what moves longer has to be stoppable
COLOURS = 128
NOW = (32, 32, 32)


def step_in_time() -> bytes:
    """One training step on two virtual GPUs, uncovered from left to right; it ends as a whole."""
    picture = step_on_two_gpus()
    whole = Image.open(io.BytesIO(picture.png())).convert("RGB")
    frames = [_until(whole, i / FRAMES, picture.axes[0].get_position()) for i in range(1, FRAMES)]
    half = (whole.width // 2, whole.height // 2)
    small = [frame.resize(half, Image.Resampling.LANCZOS) for frame in (*frames, whole)]
    palette = small[-1].quantize(COLOURS)
    first, *others = (frame.quantize(palette=palette, dither=0) for frame in small)
    out = io.BytesIO()
    options = {"save_all": True, "duration": FRAME_MS, "optimize": True}
    first.save(out, "GIF", append_images=others, **options)
    return out.getvalue()


def _until(whole, share, box):
    """The picture up to a share of its time."""
    left, right = box.x0 * whole.width, box.x1 * whole.width
    top, bottom = (1 - box.y1) * whole.height, (1 - box.y0) * whole.height
    frame = whole.copy()
    draw, x = ImageDraw.Draw(frame), left + share * (right - left)
    draw.rectangle((x, top, frame.width, bottom - 2), fill="white")
    draw.line((x, top, x, bottom - 2), fill=NOW, width=4)
    return frame
