"""Which model is meant: a config.json, a name, or fields that are at hand."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import fields as fields_of
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import Fields, ModelConfig, read_file
from .families import of_fields
from .published import HUB, PUBLISHED

if TYPE_CHECKING:
    from ..planner import Transformer

    Model = str | os.PathLike[str] | Mapping[str, Any] | ModelConfig | Transformer


def config_of(model: Model) -> ModelConfig:
    """The model that is meant: by the path of a config.json, by a name of `PUBLISHED` (with its
    owner before it or not), by the fields of a config.json, or as a `planner.Transformer`.

    Raises ValueError for a file that is no such thing, and for an unknown name.
    """
    if isinstance(model, ModelConfig):
        return model
    if isinstance(model, Mapping):
        return of_fields(Fields("the config", dict(model)), "a model of this config")
    if isinstance(model, str):
        return _named(model)
    if isinstance(model, os.PathLike):
        return of_fields(read_file(model), _shown(Path(model)))
    from ..planner import Transformer

    if not isinstance(model, Transformer):
        raise ValueError(
            "a model is the path of a config.json, a name, its fields or a Transformer, not "
            f"{model!r}"
        )
    return _of_planner(model)


def _named(text: str) -> ModelConfig:
    """A file comes first, so that a file of one's own may have any name."""
    bare = text.lower().rpartition("/")[2]
    if bare in PUBLISHED and not os.path.exists(text):
        repository, values = PUBLISHED[bare]
        source = HUB.format(repository=repository)
        found = of_fields(Fields(bare, values), bare)
        return _with_source(found, source)
    path = Path(text)
    if "/" in text or os.sep in text or text.endswith(".json") or os.path.lexists(text):
        return of_fields(read_file(text), _shown(path))
    close = difflib.get_close_matches(text.lower(), PUBLISHED, n=4, cutoff=0.4)
    names = f"there is {', '.join(close)}" if close else f"known are {', '.join(PUBLISHED)}"
    raise ValueError(
        f"no model is called {text!r}, and there is no such file; {names}; of any other give the "
        "path of its config.json"
    )


def _shown(path: Path) -> str:
    """What to call the model of a file: its folder, as all files are called config.json."""
    if path.name == "config.json" and path.absolute().parent.name:
        return path.absolute().parent.name
    return path.stem


def _with_source(config: ModelConfig, source: str) -> ModelConfig:
    return ModelConfig(**{**_plain(config), "source": source})


def _plain(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields_of(record)}


def _of_planner(model: Transformer) -> ModelConfig:
    """One of the planner's own, which keeps its learned positions whatever a sample is long."""
    sizes = _plain(model)
    name, source = sizes.pop("name"), sizes.pop("source")
    longest = model.sequence if model.places is None else model.places
    if model.positions == "learned":
        sizes["places"] = longest
    else:
        longest = max(longest, 10**9)
    del sizes["sequence"]
    return ModelConfig(name, "transformer", sizes, longest, source=source)


def transformer_of(config: ModelConfig, sequence: int) -> Transformer:
    """The planner's model of a config, for samples of so many tokens.

    Raises ValueError for sizes that do not go together.
    """
    from ..planner import Experts, Transformer

    sizes = {k: v for k, v in config.sizes.items() if k != "sequence"}
    if isinstance(experts := sizes.get("experts"), tuple):
        sizes["experts"] = Experts(*experts)
    return Transformer(config.name, sequence=sequence, source=config.source, **sizes)
