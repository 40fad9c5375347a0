"""Whatever a node may wait for without end has a sentence in `why`: every one that there is comes up here."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from server.cluster import clock_judge, copy_in, digests, follower, node, standby, trimming
from server.cluster.engine_side import LogSide
from server.cluster.members import ALIVE_S
from server.cluster.node import Node
from server.cluster.standby import Standby
from server.cluster.standing import HEAL
from server.settings.config import Config
from shards.log.chained import ChainedLog, open_engine
from shards.log.engine import LogState
from shards.log.errors import Damaged, LogDown, LogError, OtherClusterKey, OtherLog, Trimmed, UnknownVersion
from shards.replicated import ReplicatedStore
from tests.support.logs import Elapsing
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf

from .test_follower import Node as Following
from .test_follower import led
from .test_node import configured

SOURCES = (clock_judge, copy_in, digests, follower, node, standby, trimming)
HOLDERS = {"why", "_why", "fault", "_limit_fault", "_trim_fault", "UNASKED", "lines"}
LISTS = {"told", "lines"}
TELLERS = {"unfit", "full"}


def is_told(statement: ast.AST) -> bool:
    """Whether the statement says a sentence of `why`."""
    if isinstance(statement, ast.Assign):
        (target,) = statement.targets if len(statement.targets) == 1 else (ast.Tuple(),)
        return getattr(target, "attr", getattr(target, "id", "")) in HOLDERS
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "append"
        and getattr(call.func.value, "id", "") in LISTS
    )


def texts(statement: ast.AST) -> Iterator[ast.JoinedStr | ast.Constant]:
    """The strings in it that are in no other."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.JoinedStr) or (
            isinstance(child, ast.Constant) and isinstance(child.value, str)
        ):
            yield child
        else:
            yield from texts(child)


def pattern(text: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(text, ast.Constant):
        return re.escape(str(text.value))
    return "".join(pattern(part) if isinstance(part, ast.Constant) else ".*" for part in text.values)


def sentences() -> set[str]:
    """Every sentence of the code, as a pattern."""
    found = set()
    for module in SOURCES:
        for one in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
            said = [one] if is_told(one) else []
            if isinstance(one, ast.FunctionDef) and one.name in TELLERS:
                said = [part for part in ast.walk(one) if isinstance(part, ast.Return)]
            found |= {pattern(text) for statement in said for text in texts(statement)}
    return {one for one in found if "\\ " in one}


def leading(folder: Path, shelf: Shelf) -> Node:
    made = Node(configured(folder, takeover_after="3s", peers=["http://b:1", "http://c:1"]), None, None)
    engine, clock = MemoryEngine(shelf), Elapsing()
    made._store = ReplicatedStore(MemoryStore(), open_engine(engine, clock, 2.0))
    made._side = made._trimming._side = LogSide(lambda: open_engine(MemoryEngine(shelf), clock, 2.0))
    return made


async def of_the_log(folder: Path) -> list[str]:
    """What the log has, and has not."""

    async def refused(_: int) -> str:
        return "no"

    shelf = Shelf()
    shelf.frames[1], shelf.last = b"hello", 1
    made = leading(folder, shelf)
    store = made._store
    assert store is not None
    store.follow()
    store.lead("a", "http://a")
    said = [made.view()["why"]]
    made = leading(folder, Shelf())
    store = made._store
    assert store is not None
    store.lead("a", "http://a")
    made._side.limit = refused  # type: ignore[method-assign]
    await made._trimming.look(store)
    made._side.trim = refused  # type: ignore[method-assign]
    made._trimming.state = LogState(1, 100, 999, 1_000)
    await made._trimming.trim(store, 50, is_led=False)
    made._trimming.state = LogState(90, 100, 999, 1_000)
    made._trimming.bounds = 1, 20_000
    made._members.hear(replace(made._member(), node="gone", applied=3), int(ALIVE_S * 1000) + 1)
    said.append(made.view()["why"])
    made._side.unfit = "the stream is of 1 replicas"
    assert made.view()["why"].endswith("the stream is of 1 replicas")
    await made._side.close()
    return said


def of_the_others(folder: Path) -> Iterator[str]:
    """Clocks, names and settings."""
    made = leading(folder, Shelf())
    yield made._judge.fault
    for name in ("b", "c"):
        made._judge.clocks.measured(name, 10_000, 10_000)
    made._judge_clock()
    made._clock.stepped_ms = 7_000
    made._keys_digest = "1"
    other = replace(made._member(), node="b", url="", process="2", takeover_ms=9_000, keys_digest="2")
    made._members.hear(other)
    for process in ("1", "2", "1"):
        made._members.hear(replace(made._member(), process=process))
    assert made._store is not None
    made._store.timeline = "12ab"
    made._members.hear(replace(made._member(), node="x", timeline="another"))
    made._server = cast("Any", SimpleNamespace(app=SimpleNamespace(is_ready=False)))
    yield made.view()["why"]
    made = leading(folder / "log", Shelf())
    made._judge.log_clock.answered(made._clock.system_ms() + 10_000, made._judge.log_clock.now())
    yield made.view()["why"]


def unanswered() -> ChainedLog:
    raise LogDown("no answer")


async def of_a_copy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A node that needs another's data."""
    monkeypatch.setattr(node, "AGAIN_S", 0.0)
    made, said = leading(folder, Shelf()), []
    await made._resync(Damaged("record 7 is gone"), 7)
    said.append(made.view()["why"])
    side = made._side
    made._side = LogSide(unanswered)
    await made._resync(Damaged("record 7 is gone"), 7)
    assert made.view()["why"] == "record 7 is gone; the log does not answer"
    said.append(made.view()["why"])
    await made._side.close()
    made._side = side
    made._members.hear(replace(made._member(), node="b", url="http://127.0.0.1:9"))
    await made._resync(Damaged("record 7 is gone"), 0)
    said.append(made.view()["why"])
    assert made._store is not None
    made._store.timeline = "12ab"
    for name in ("b", "c"):
        made._members.hear(replace(made._member(), node=name, url=f"http://{name}:1", timeline="another"))
    await made._resync(Damaged("record 7 is gone"), 0)
    said.append(made.view()["why"])
    assert made._store is not None
    made._store.timeline = ""
    monkeypatch.setattr(node, "fetch", fetched)
    for _ in range(2):
        await made._resync(Trimmed("record 7 is trimmed"), 0)
    said.append(made.view()["why"])
    made._rounds.has_followed()
    await made._resync(Trimmed("record 7 is trimmed"), 0)
    assert made.view()["why"] == "record 7 is trimmed"
    await made._reports.close()
    await made._side.close()
    return said


async def fetched(*_: object) -> None:
    """A copy comes, and is of no use: the log is trimmed behind it."""


def of_a_follower() -> Iterator[str]:
    shelf = Shelf()
    store = ReplicatedStore(MemoryStore(), open_engine(MemoryEngine(shelf), Elapsing(), 2.0))
    yield Standby(Config(), store, lambda: 0.0).unfit()
    _, other = led(lambda name: Following(shelf, name))
    other.wall_ms += 10_000
    other.step(4.0)
    yield other.follower.why


async def test_every_sentence_comes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        *(await of_the_log(tmp_path / "a")),
        *of_the_others(tmp_path / "b"),
        *(await of_a_copy(tmp_path / "c", monkeypatch)),
        *of_a_follower(),
    ]
    expected = sentences()
    assert len(expected) >= 15
    missing = {one for one in expected if not any(re.search(one, why) for why in said)}
    assert not missing, "\n".join(sorted([*missing, *said]))


@pytest.mark.parametrize("kind", [LogDown, OtherClusterKey, OtherLog, UnknownVersion])
def test_what_the_log_says_is_told_as_it_is(kind: Callable[[str], LogError]) -> None:
    waiting = Following(Shelf(), "a")

    def refused(_hear_s: float) -> int:
        raise kind("why it is so")

    waiting.store.follow = refused  # type: ignore[method-assign]
    for _ in range(3):
        assert not waiting.step(60.0)
        assert waiting.follower.why == "why it is so" + (f"; {HEAL}" if kind is OtherLog else "")
