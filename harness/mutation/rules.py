"""Mutants by rule: small changes of a module's source, each a mistake that an engineer could make.

A mutant is an edit of the text: what it does not change stays byte for byte, so that a diff shows
the mistake alone. Its key names module, function, rule and a number among the mutants of this rule
in this function, and so survives changes anywhere else. Tests, as DeMillo, Lipton and Sayward put
it (*Hints on Test Data Selection*, 1978), are as good as the mutants that they kill.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import attrs

_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# A bound that is off by one, and equality that is its opposite.
_BOUNDS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_OPPOSITES = {
    **{ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is"},
    **{ast.In: "not in", ast.NotIn: "in"},
}
_EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
# They make values of their arguments, and change nothing.
_FUNCTIONS_OF_VALUES = frozenset(
    (
        *("abs", "len", "max", "min", "round", "sum", "all", "any", "isinstance"),
        *("bool", "float", "int", "str", "dict", "frozenset", "list", "set", "tuple"),
        *("enumerate", "range", "reversed", "sorted", "zip"),
    )
)
_SYNCS = re.compile(r".*(?:sync|flush|durable|persist).*")
_FOR_PEOPLE = frozenset({"__repr__", "__str__"})


@attrs.frozen(kw_only=True)
class Mutant:
    """One edit: the bytes ``start`` to ``end`` of the source of ``module`` become ``text``.

    ``before`` is what stood there. ``lines`` are the first and the last line of the statement (of
    one with a body, its head): a run that executes none of them can't tell the mutant apart.
    """

    module: str
    function: str
    rule: str
    number: int
    start: int
    end: int
    before: str
    text: str
    lines: tuple[int, int]

    @property
    def key(self) -> str:
        """Its name, independent of changes outside of its function."""
        return f"{self.module}:{self.function}:{self.rule}:{self.number}"

    @property
    def change(self) -> str:
        """The edit in one line."""
        return f"{_one_line(self.before)} -> {_one_line(self.text)}"

    @property
    def line(self) -> int:
        """The first line of its statement."""
        return self.lines[0]

    def applied(self, source: str) -> str:
        """Return the source of the mutant, given that of its module."""
        content = source.encode()
        return (content[: self.start] + self.text.encode() + content[self.end :]).decode()

    def diff(self, source: str, name: str) -> str:
        """Return a unified diff of the file ``name``."""
        before, after = (text.splitlines(keepends=True) for text in (source, self.applied(source)))
        return "".join(difflib.unified_diff(before, after, f"{name} (sound)", f"{name} (mutant)"))


def mutants_of(module: str, source: str) -> tuple[Mutant, ...]:
    """Return all mutants of the functions in ``source``, in the order of their places.

    Code for people is left alone: docstrings, annotations, the texts of errors, ``__repr__``.
    """
    scan = _Scan(source)
    scan.visit_body(ast.parse(source).body)
    numbers: Counter[tuple[str, str]] = Counter()
    found = []
    # The numbers follow from this order, and with them the keys in ledgers and reviews.
    for edit in sorted(scan.edits, key=lambda edit: (edit.start, edit.end, edit.rule)):
        numbers[edit.function, edit.rule] += 1
        number = numbers[edit.function, edit.rule]
        found.append(Mutant(module=module, number=number, **attrs.asdict(edit)))
    return tuple(found)


def touching(mutants: Sequence[Mutant], source: str, calls: re.Pattern[str]) -> set[str]:
    """Return the keys of those ``mutants`` of ``source`` whose edit overlaps a call to a name that
    ``calls`` finds something in, or an ``if`` that decides about such calls alone.
    """
    text = _Text(source)

    def named(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and bool(calls.search(text.of(node.func)))

    spans = [
        text.span(node)
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Call) and named(node))
        or (isinstance(node, ast.If) and not node.orelse and _only(node.body, named))
    ]
    return {
        mutant.key
        for mutant in mutants
        if any(mutant.start < end and start < mutant.end for start, end in spans)
    }


@attrs.frozen(kw_only=True)
class _Edit:
    function: str
    rule: str
    start: int
    end: int
    before: str
    text: str
    lines: tuple[int, int]


class _Text:
    """A source, and where the nodes of its syntax tree are in it."""

    def __init__(self, source: str) -> None:
        self.content = source.encode()
        self._starts = [0]
        # Lines of bytes end as the parser's do; those of ``str`` also at form feeds and U+2028.
        for line in self.content.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """The bytes of ``node``."""
        # Columns of the syntax tree are bytes, too.
        start = self._starts[node.lineno - 1] + node.col_offset
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return start, self._starts[end_line - 1] + end_column

    def of(self, node: ast.stmt | ast.expr) -> str:
        """The text of ``node``."""
        start, end = self.span(node)
        return self.content[start:end].decode()


class _Scan:
    """Collects the edits of one module, statement by statement."""

    def __init__(self, source: str) -> None:
        self.edits: list[_Edit] = []
        self._text = _Text(source)
        self._span, self._source = self._text.span, self._text.of
        self._path: list[str] = []
        self._in_function = False
        self._lines = (0, 0)

    def _add(self, rule: str, start: int, end: int, text: str) -> None:
        self.edits.append(
            _Edit(
                function=".".join(self._path),
                rule=rule,
                start=start,
                end=end,
                before=self._text.content[start:end].decode(),
                text=text,
                lines=self._lines,
            )
        )

    def _replace(self, rule: str, node: ast.stmt | ast.expr, text: str) -> None:
        self._add(rule, *self._span(node), text)

    # -- statements

    def visit_body(self, body: Sequence[ast.stmt]) -> None:
        """Collect the edits of the statements of one block."""
        body = [statement for statement in body if not _is_docstring(statement)]
        for statement in body:
            if isinstance(statement, _DEFINITIONS):
                self._visit_definition(statement)
            elif self._in_function:
                self._visit_statement(statement)
        if self._in_function:
            for first, second in pairwise(body):
                self._swap(first, second)

    def _visit_definition(
        self, definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) -> None:
        was_in, self._path = self._in_function, [*self._path, definition.name]
        # The body of a class runs at the import: a mistake there is seen by every test.
        self._in_function = not isinstance(definition, ast.ClassDef)
        if definition.name not in _FOR_PEOPLE:
            self.visit_body(definition.body)
        self._in_function = was_in
        self._path.pop()

    def _visit_statement(self, statement: ast.stmt) -> None:
        self._lines = _head(statement)
        match statement:
            case ast.Raise():
                self._replace("raise-removed", statement, "pass")
                return  # the rest is a text for people
            case ast.Assert():
                return
            case ast.If(test=test):
                self._decision(test, "always", "never")
            case ast.While(test=test):
                self._decision(test, "never")
            case ast.With() | ast.AsyncWith():
                self._drop_guard(statement)
            case ast.Expr(value=ast.Call() | ast.Await()):
                self._drop_call(statement)
            case ast.Assign() | ast.AugAssign() | ast.Delete():
                self._drop_assignment(statement)
            case ast.Break():
                self._replace("break-removed", statement, "pass")
            case ast.Continue():
                self._replace("continue-removed", statement, "pass")
        for part in ast.iter_child_nodes(statement):
            if part is not getattr(statement, "annotation", None):
                self._visit_part(part, statement)
        self._visit_blocks(statement)

    def _visit_blocks(self, statement: ast.stmt | ast.ExceptHandler | ast.match_case) -> None:
        for name in ("body", "orelse", "finalbody"):
            self.visit_body(getattr(statement, name, []))
        for name in ("handlers", "cases"):
            for part in getattr(statement, name, []):
                self._visit_blocks(part)

    def _decision(self, test: ast.expr, *rules: str) -> None:
        for rule in rules:
            self._replace(f"condition-{rule}", test, str(rule == "always"))

    def _drop_guard(self, statement: ast.With | ast.AsyncWith) -> None:
        """A block that is entered without its lock or other guard."""
        # A name that is missing then is an error at once, which any test sees.
        if any(item.optional_vars is not None for item in statement.items):
            return
        start, _ = self._span(statement)
        _, end = self._span(statement.items[-1].context_expr)
        # Up to the colon: what is entered may be in parentheses.
        self._add("guard-removed", start, self._text.content.index(b":", end), "if True")

    def _drop_call(self, statement: ast.Expr) -> None:
        value = statement.value
        call = value.value if isinstance(value, ast.Await) else value
        name = self._source(call.func) if isinstance(call, ast.Call) else ""
        if _SYNCS.fullmatch(name.rpartition(".")[2]):
            self._replace("sync-removed", statement, "pass")
        elif isinstance(value, ast.Await):
            self._replace("await-removed", statement, "pass")
        else:
            self._replace("call-removed", statement, "pass")

    def _drop_assignment(self, statement: ast.Assign | ast.AugAssign | ast.Delete) -> None:
        """State that is not kept. Of a local name only an update is left out: without its first
        value the function would fail at once, which any test sees.
        """
        match statement:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                lasting = all(isinstance(t, ast.Attribute | ast.Subscript) for t in targets)
            case _:
                lasting = True
        # What ``__init__`` leaves out is missing at once, too.
        if lasting and self._path[-1] != "__init__":
            self._replace("assignment-removed", statement, "pass")

    def _swap(self, first: ast.stmt, second: ast.stmt) -> None:
        """Two neighbours in the other order, where one of them may see what the other did."""
        if not (isinstance(first, _SIMPLE) and isinstance(second, _SIMPLE)):
            return
        # ``__init__`` names parts, in no order that matters.
        if self._path[-1] == "__init__":
            return
        # A name that is read before it has its value fails at once, which any test sees.
        if not (_acts(first) or _acts(second)) or _bound(first) & _read(second):
            return
        if (_is_local(first) or _is_local(second)) and not _share_a_name(first, second):
            return
        self._lines = (first.lineno, second.end_lineno or second.lineno)
        (start, first_end), (second_start, end) = self._span(first), self._span(second)
        between = self._text.content[first_end:second_start].decode()
        swapped = self._source(second) + between + self._source(first)
        self._add("statements-swapped", start, end, swapped)

    # -- expressions

    def _visit_expression(self, node: ast.expr, parent: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr | ast.Lambda):  # a text; a function without a name
            return
        match node:
            case ast.BoolOp():
                self._edit_connective(node, parent)
            case ast.Compare():
                self._edit_comparison(node)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._replace("negated", node, f"({self._source(operand)})")
            case ast.BinOp():
                self._edit_arithmetic(node)
            case ast.Call():
                self._edit_call(node)
            case ast.IfExp(test=test):
                self._decision(test, "always", "never")
            case ast.Slice():
                self._edit_slice(node)
            case ast.Constant(value=bool()):
                self._replace("truth-flipped", node, str(not node.value))
        if _decides(parent, node) and not _is_condition(node):
            self._replace("negated", node, f"not ({self._source(node)})")
        for part in ast.iter_child_nodes(node):
            self._visit_part(part, node)

    def _visit_part(self, part: ast.AST, parent: ast.AST) -> None:
        """Visit an expression, or those of a keyword or a comprehension."""
        if isinstance(part, ast.expr):
            self._visit_expression(part, parent)
        elif isinstance(part, ast.keyword | ast.comprehension | ast.withitem):
            for inner in ast.iter_child_nodes(part):
                self._visit_part(inner, part)

    def _edit_connective(self, node: ast.BoolOp, parent: ast.AST) -> None:
        values = [f"({self._source(value)})" for value in node.values]
        word, other = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
        for number in range(len(values)):
            rest = values[:number] + values[number + 1 :]
            self._replace("operand-dropped", node, f"({word.join(rest)})")
        if not isinstance(parent, ast.BoolOp):
            self._replace("and-or", node, f"({other.join(values)})")
            # ``value or default`` is no condition.
            if _decides(parent, node) or any(map(_is_condition, node.values)):
                self._replace("negated", node, f"(not ({self._source(node)}))")

    def _edit_comparison(self, node: ast.Compare) -> None:
        if len(node.ops) != 1:  # ``a < b < c``: its parts have no text of their own
            self._replace("negated", node, f"(not ({self._source(node)}))")
            return
        left, right = self._source(node.left), self._source(node.comparators[0])
        kind = type(node.ops[0])
        if kind in _BOUNDS:
            # In parentheses: an operand may bind more weakly than the comparison put between them.
            self._replace("bound-shifted", node, f"({left}) {_BOUNDS[kind]} ({right})")
            self._replace("negated", node, f"(not ({self._source(node)}))")
        else:
            self._replace("negated", node, f"({left}) {_OPPOSITES[kind]} ({right})")

    def _edit_arithmetic(self, node: ast.BinOp) -> None:
        sides = (node.left, node.right)
        # ``-`` of texts and lists fails at once.
        if any(_is_text(side) for side in sides):
            return
        left, right = (self._source(side) for side in sides)
        if not isinstance(node.op, ast.Add | ast.Sub):
            return
        if isinstance(node.right, ast.Constant) and node.right.value == 1:
            self._replace("off-by-one", node, f"({left})")
        else:
            sign = "-" if isinstance(node.op, ast.Add) else "+"
            self._replace("sign-flipped", node, f"({left}) {sign} ({right})")

    def _edit_call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _EXTREMES:
            self._replace("extreme-swapped", node.func, _EXTREMES[node.func.id])
        for keyword in node.keywords:
            constant = isinstance(keyword.value, ast.Constant)
            # A constant has its mutant already: ``truth-flipped``.
            if keyword.arg and _SYNCS.fullmatch(keyword.arg) and not constant:
                self._replace("sync-removed", keyword.value, "False")

    def _edit_slice(self, node: ast.Slice) -> None:
        for side in (node.lower, node.upper):
            if side is not None:
                self._replace("off-by-one", side, f"({self._source(side)}) + 1")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _head(statement: ast.stmt) -> tuple[int, int]:
    """The lines of ``statement`` itself, without those of the blocks in it."""
    if isinstance(body := getattr(statement, "body", None), list) and body:
        return statement.lineno, max(statement.lineno, body[0].lineno - 1)
    return statement.lineno, statement.end_lineno or statement.lineno


def _only(body: Sequence[ast.stmt], named: Callable[[ast.AST], bool]) -> bool:
    return all(isinstance(each, ast.Expr) and named(each.value) for each in body)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_text(node: ast.expr) -> bool:
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return constant or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple)


def _is_condition(node: ast.AST) -> bool:
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_not or isinstance(node, ast.Compare | ast.BoolOp)


def _decides(parent: ast.AST, node: ast.AST) -> bool:
    """Whether ``node`` is all of a condition."""
    if isinstance(parent, ast.If | ast.While | ast.IfExp):
        return parent.test is node
    return isinstance(parent, ast.comprehension) and node in parent.ifs


def _acts(statement: ast.stmt) -> bool:
    return any(
        isinstance(part, ast.Await) or (isinstance(part, ast.Call) and not _only_computes(part))
        for part in ast.walk(statement)
    )


def _only_computes(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in _FUNCTIONS_OF_VALUES


def _is_local(statement: ast.stmt) -> bool:
    """Whether ``statement`` does nothing but give local names values of names and constants."""
    return isinstance(statement, ast.Assign | ast.AnnAssign) and not any(
        isinstance(part, ast.Call | ast.Await | ast.Attribute | ast.Subscript)
        for part in ast.walk(statement)
    )


def _share_a_name(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether one binds a name that the other binds or reads."""
    return bool(_bound(first) & (_bound(second) | _read(second)) or _bound(second) & _read(first))


def _bound(statement: ast.stmt) -> set[str]:
    """The local names that ``statement`` gives a value."""
    return {
        part.id
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


def _read(statement: ast.stmt) -> set[str]:
    return {
        part.id
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    }
