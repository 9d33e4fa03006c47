"""One public name as text for Sphinx: its signature, its docstring, and what belongs to it."""

from __future__ import annotations

import re

import griffe

from .names import LOG, Names, comment, public

SECTION = "{place}: the reference knows no section {kind!r} of a docstring"
OPTIONS = ("classmethod", "staticmethod", "async")
# griffe's kinds of sections, as Sphinx's fields.
FIELDS = {
    "parameters": "param {item.name}",
    "returns": "returns",
    "raises": "raises {item.annotation}",
}
SHORT = 60  # so many characters a constant's value has, if it is told
DEEPEST = 8  # so many classes may stand in one another


def entry(target: griffe.Object, names: Names, depth: int = 0) -> str:
    """All that the reference says of a function, class or attribute, and what belongs to it."""
    in_class = target.parent is not None and target.parent.is_class
    options = [f":{option}:" for option in OPTIONS if option in target.labels]
    options += [":no-contents-entry:"] if in_class else []  # each page's sidebar is made of them
    head, body = target.name, [docstring(target, names)]
    if isinstance(target, griffe.Function):
        kind, head = "method" if in_class else "function", _signature(target, names)
    elif isinstance(target, griffe.Class):
        kind, init = "class", target.all_members.get("__init__")
        head = _signature(init, names, target.name) if init and len(init.parameters) > 1 else head
        linked = [names.linked(f"`{base}`", target) for base in target.bases]
        body[:0] = [f"Bases: {', '.join(linked)}\n"] if linked else []
        body += [entry(member, names, depth + 1) for member in public(target)]
    else:
        kind = ("property" if "property" in target.labels else "attribute") if in_class else "data"
        if target.annotation:
            options.append(f":type: {names.annotation(target.annotation)}")
        if kind == "data" and len(str(target.value)) < SHORT:
            options.append(f":value: {target.value}")
    fence = "`" * (3 + DEEPEST - depth)
    return "\n".join([f"{fence}{{py:{kind}}} {head}", *options, "", *body, fence, ""])


def _signature(function: griffe.Function, names: Names, name: str | None = None) -> str:
    for parameter in function.parameters:
        parameter.annotation = names.annotation(parameter.annotation) or None
    function.returns = names.annotation(function.returns) or None
    return function.signature(return_type=name is None, name=name)


def docstring(target: griffe.Object, names: Names) -> str:
    """A docstring with its sections as Sphinx's fields; of a constant, the comment beside it."""
    if target.docstring is None:
        return names.linked(comment(target), target) + "\n"
    text = "\n\n".join(_section(section, target) for section in target.docstring.parsed)
    return names.linked(text, target) + "\n"


def _section(section: griffe.DocstringSection, target: griffe.Object) -> str:
    kind = section.kind.value
    if kind == "text":
        return str(section.value)
    if kind == "attributes":
        items = [f"- `{item.name}`: {_indented(item.description)}" for item in section.value]
        return _indented("\n".join([":Attributes:", *items]))
    if kind not in FIELDS:
        LOG.warning(SECTION.format(place=target.path, kind=kind))
        return ""
    fields = (FIELDS[kind].format(item=item) for item in section.value)
    texts = (_indented(item.description) for item in section.value)
    return "\n".join(f":{field}: {text}" for field, text in zip(fields, texts, strict=True))


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")


def summary(target: griffe.Object) -> str:
    """The first sentence of a docstring."""
    text = " ".join(target.docstring.value.split("\n\n")[0].split()) if target.docstring else ""
    return re.split(r"(?<=[.;:]) ", text)[0].rstrip(".;:")
