"""Writes the blocking client, sdk/fasti/sync.py, from the async one. A developers' tool, not in the package.

    python -m sdk.generate

It starts at `fasti.Client` and follows its parts (`self.messages = Messages(...)`) and what public methods
give. Each class on the way with an `async def` gets a blocking one of the same name with the same public
methods. Arguments, defaults, types and docstrings come from the source. For

    async def get(self, message_id: str) -> Message:
        \"\"\"Raises NotFound.\"\"\"
        return await self._get(_path(message_id))

it writes

    def get(self, message_id: str) -> Message:
        \"\"\"Raises NotFound.\"\"\"
        return Message(self._loop, self._loop.run(self._inner.get(message_id)))

An async iterator becomes an iterator, `__aenter__` becomes `__enter__`, `aclose` becomes `close`, a field of
a dataclass becomes a property. The loop and the base classes are written by hand, in blocking.py. The tool
stops at an answer that it cannot translate, such as a tuple of messages.

It also copies the server's grammar of durations, which the SDK may not import, and writes `__init__.pyi` from
the table of names in `__init__.py`. A test fails when a file is not what the tool writes.
"""

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

SDK = Path(__file__).parent / "fasti"
TARGET = SDK / "sync.py"
STUB = SDK / "__init__.pyi"
DURATIONS = SDK / "durations.py"
DURATIONS_FROM = SDK.parents[1] / "server" / "settings" / "durations.py"
STUB_HEAD = "# Written by sdk/generate.py from the table in __init__.py: do not edit.\n"
DURATIONS_HEAD = "# Written by sdk/generate.py from server/settings/durations.py: do not edit.\n"
AFTER_HEAD = "\nfrom __future__ import annotations\n"
"""What follows the head of sync.py, which is written by hand: the tool keeps it."""
PROTOCOLS = {"aenter": "enter", "aexit": "exit", "aiter": "iter", "anext": "next"}
SPELLED = {"aclose": "close"} | {f"__{one}__": f"__{other}__" for one, other in PROTOCOLS.items()}
SAID = {
    "An async ": "An ",
    "an async context": "a context",
    "async with": "with",
    "async for": "for",
    "await ": "",
    "aclose()": "close()",
}
"""In docstrings."""


class Module:
    """A file of the SDK: its classes, and for each name in it the module that the name is from."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = (SDK / f"{name}.py").read_text(encoding="utf-8")
        self.classes: dict[str, ast.ClassDef] = {}
        self.origins: dict[str, str] = {}
        for node in ast.parse(self.source).body:
            match node:
                case ast.ImportFrom(module=origin, names=names, level=level):
                    self.origins |= {each.asname or each.name: "." * level + (origin or "") for each in names}
                case ast.ClassDef(name=own):
                    self.classes[own] = node
                    self.origins[own] = f".{name}"
                case ast.Assign(targets=[ast.Name(id=own)]) | ast.AnnAssign(target=ast.Name(id=own)):
                    self.origins[own] = f".{name}"


module = cache(Module)


class Member(NamedTuple):
    """What users may touch of a class. `args`: None for a field or property."""

    name: str
    args: ast.arguments | None
    gives: ast.expr
    docstring: str
    is_async: bool = False

    def names(self) -> set[str]:
        return names_in(self.gives) | names_in(self.args)


class Class:
    """A class of the async client."""

    def __init__(self, home: Module, node: ast.ClassDef) -> None:
        self.home, self.node, self.name = home, node, node.name
        self.bases = [name for name in map(ast.unparse, node.bases) if name != "Calls"]
        self.is_value = any(isinstance(each, ast.Call) for each in node.decorator_list)  # of `dataclass`
        self.decorators = [each.id for each in node.decorator_list if isinstance(each, ast.Name)]
        self.is_async = any(isinstance(each, ast.AsyncFunctionDef) for each in node.body)
        functions = (each for each in node.body if isinstance(each, ast.FunctionDef))
        self.init = next((each for each in functions if each.name == "__init__"), None)
        self.members = list(self._members())
        self.parts = dict(self._parts()) if self.name == "Client" else {}

    def _members(self) -> Iterator[Member]:
        for node, behind in pairwise([*self.node.body, ast.Pass()]):
            match node:
                case (
                    ast.FunctionDef(returns=ast.expr() as gives)
                    | ast.AsyncFunctionDef(returns=ast.expr() as gives)
                ):
                    args = None if node.decorator_list else node.args
                    member = Member(
                        node.name,
                        args,
                        gives,
                        self.docstring(node.body[0]),
                        isinstance(node, ast.AsyncFunctionDef),
                    )
                case ast.AnnAssign(target=ast.Name(id=name), annotation=gives):
                    member = Member(name, None, gives, self.docstring(behind))
                case _:
                    continue
            if member.name in SPELLED or not member.name.startswith("_"):
                yield member

    def _parts(self) -> Iterator[tuple[str, str]]:
        """Attribute and class of what the constructor makes for users."""
        for node in self.init.body if self.init else ():
            match node:
                case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Call(func=ast.Name(id=kind))):
                    if not name.startswith("_"):
                        yield name, kind

    def docstring(self, node: ast.stmt) -> str:
        """As it stands in the source, in the blocking client's words; empty if that is none."""
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return ""
        text = ast.get_source_segment(self.home.source, node) or ""
        for one, other in SAID.items():
            text = text.replace(one, other)
        return text

    def names(self) -> set[str]:
        """All that types, defaults and bases name."""
        own = names_in(self.init.args) if self.init and self.parts else set()
        return own.union(self.bases, self.decorators, *(member.names() for member in self.members))


def names_in(node: ast.AST | None) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} if node else set()


def found(home: Module, name: str) -> Class | None:
    """The class of the SDK that the name stands for in this file, if it does."""
    origin = home.origins.get(name, "")
    home = module(origin[1:]) if origin[1:] and origin[0] == "." else home
    return Class(home, home.classes[name]) if name in home.classes else None


def reached() -> dict[str, Class]:
    """Every class that has a blocking one, by name."""
    twins: dict[str, Class] = {}
    ahead = [found(module("client"), "Client")]
    while ahead:
        one = ahead.pop()
        if one and one.is_async and one.name not in twins:
            twins[one.name] = one
            ahead += [found(one.home, name) for name in one.names() | set(one.parts.values())]
    return dict(sorted(twins.items()))


def passed(args: ast.arguments) -> str:
    """The arguments, handed on."""
    given = [each.arg for each in args.args[1:]] + [f"{each.arg}={each.arg}" for each in args.kwonlyargs]
    return ", ".join(given + ([f"**{args.kwarg.arg}"] if args.kwarg else []))


def body(one: Class, member: Member, kind: str, twins: dict[str, Class]) -> str:
    """What a blocking method or property does, that gives `kind`."""
    call = f"self._inner.{member.name}" + ("" if member.args is None else f"({passed(member.args)})")
    match member.name:
        case "__aiter__":
            return "return self"
        case "__aexit__":
            return "self.close()"
        case "__anext__":
            return f"return {kind}(self._loop, self._loop.step(self._inner))"
        case "close" if one.parts:
            return f"self._loop.close({call})"
    is_stream = kind.startswith("Iterator[")
    item = kind[len("Iterator[") : -1] if is_stream else kind
    if is_stream or member.is_async:
        call = f"self._loop.{'iterate' if is_stream else 'run'}({call})"
    if item in twins:
        made = f"{item}(self._loop, {'each' if is_stream else call})"
        return f"return ({made} for each in {call})" if is_stream else f"return {made}"
    assert not member.names() & twins.keys(), f"{one.name}.{member.name}: this tool cannot translate {kind}"
    return {"Self": f"{call}\n        return self", "None": call}.get(kind, f"return {call}")


def blocking(one: Class, twins: dict[str, Class]) -> Iterator[str]:
    """The blocking class, piece by piece."""
    inner = f"_{one.home.name}.{one.name}"
    base = one.bases[0] if one.bases else f"Facade[{inner}]"
    if one.is_value:
        base = ", ".join((f"Value[{inner}]", *one.bases))
    yield "\n\n"
    yield from (f"@{name}\n" for name in one.decorators)
    yield f"class {one.name}({base}):\n    {one.docstring(one.node.body[0])}\n"
    if one.bases and not one.is_value:  # a message: its base reads what came with it
        made = found(one.home, base)
        assert made is not None
        assert made.init is not None
        yield '\n    __slots__ = ("_inner", "_loop")\n'
        yield f"\n    def __init__(self, loop: Loop, inner: {inner}) -> None:\n"
        yield f"        super().__init__(inner._{made.init.args.args[1].arg})\n"
        yield "        self._loop = loop\n        self._inner = inner\n"
    if one.init and one.parts:
        yield f"\n    def __init__({ast.unparse(one.init.args)}) -> None:\n"
        yield f"        inner = {inner}({passed(one.init.args)})\n        super().__init__(Loop(), inner)\n"
        yield from (
            f"        self.{name} = {kind}(self._loop, inner.{name})\n" for name, kind in one.parts.items()
        )
    for member in one.members:
        kind = ast.unparse(member.gives).replace("AsyncIterator[", "Iterator[")
        yield "\n    @property" if member.args is None else ""
        args = "self" if member.args is None else ast.unparse(member.args)
        yield f"\n    def {SPELLED.get(member.name, member.name)}({args}) -> {kind}:\n"
        yield f"        {member.docstring}\n" if member.docstring else ""
        yield f"        {body(one, member, kind, twins)}\n"


def imports(twins: dict[str, Class]) -> Iterator[str]:
    """What the blocking classes name, from where the async ones have it."""
    origins = {"Facade": ".blocking", "Loop": ".blocking", "Value": ".blocking"}
    for one in twins.values():
        for name in one.names() - twins.keys() - vars(builtins).keys():
            origin = one.home.origins[name]
            assert origins.setdefault(name.removeprefix("Async"), origin) == origin, (
                f"{name} is of two modules"
            )
    for is_ours in (False, True):
        modules = sorted({one.home.name for one in twins.values()}) if is_ours else []
        yield "".join(["\n", *(f"from . import {name} as _{name}\n" for name in modules)])
        for origin in sorted({each for each in origins.values() if each.startswith(".") is is_ours}):
            some = sorted(name for name in origins if origins[name] == origin)
            yield f"from {origin} import {', '.join(sorted(some, key=str.isupper, reverse=True))}\n"


def written() -> str:
    """The text of sync.py, but for its format."""
    twins = reached()
    classes = [piece for one in twins.values() for piece in blocking(one, twins)]
    head = TARGET.read_text(encoding="utf-8").partition(AFTER_HEAD)[0] + AFTER_HEAD
    return "".join([head, *imports(twins), f"\n__all__ = {list(twins)}\n", *classes])


def durations() -> str:
    """The text of durations.py: the server's, so that both read the same."""
    return DURATIONS_HEAD + DURATIONS_FROM.read_text(encoding="utf-8")


def stub() -> str:
    """The text of __init__.pyi: where each public name is from."""
    text = (SDK / "__init__.py").read_text(encoding="utf-8")
    names = {"": "sync"} | ast.literal_eval(
        text[text.index("\n_NAMES = {") + len("\n_NAMES = ") : text.index("\n_HOMES")]
    )
    lines = [f"from .{home} import {name} as {name}\n" for home in names for name in names[home].split()]
    return "".join([STUB_HEAD, *lines, "\n__version__: str\n"])


if __name__ == "__main__":
    DURATIONS.write_text(durations(), encoding="utf-8")
    STUB.write_text(stub(), encoding="utf-8")
    TARGET.write_text(written(), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", TARGET, STUB], check=True)
