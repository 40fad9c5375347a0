"""Planted faults: naive rules as data, each put into the real code in place of the rule that stands there.

A test that never fails proves nothing. Somebody has believed each of these rules for a while; the tables of
`faults/` have them, by the file that the rule is planted in:

    ["timeline/tail.py".the_tail_covers_all]                         file and name
        why = "A session reads from the tail though its ..."         what somebody believed
        before = "return read >= self.floor"                         stands in the file, once
        after = "return True"                                        in its place; without it: pass
        walk = 0                                                     the driver that must find it

A driver's number or text says where its search begins: a seed, a kind of group. `also` has further changes,
of this file or of another. The code of the changed function goes into the function object that all hold, and
the code from before comes back when the test ends. A fault can only change what is inside of functions.

A server process with a fault: `python -m tests.support.planted NAME [arguments of the server]`.
"""

import inspect
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
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
    "filters": "tests/server/delivery/test_filter_walks.py",
    "withheld": "tests/server/delivery/test_withheld.py",
    "order": "tests/timeline/test_key_order.py",
    "lives": "tests/timeline/test_delivery_walks.py",
    "ordered": "tests/timeline/test_delivery_walks.py",
    "waiting": "tests/store/test_waiting.py",
    "upsert": "tests/shards/test_upsert.py",
    "rows": "tests/shards/test_deliveries.py",
    "sync": "tests/crash/test_sync.py",
    "stories": "tests/ledger/test_messages.py",
}
"""Each driver, and the test that has it find its faults."""
Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Fault:
    """A naive rule."""

    name: str
    why: str
    changes: Sequence[tuple[str, str, str]]
    """(file, before, after)."""
    drivers: Mapping[str, Any]

    def __str__(self) -> str:
        return self.name

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Until `patch` undoes it. Raises AssertionError if the sources are not what the table says."""
        if "MUTANT_UNDER_TEST" in os.environ:
            pytest.skip("mutmut has put functions of its own in the place of these")
        for file in dict.fromkeys(file for file, *_ in self.changes):
            text = (ROOT / file).read_text(encoding="utf-8")
            functions, names = functions_of(compile(text, file, "exec")), list[str]()
            for before in [before for of, before, _ in self.changes if of == file]:
                assert text.count(before) == 1, f"{self}: {text.count(before)} times in {file}: {before}"
                start = text.index(before) + len(before) - len(before.lstrip())
                line = text.count("\n", 0, start) + 1
                names.append([name for name, code in functions.items() if code.co_firstlineno <= line][-1])
            for _, before, after in [change for change in self.changes if change[0] == file]:
                text = text.replace(before, after)
            changed = functions_of(compile(text, str(ROOT / file), "exec"))
            for name in dict.fromkeys(names):
                function = function_of(import_module(file.removesuffix(".py").replace("/", ".")), name)
                assert changed[name] != function.__code__, f"{self}: it is outside of functions"
                patch.setattr(function, "__code__", changed[name])


def functions_of(code: CodeType) -> dict[str, CodeType]:
    """The functions of a module, and of its classes, by qualified name and in their order."""
    found: dict[str, CodeType] = {}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            is_class = not inner.co_flags & inspect.CO_NEWLOCALS
            found |= functions_of(inner) if is_class else {inner.co_qualname: inner}
    return found


def function_of(owner: Any, name: str) -> FunctionType:
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
                every = [row, *row.get("also", ())]
                changes = [(one.get("file", file), one["before"], one.get("after", "pass")) for one in every]
                drivers = {key: row[key] for key in row.keys() - {"why", "before", "after", "also"}}
                assert drivers.keys() <= DRIVERS.keys(), f"{name}: no driver is called so: {drivers}"
                found[name] = Fault(name, row.get("why", name), changes, drivers)
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
