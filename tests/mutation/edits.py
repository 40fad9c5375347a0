"""The small changes that are tried on a module: each is one edit of its syntax tree, and none touches a file.

    if at < self.floor and not held:        <  ->  <=      <  ->  >=      and -> or      not removed
        self.floor = at + 1                 removed        +  ->  -       1 -> 0         1 -> 2

What decides nothing is left alone: docstrings, annotations, decorators, what an exception or an f-string
says, `strict=True` of zip(), and `assert`, which is a test itself. Text is not changed either, bytes are:
they are what is stored.

An edit is known by where it is (module, function, the line's text) and what it does; never by a number of a
line, so that a list of edits outlives the changes that happen around it. The same twice in a line: `#2`.
"""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import CodeType

MODULE = ""
"""The function of what runs while a module is imported."""
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
_SIGNS = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.And: "and",
    ast.Or: "or",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.Not: "not",
    ast.USub: "minus",
    ast.Invert: "~",
}
_TWINS = {"min": "max", "any": "all", "bisect_left": "bisect_right"}
_TWINS |= {other: name for name, other in _TWINS.items()}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutant:
    """One edit, by what it is known as; `number` finds it again in the tree of its module."""

    module: str
    """`timeline/wheel.py`."""
    function: str
    """The outermost one, with its class: `Wheel.add`. MODULE if there is none."""
    line: str
    change: str
    number: int
    lines: range
    """Numbers of the lines of which one is reached if the edit is."""
    starts: int
    """The line where the code of the function starts."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.module, self.function, self.line, self.change

    def __str__(self) -> str:
        return f"{self.module}:{self.lines.start} {self.function}: {self.line} [{self.change}]"


@dataclass
class _Edit:
    node: ast.AST
    change: str
    apply: Callable[[], None]
    function: str
    starts: int
    statement: int


def mutants_of(module: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    lines, seen, found = source.splitlines(), Counter[tuple[str, str, str]](), []
    for number, edit in enumerate(_edits(ast.parse(source))):
        first, last = edit.node.lineno, edit.node.end_lineno  # type: ignore[attr-defined]
        line = lines[first - 1].strip()
        seen[edit.function, line, edit.change] += 1
        times = seen[edit.function, line, edit.change]
        change = edit.change if times == 1 else f"{edit.change} #{times}"
        reached = range(min(edit.statement, first), last + 1)
        found.append(Mutant(module, edit.function, line, change, number, reached, edit.starts))
    return found


def changed(mutant: Mutant, source: str, path: str) -> CodeType:
    """The module's code with that one edit."""
    tree = ast.parse(source)
    next(islice(_edits(tree), mutant.number, None)).apply()
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def _edits(tree: ast.Module) -> Iterator[_Edit]:
    """Every edit of a tree, each to be applied before the next is asked for, or not at all."""

    def walk(
        node: ast.AST, put: Callable[[ast.AST], None], where: tuple[str, str, int, int]
    ) -> Iterator[_Edit]:
        prefix, function, starts, statement = where
        if isinstance(node, ast.stmt):
            statement = node.lineno
        for change, new in (*_instead(node, function), *_instead_of_statement(node, function)):
            yield _Edit(node, change, partial(_put, put, new, node), function, starts, statement)
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            prefix = f"{prefix}{node.name}."
        for name, child, put_child in _children(node):
            inner = (prefix, function, starts, statement)
            if isinstance(node, _FUNCTIONS) and name == "body" and not function:
                inner = (prefix, prefix[:-1], _first_line(node), statement)
            yield from walk(child, put_child, inner)

    yield from walk(tree, lambda new: None, ("", MODULE, 0, 0))


def _put(put: Callable[[ast.AST], None], new: ast.AST, old: ast.AST) -> None:
    put(ast.copy_location(new, old))


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST, Callable[[ast.AST], None]]]:
    if isinstance(node, (ast.Assert, ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # of zip(): as good as an assert
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    for name, value in ast.iter_fields(node):
        if isinstance(node, ast.ClassDef) and name == "keywords":
            continue
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        if isinstance(value, ast.AST):
            yield name, value, partial(setattr, node, name)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield name, item, partial(value.__setitem__, index)


def _instead(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in place of a node: what the change is called, and the new node."""
    match node:
        case ast.Compare():
            for index, sign in enumerate(node.ops):
                for other in _COMPARISONS[type(sign)]:
                    ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                    yield _named(type(sign), other), _with(node, ops=ops)
        case ast.BinOp() | ast.AugAssign() if function or not isinstance(node.op, ast.BitOr):
            if type(node.op) in _ARITHMETIC and not _is_text(node):
                operator = _ARITHMETIC[type(node.op)]
                yield _named(type(node.op), operator), _with(node, op=operator())
        case ast.BoolOp():
            both = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield _named(type(node.op), both), _with(node, op=both())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield f"{_SIGNS[type(node.op)]} removed", node.operand
        case ast.Constant():
            yield from ((f"{node.value!r} -> {new!r}", ast.Constant(new)) for new in _beside(node.value))
        case ast.Slice():
            if node.lower is not None:
                yield "start of the slice removed", _with(node, lower=None)
            if node.upper is not None:
                yield "end of the slice removed", _with(node, upper=None)
        case ast.Call(func=ast.Name(id=name)) if name in _TWINS:
            yield f"{name} -> {_TWINS[name]}", _with(node, func=_twin(_TWINS[name]))


def _instead_of_statement(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.If() | ast.While() | ast.IfExp() if not _is_negated_otherwise(node.test):
            yield "condition negated", _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "returns None", ast.Return(ast.Constant(None))
    if function and _may_go(node):
        yield "removed", ast.Pass()


def _beside(value: object) -> tuple[float | bytes, ...]:
    """What a constant may be instead: the neighbours of a number, more bytes; nothing for text."""
    match value:
        case bool():
            return (not value,)
        case int() | float():
            return (value + 1, value - 1) if value else (1,)
        case bytes():
            return (value + b"~",)
    return ()


def _twin(name: str) -> ast.expr:
    """A name that the module may not have imported."""
    return ast.parse(
        f"__import__({name.partition('_')[0]!r}).{name}" if "_" in name else name, mode="eval"
    ).body


def _named(old: type[ast.AST], new: type[ast.AST]) -> str:
    return f"{_SIGNS[old]} -> {_SIGNS[new]}"


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


def _is_negated_otherwise(test: ast.expr) -> bool:
    match test:
        case ast.Compare(ops=[_]) | ast.UnaryOp(op=ast.Not()) | ast.Constant():
            return True
    return False


def _may_go(node: ast.AST) -> bool:
    """Whether it is a statement without which the rest still makes sense.

    An assignment to a name is not: what follows would fail for want of it, which says nothing.
    """
    match node:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Assign():
            targets = [inner for target in node.targets for inner in getattr(target, "elts", [target])]
            return any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in targets)
        case ast.AnnAssign(target=ast.Attribute() | ast.Subscript(), value=ast.expr()):
            return True
        case ast.Return():
            return node.value is None
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Break() | ast.Continue():
            return True
    return False
