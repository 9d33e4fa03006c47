"""Which asserts of a notebook compare a value that was computed in it.

An assert such as `assert accuracy > 0.6` tells something only if `accuracy` can come out
otherwise. So the names of all cells are followed in order: a name is *computed* where it is bound
to more than literals, and an assert counts if its test compares or calls with such a name.
"""

import ast
import builtins

from IPython.core.inputtransformer2 import TransformerManager

BLOCKS = (ast.With, ast.AsyncWith, ast.For, ast.AsyncFor)  # an assert in one of these is reached


class Names:
    """What is known of a notebook's names after the cells that were read so far."""

    def __init__(self):
        self.computed: set[str] = set()
        self.functions: set[str] = set()

    def read(self, source: str) -> list[bool]:
        """Read one cell; for each assert that it is sure to reach, whether it counts."""
        tree = ast.parse(TransformerManager().transform_cell(source))
        return [counts for statement in tree.body for counts in self._statement(statement)]

    def _statement(self, node: ast.stmt) -> list[bool]:
        self._walrus(node)
        match node:
            case ast.Assert(test=test):
                return [self._claims(test)]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.functions.add(node.name)
                self.computed.discard(node.name)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind(target, value)
            case ast.AugAssign(target=target, value=value):
                if self._is_computed(value):
                    self._mark(target)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=target), args=args)):
                if any(map(self._is_computed, args)):  # results.append(…)
                    self._mark(target)
            case _:
                return self._block(node)
        return []

    def _block(self, node: ast.stmt) -> list[bool]:
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self._bind(node.target, node.iter)
        for item in getattr(node, "items", ()):
            if item.optional_vars is not None:
                self._bind(item.optional_vars, item.context_expr)
        inner = [self._statement(child) for child in _statements_in(node)]
        return [counts for each in inner for counts in each] if isinstance(node, BLOCKS) else []

    def _walrus(self, node: ast.stmt) -> None:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                for named in ast.walk(part):
                    if isinstance(named, ast.NamedExpr):
                        self._bind(named.target, named.value)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        pairs = _paired(target, value)
        if pairs:
            for each in pairs:
                self._bind(*each)
        elif self._is_computed(value):
            self._mark(target)
        elif isinstance(target, ast.Name):
            self.computed.discard(target.id)

    def _mark(self, target: ast.expr) -> None:
        """The names that an assignment to the target changes: `a`, `b` of `a, b[0] = …`."""
        match target:
            case ast.Name(id=name):
                self.computed.add(name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._mark(part)
            case ast.Starred(value=inner) | ast.Subscript(value=inner) | ast.Attribute(value=inner):
                self._mark(inner)

    def _is_computed(self, value: ast.expr) -> bool:
        """Whether more than literals goes into a value: a computed name, or a call of interest."""
        return any(
            (isinstance(part, ast.Name) and part.id in self.computed)
            or (isinstance(part, ast.Call) and not _is_builtin(part.func))
            for part in ast.walk(value)
        )

    def _rests_on_a_result(self, value: ast.expr) -> bool:
        """Stricter: a computed name, or the result of a function that the notebook defines."""
        names = {part.id for part in ast.walk(value) if isinstance(part, ast.Name)}
        called = {ast.unparse(part.func) for part in ast.walk(value) if isinstance(part, ast.Call)}
        return bool(names & self.computed or called & self.functions)

    def _claims(self, test: ast.expr) -> bool:
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                return any(map(self._claims, values))
            case ast.BoolOp(op=ast.Or(), values=values):
                return all(map(self._claims, values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._claims(operand)
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [ast.dump(side) for side in (left, *others)]
                is_trivial = len(set(sides)) < len(sides)
                only_identity = all(isinstance(op, (ast.Is, ast.IsNot)) for op in ops)
                return not is_trivial and not only_identity and self._rests_on_a_result(test)
            case ast.Call():
                return self._rests_on_a_result(test)
        return False


def _is_builtin(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and hasattr(builtins, function.id)


def _paired(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """`a, b = 1, f()` is two assignments."""
    parts = [getattr(side, "elts", None) for side in (target, value)]
    if None in parts or len(parts[0]) != len(parts[1]):
        return []
    if any(isinstance(part, ast.Starred) for side in parts for part in side):
        return []
    return list(zip(*parts, strict=True))


def _statements_in(node: ast.AST) -> list[ast.stmt]:
    """The statements one level down; those of `except …:` and `case …:` are a level deeper."""
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            found.append(child)
        elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
            found += _statements_in(child)
    return found
