"""What is decided in the writer and not durable yet."""

from functools import partial
from typing import Any

from server.engine.commit_hook import CommitHook
from shards.commit import Commit
from shards.errors import StoreFailed
from shards.store import Table

from .test_writer import Rig


def spoil(commit: Commit) -> None:
    commit.row(Table.META, b"spoilt", b"")
    raise ValueError("planned")


class Told:
    """What became of decisions, in the order of telling."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.what: list[str] = []

    def decide(self, *names: str) -> None:
        def decide(commit: Commit) -> None:
            commit.row(Table.META, b"decided", names[0].encode())
            for name in names:
                undo, done = partial(self.what.append, f"no {name}"), partial(self.what.append, name)
                self.rig.core.decisions.note(undo, done)

        self.rig.submit(names[0], decide)


def test_each_is_done_when_its_batch_is_durable() -> None:
    told = Told()
    told.decide("a", "b")
    assert told.rig.compose()
    told.decide("c")
    assert told.rig.compose()
    assert not told.what
    told.rig.sync()
    assert told.what == ["a", "b"]
    told.rig.sync()
    assert told.what == ["a", "b", "c"]


def test_the_last_one_is_undone_first() -> None:
    told = Told()
    told.decide("a", "b")
    told.rig.compose()
    told.decide("c")
    told.rig.compose()
    told.rig.writer.fail(StoreFailed("planned"))
    assert told.what == ["no c", "no b", "no a"]
    assert told.rig.stepper.recover()
    assert len(told.what) == 3


def test_a_group_that_is_given_up_takes_nothing_with_it_that_is_under_way() -> None:
    told = Told()
    told.decide("a")
    assert told.rig.compose()
    told.decide("b")
    told.rig.submit("spoiler", spoil)
    assert not told.rig.compose()
    assert told.what == ["no b"]
    told.rig.sync()
    assert told.what == ["no b", "a"]


def test_they_are_undone_if_a_later_hook_fails() -> None:
    told = Told()

    class Failing(CommitHook):
        def write(self, commit: Commit) -> Any:
            raise StoreFailed("planned")

    told.rig.writer.add_hook(Failing())
    told.decide("a")
    assert not told.rig.compose()
    assert told.what == ["no a"]


def test_what_failed_is_reread_when_the_store_can_be_read() -> None:
    told = Told()
    faults = [StoreFailed("planned")]

    def look(name: str) -> None:
        if name == "b" and faults:
            raise faults.pop()
        told.what.append(f"look {name}")

    def decide(commit: Commit) -> None:
        commit.row(Table.META, b"decided", b"")
        for name in ("a", "b", "c"):
            undo, reread = partial(told.what.append, f"no {name}"), partial(look, name)
            told.rig.core.decisions.note(undo, reread=reread)

    told.rig.submit("all", decide)
    assert told.rig.compose()
    told.rig.writer.fail(StoreFailed("planned"))
    undone = ["no c", "no b", "no a"]
    assert told.what == undone
    assert not told.rig.stepper.recover(), "one of them could not be read"
    assert told.rig.stepper.recover()
    assert told.what == [*undone, "look a", "look b", "look c"]

    told.rig.submit("all", decide)
    told.rig.submit("spoiler", spoil)
    assert not told.rig.compose()
    assert told.what[6:] == [*undone, "look a", "look b", "look c"]
    assert told.rig.stepper.recover()
    assert len(told.what) == 12
