"""The strings of a code cell that a reader sees: what it prints, the words of its pictures, the
docstrings of what is to be written. They are translated where they stand; the code around them, and
the values in them, stay as they are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import accumulate

from d2lpar.locale import columns
from d2lpar.locale.messages import PLACE, places

from . import strings

MAGIC = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)
OTHER = re.compile(r"%%(writefile|bash|sh)\b")  # a cell of another program
LONG_WORD = re.compile("[A-Za-z]{4,}")
PRINTING = ("print",)
LINE = 88  # columns that a line of a string may have

Node = ast.Constant | ast.JoinedStr


def texts(source: str) -> list[str]:
    """The templates of a cell's strings, each once, in their order."""
    return list(dict.fromkeys(_template(node) for node in _found(source)))


def replaced(source: str, said: Callable[[str], str]) -> str:
    """The source, each of its strings as `said` says the template of it."""
    starts = [0, *accumulate(len(line.encode()) for line in source.splitlines(keepends=True))]
    code = source.encode()
    for node in sorted(_found(source), key=lambda each: -starts[each.lineno - 1] - each.col_offset):
        text = said(_template(node))
        if text != _template(node):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            new = _literal(node, text, code[begin:end].decode(), node.col_offset)
            code = code[:begin] + new.encode() + code[end:]
    return code.decode()


def masked(source: str) -> str:
    """The code without its strings for readers: what all languages have alike; all of a program
    for something else than Python."""
    tree = _tree(source)
    return ast.dump(ast.parse(ast.unparse(_Masked().visit(tree)))) if tree.body else source


class _Masked(ast.NodeTransformer):
    """Leaves of strings the values that are in them."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        values = sorted(ast.unparse(v) for v in node.values if isinstance(v, ast.FormattedValue))
        return ast.Tuple([ast.Constant(value) for value in values], ast.Load())


def _tree(source: str) -> ast.Module:
    """The cell's code, its magics as lines that do nothing, with everything where it stands."""
    if OTHER.match(source):
        return ast.Module([], [])
    blank = MAGIC.sub(lambda line: f"{line[1]}0".ljust(len(line[0]))[: len(line[0])], source)
    try:
        return ast.parse(blank)
    except SyntaxError:
        return ast.Module([], [])


def _found(source: str) -> Iterator[Node]:
    tree = _tree(source)
    labels = set(map(id, _labels(tree)))
    yield from (node for node in _strings(tree) if _is_read(node, id(node) in labels))


def _strings(node: ast.AST) -> Iterator[Node]:
    """All of them; those within an f-string's values are not for a translator."""
    if isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    ):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _strings(child)


def _labels(tree: ast.AST) -> Iterator[ast.AST]:
    """What stands as words of a picture, or is printed: there one word is enough."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name in strings.LABELS_OF or ast.unparse(node.func) in PRINTING:
                yield from (string for given in node.args for string in _strings(given))
            for keyword in node.keywords:
                if keyword.arg in strings.LABELLING:
                    yield from _strings(keyword.value)


def _is_read(node: Node, is_label: bool) -> bool:
    """Whether it is a sentence, or a word where words stand; an f-string is one more often."""
    text = _template(node)
    word = LONG_WORD if isinstance(node, ast.JoinedStr) else strings.WORD if is_label else None
    return strings.is_sentence(text) or bool(word and word.search(PLACE.sub(" ", text)))


def _template(node: Node) -> str:
    return next(strings.of_node(node))


def _literal(node: Node, text: str, old: str, column: int) -> str:
    """A literal of the text, quoted as the old one was, in as many lines as it needs."""
    if isinstance(node, ast.Constant) and old.startswith(('"""', "'''")):
        return old[:3] + text + old[:3]
    quote = '"' if '"' in old[:2] else "'"
    prefix = "f" if isinstance(node, ast.JoinedStr) else ""
    atoms = list(_atoms(node, text, quote, old))
    whole = _lines(atoms, LINE - column) if "\n" in old else ["".join(atoms)]
    return f"\n{' ' * column}".join(f"{prefix}{quote}{line}{quote}" for line in whole)


def _atoms(node: Node, text: str, quote: str, old: str) -> Iterator[str]:
    """The characters between the quotes, and the values of an f-string, each in one piece."""
    values = {}
    if isinstance(node, ast.JoinedStr):
        values = dict(zip(places(_template(node)), _values(old), strict=True))
    begin = 0
    for place in PLACE.finditer(text) if values else ():
        yield from map(_escaped(quote), text[begin : place.start()])
        begin = place.end()
        yield place[0] if place[1] is None else values[places(place[0])[0]]
    yield from map(_escaped(quote), text[begin:])


def _escaped(quote: str) -> Callable[[str], str]:
    known = {quote: f"\\{quote}", "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
    return lambda character: known.get(character, character)


def _values(literal: str) -> Iterator[str]:
    """The values in the source of an f-string, each with its braces, as they are written."""
    depth = begin = 0
    position = 0
    while position < len(literal):
        if not depth and literal[position : position + 2] in ("{{", "}}"):
            position += 2
            continue
        if literal[position] == "{":
            begin = begin if depth else position
            depth += 1
        elif literal[position] == "}":
            depth -= 1
            if not depth:
                yield literal[begin : position + 1]
        position += 1


def _lines(atoms: list[str], width: int) -> list[str]:
    """Pieces of a width that add up to the text; a wide character takes two columns."""
    lines, taken = [""], 0
    for atom in atoms:
        if lines[-1] and taken + columns(atom) > width:
            lines.append("")
            taken = 0
        lines[-1] += atom
        taken += columns(atom)
    return lines
