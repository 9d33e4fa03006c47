"""Cluster profiles: folders with an ipcluster_config.py that says how ranks are launched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from .. import messages

if TYPE_CHECKING:
    from traitlets.config import Config

CONFIG = "ipcluster_config.py"


def find(profile: str | os.PathLike) -> Path:
    """The folder of a profile: a path, a name in profiles/ here, or a name that IPython knows.

    Raises ValueError naming the places in which there was none.
    """
    from IPython.paths import get_ipython_dir

    given = Path(profile).expanduser()
    if given.name == CONFIG:
        given = given.parent
    places = [
        given,
        Path("profiles") / given,
        Path(get_ipython_dir()) / f"profile_{profile}",
    ]
    for place in places:
        if (place / CONFIG).is_file():
            return place.resolve()
    raise ValueError(
        messages.ERROR_PROFILE.format(profile=str(profile), places=", ".join(map(str, places)))
    )


def load(folder: Path) -> Config:
    """What the profile's ipcluster_config.py sets."""
    from traitlets.config import PyFileConfigLoader

    return PyFileConfigLoader(CONFIG, path=str(folder)).load_config()


def copy_others(folder: Path, to: Path) -> None:
    """Take along the files that the controller (and engines on this machine) read themselves."""
    for path in folder.glob("ip*_config.py"):
        shutil.copy(path, to)
