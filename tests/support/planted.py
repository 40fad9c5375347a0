"""Planted faults: naive rules as data, each put into the real code in place of the rule that stands there.

A test that never fails proves nothing. Somebody has believed each of these rules for a while; the tables of
`faults/` have them, by the file that the rule is planted in:

    ["timeline/tail.py".the_tail_covers_all]                     file and name
    why = "A session reads from the tail though ..."             what somebody believed
    before = "return read >= self.floor"                         stands in the file, once
    after = "return True"                                        in its place; without it the rule is left out
    walk = 0                                                     the driver that must find it, and from where

A driver's number or text says where its search begins: a seed, a kind of group. `also` has further changes,
of this file or of another. The code of the changed function goes into the function object that all hold, and
the code from before comes back when the test ends. A fault can only change what is inside of functions.

A server process with a fault: `python -m tests.support.planted NAME [arguments of the server]`.
"""

import ast
import importlib
import inspect
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar

import pytest

from .build import OPENED

ROOT = Path(__file__).parents[2]
TABLES = Path(__file__).with_name("faults")
DRIVERS = {
    "walk": "tests/model/test_timeline.py",
    "nodes": "tests/model/test_nodes.py",
    "rot": "tests/model/test_nodes.py",
    "work": "tests/model/test_work.py",
    "keyed": "tests/server/delivery/test_keyed_walks.py",
    "order": "tests/timeline/test_key_order.py",
    "waiting": "tests/store/test_waiting.py",
    "upsert": "tests/shards/test_upsert.py",
    "sync": "tests/crash/test_sync.py",
    "stories": "tests/ledger/test_messages.py",
}
"""Each driver, and the test that has it find its faults."""
LEFT_OUT = "pass"
Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Change:
    file: str
    before: str
    after: str = LEFT_OUT


@dataclass(frozen=True)
class Fault:
    """A naive rule."""

    name: str
    why: str
    changes: tuple[Change, ...]
    drivers: Mapping[str, Any]

    def __str__(self) -> str:
        return self.name

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Until `patch` undoes it. Raises AssertionError if the sources are not what the table says."""
        if "MUTANT_UNDER_TEST" in os.environ:
            pytest.skip("mutmut has put functions of its own in the place of these")
        for function, code in self.codes():
            patch.setattr(function, "__code__", code)

    def codes(self) -> list[tuple[FunctionType, CodeType]]:
        """The functions that are changed, and their codes with the fault."""
        found = []
        for file in dict.fromkeys(change.file for change in self.changes):
            text, names = (ROOT / file).read_text(encoding="utf-8"), []
            for change in self.changes:
                if change.file == file:
                    there = text.count(change.before)
                    assert there == 1, f"{self}: {there} times in {file}: {change.before}"
                    at = text.index(change.before)
                    names.append(_around(text, at + len(change.before) - len(change.before.lstrip())))
                    text = text.replace(change.before, change.after)
            codes = _codes(compile(text, str(ROOT / file), "exec", dont_inherit=True))
            module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
            found += [(_function(module, name), codes[name]) for name in dict.fromkeys(names)]
        return found


def _around(text: str, at: int) -> str:
    """The qualified name of the outermost function around a place in the text of a file."""
    line, names = text.count("\n", 0, at) + 1, list[str]()
    body: Sequence[ast.stmt] = ast.parse(text).body
    while True:
        (node,) = (one for one in body if one.lineno <= line <= (one.end_lineno or 0))
        assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef), "outside of functions"
        names.append(node.name)
        if not isinstance(node, ast.ClassDef):
            return ".".join(names)
        body = node.body


def _codes(code: CodeType) -> dict[str, CodeType]:
    """The functions of a module, and of its classes, by qualified name."""
    found: dict[str, CodeType] = {}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= {inner.co_qualname: inner} if inner.co_flags & inspect.CO_NEWLOCALS else _codes(inner)
    return found


def _function(owner: Any, name: str) -> FunctionType:
    for part in name.split("."):
        owner = inspect.getattr_static(owner, part)
    owner = owner.fget if isinstance(owner, property) else getattr(owner, "__func__", owner)
    function = inspect.unwrap(owner)
    assert isinstance(function, FunctionType)
    return function


@cache
def every_fault() -> dict[str, Fault]:
    """By name."""
    found: dict[str, Fault] = {}
    for path in sorted(TABLES.glob("*.toml")):
        for file, faults in tomllib.loads(path.read_text(encoding="utf-8")).items():
            for name, row in faults.items():
                assert name not in found, f"two faults are called {name}"
                changes = [row, *row.pop("also", ())]
                made = tuple(
                    Change(one.get("file", file), one.pop("before"), one.pop("after", LEFT_OUT))
                    for one in changes
                )
                why = row.pop("why", name)
                assert row.keys() <= DRIVERS.keys(), f"{name}: no driver is called so: {row}"
                found[name] = Fault(name, why, made, row)
    return found


def finds(driver: str) -> Callable[[Test], Test]:
    """Runs a test with each `fault` that this driver must find."""
    mine = [fault for fault in every_fault().values() if driver in fault.drivers]
    return lambda test: OPENED(pytest.mark.parametrize("fault", mine, ids=str)(test))


def main(name: str, *arguments: str) -> int:
    from server.__main__ import main as serve

    every_fault()[name].plant(pytest.MonkeyPatch())
    return serve(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
