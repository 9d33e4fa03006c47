"""What a Jupyter server does to a notebook before it saves it."""

from __future__ import annotations

from typing import Any

import nbformat

from .notebook_file import without_widget_views


def leave_out_widget_views(model: dict[str, Any], **_: object) -> None:
    """Leave out views of widgets: without their kernel they are an error; the text beside them
    stays. For `ContentsManager.pre_save_hook`."""
    if model["type"] == "notebook" and model["content"]["nbformat"] == 4:
        model["content"] = without_widget_views(nbformat.from_dict(model["content"]))
