"""How deliveries ended, noted for the archive: each end once, and after a kill just what is durable."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest

from server.codec import wire
from server.codec.packets import Publish
from server.delivery.burials import GROUP_DELETED
from server.delivery.done_counts import DoneCounts
from server.delivery.shared import Group
from server.rounds.housekeeping import Housekeeping
from shards import ended, keys
from shards.archives import QUARTER_MS
from shards.fields import Record
from shards.pointers import pointers
from shards.record import encode
from shards.store import Table
from shards.tables import EndRow
from tests.support.delivery_rows import failed
from tests.support.ends import check_batches, check_last, counts_of, ends_of, words_of
from tests.support.rig import Peer, Rig, config
from timeline.delivery_rows import Case, Event, Seen
from timeline.position import END, START, Position

TEXT = "$share/g/jobs"
ALL, FAILED, NONE = ("keep", "all"), ("keep", "failed"), ("keep", "none")
ARCHIVED = config(archive="/var/archive")
Terms = tuple[tuple[str, str], ...]


class Place:
    """A group with an archive, and its worker."""

    def __init__(self, *terms: tuple[str, str], qos: int = 1) -> None:
        self.rig = Rig(ARCHIVED)
        self.qos = qos
        self.peer = self.come(terms)

    def come(self, terms: Terms = ()) -> Peer:
        asked = terms if "backoff" in dict(terms) else (*terms, ("backoff", "1s"))
        return self.rig.lasting("w").subscribed(TEXT, qos=self.qos, user_properties=asked)

    @property
    def group(self) -> Group:
        return self.rig.group(TEXT)

    def job(self, **options: int) -> Publish:
        """Publish one; as the worker gets it."""
        self.rig.send("jobs", "x", **options)
        return self.next()

    def next(self) -> Publish:
        self.rig.pass_ms(3_000)
        return self.peer.publishes()[-1]

    def ack(self, job: Publish) -> None:
        self.peer.ack(wire.PUBACK, job.packet_id)
        self.store()

    def store(self) -> None:
        """Where everybody stands goes to the disk."""
        self.rig.pass_ms(1_000)
        self.rig.decide(lambda _: None)

    def requeue(self) -> None:
        """The one dead letter."""
        ((name, now_ms),) = [(row.name, self.rig.clock.now_ms) for row in self.rig.core.dead_letters.read()]
        again = self.rig.core.dead_letters.requeue
        assert self.rig.decide(lambda commit: again(commit, name, now_ms, lambda *_: True)) == [True]

    def check(self) -> None:
        check_batches(self.rig.store)
        assert not list(pointers(self.rig.store, self.rig.core.directory))

    @property
    def words(self) -> list[str]:
        self.check()
        check_last(self.rig.core)
        return words_of(self.rig.store)


@pytest.fixture
def place() -> Iterator[Place]:
    """One that keeps all."""
    made = Place(ALL)
    yield made
    made.check()


def test_without_an_archive_nothing_is_noted() -> None:
    rig = Rig()
    peer = rig.lasting("w").subscribed(TEXT, qos=1, user_properties=(ALL,))
    rig.send("jobs", "1", "2")
    first, second = peer.publishes()
    peer.ack(wire.PUBACK, first.packet_id)
    peer.nack(second, "never")
    rig.pass_ms(1_000)
    assert list(rig.store.scan(Table.DELIVERIES, keys.ENDED, keys.LAST)) == []
    assert ended.total(rig.store) == ended.NONE


def test_an_end_says_which_message_at_which_place_and_how(place: Place) -> None:
    place.rig.send("jobs", "x")
    job = place.peer.one()
    place.rig.pass_ms(2_000)
    place.ack(job)
    (one,) = ended.ended_between(place.rig.store, 0, 1 << 47)
    ((root, shard, _),) = place.rig.core.reader.read(START, END)
    assert one.root == root
    assert one.row == EndRow(
        "g",
        "group",
        place.group.incarnation,
        "done",
        attempts=1,
        by="w",
        held_ms=one.row.held_ms,
        shard=shard,
    )
    assert 2_000 <= one.row.held_ms < 3_000
    assert place.rig.clock.now_ms - 2_000 < one.at >> 48 <= place.rig.clock.now_ms


@pytest.mark.parametrize(("keep", "words"), [(ALL, ["done"] * 2), (FAILED, ["done"]), (NONE, [])])
def test_what_is_done_is_counted_and_has_a_row_if_it_is_kept(keep: tuple[str, str], words: list[str]) -> None:
    place = Place(keep)
    place.ack(place.job())
    place.peer.nack(place.job())
    place.ack(place.next())
    assert place.words == words
    assert counts_of(place.rig.store) == {"done": 2}
    (counts,) = {(one.row.place, one.row.kind) for one in ended.ends_between(place.rig.store, 0, 1 << 47)}
    assert counts == ("g", "group")


def test_the_last_end_of_a_delivery_has_the_highest_number(place: Place) -> None:
    place.peer.nack(place.job(), "never", "no paper")
    place.requeue()
    place.ack(place.next())
    found = list(ended.ended_between(place.rig.store, 0, 1 << 47))
    assert [one.row.end for one in found] == place.words == ["dead", "requeued", "done"]
    assert len({one.root for one in found}) == 1
    assert sorted(one.at & 0xFFFF_FFFF_FFFF for one in found) == [one.at & 0xFFFF_FFFF_FFFF for one in found]
    assert [(one.row.attempts, one.row.reason, one.row.by) for one in found] == [
        (1, "no paper", "w"),
        (1, "no paper", "w"),
        (2, "", "w"),
    ]
    assert found[0].row.id == found[1].row.id != b""


def test_a_dead_letter_that_is_acked_late_is_done_whatever_is_kept() -> None:
    place = Place(NONE, ("ack-timeout", "1s"), ("max-attempts", "1"))
    late = place.job()
    place.ack(late)
    assert place.words == ["dead", "done"]
    assert counts_of(place.rig.store) == {"dead": 1, "done": 1}
    place.ack(late)
    assert place.words == ["dead", "done"]


def test_a_late_ack_of_what_waits_is_counted_and_has_a_row_if_it_is_kept() -> None:
    for keep, words in ((FAILED, ["done"]), (NONE, [])):
        place = Place(keep, ("ack-timeout", "1s"), ("backoff", "1m"))
        place.ack(place.job())
        assert place.words == words
        assert counts_of(place.rig.store) == {"done": 1}
        place.rig.send("jobs", "in time")
        place.ack(place.peer.one())
        assert counts_of(place.rig.store) == {"done": 2}


def test_what_somebody_drops_is_dropped(place: Place) -> None:
    place.peer.nack(place.job(), "never", "no paper")
    ((name, drop),) = [
        (row.name, place.rig.core.dead_letters.drop) for row in place.rig.core.dead_letters.read()
    ]
    assert place.rig.decide(lambda commit: drop(commit, name, lambda *_: True)) == [True]
    assert place.words == ["dead", "dropped"]
    assert place.rig.decide(lambda commit: drop(commit, name, lambda *_: True)) == [False]
    assert place.words == ["dead", "dropped"]


def test_what_is_over_before_its_next_try_has_expired(place: Place) -> None:
    peer = place.rig.connected("p")
    peer.publish1("jobs", "x", message_expiry=5)
    place.peer.nack(place.next(), "10s", "busy")
    place.rig.pass_ms(6_000)
    (one,) = ends_of(place.rig.store)
    assert (one.end, one.reason, one.attempts) == ("expired", "expired; busy", 1)


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_group_that_is_deleted_leaves_the_ends_of_all_that_it_had(is_dead: bool) -> None:
    place = Place(ALL, ("ack-timeout", "1m"))
    done, waits = place.job(), place.job()
    place.peer.nack(waits, "1m", "busy")
    place.rig.pass_ms(1_000)
    place.rig.pause(TEXT)
    place.rig.send("jobs", "unread")
    place.peer.ack(wire.PUBACK, done.packet_id, pump=False)
    place.rig.deliver()
    group, groups = place.group, place.rig.core.groups
    place.rig.decide(lambda commit: groups.disband(commit, group, is_dead=is_dead))
    end = "dead" if is_dead else "dropped"
    assert sorted(place.words) == sorted([*[end] * 2, "done"])
    assert counts_of(place.rig.store) == {end: 2, "done": 1}
    reasons = {(row.reason, row.attempts) for row in ends_of(place.rig.store) if row.end == end}
    assert reasons == {(GROUP_DELETED, 0), (GROUP_DELETED, 1)}


def test_a_skip_gives_up_what_is_unread(place: Place) -> None:
    place.rig.pause(TEXT)
    place.rig.send("jobs", "1", "2")
    skip, group = place.rig.core.replay.skip, place.group
    place.rig.decide(lambda commit: skip(commit, group, END, "skipped", is_dead=False))
    assert [(row.end, row.reason) for row in ends_of(place.rig.store)] == [("dropped", "skipped")] * 2


def test_of_a_session_what_ends_badly_is_noted() -> None:
    rig = Rig(ARCHIVED)
    peer = rig.lasting("device").subscribed("t", qos=1)
    rig.send("t", "1", "2")
    first, second = peer.publishes()
    peer.ack(wire.PUBACK, first.packet_id)
    peer.nack(second, "never", "no")
    rig.pass_ms(1_000)
    (one,) = ends_of(rig.store)
    assert (one.place, one.kind, one.end, one.reason) == ("device", "session", "dead", "no")
    assert counts_of(rig.store) == {"dead": 1}
    check_batches(rig.store)


def test_what_has_no_slice_any_more_leaves_no_row_and_its_end(place: Place) -> None:
    addressee, called, incarnation = place.group.names
    names = {"addressee": addressee, "group": called, "incarnation": incarnation}
    row = failed(Position(1), encode(Record(b"jobs", b"x")), **names)
    case = Case(START, reason="skipped", is_dead=False)
    drop, seen = place.rig.core.lives.give_up, Seen(is_ahead=True, replay=1)
    place.rig.decide(lambda commit: drop(commit, row, Event.SKIP, case, seen), pump=False)
    place.rig.core.directory.floor = Position(2)
    place.rig.pump()
    (one,) = ends_of(place.rig.store)
    assert (one.end, one.reason, one.attempts) == ("dropped", "skipped", 0)
    assert not list(place.rig.store.scan(Table.DELIVERIES, keys.STATE, keys.ENDED))


def test_of_an_endpoint_the_name_is_shown() -> None:
    names = (f"{keys.GROUP_PREFIX}{keys.ENDPOINT_PREFIX}shop", f"{keys.ENDPOINT_PREFIX}shop", 7)
    assert ended.shown(names) == ("shop", "endpoint", 7)


def test_results_and_their_acks_are_counted_once(place: Place) -> None:
    place.job()
    settling, core = place.rig.core.settling, place.rig.core
    ((member, theirs),) = place.group.lent.items()
    (number,) = core.settling.lease(member, TEXT, list(theirs), 30_000)
    follow = partial(settling.follow, text=TEXT, number=number, is_it=lambda _: True, place=list, result=b"1")
    assert place.rig.decide(follow) == [[]]
    place.rig.pass_ms(1_000)
    assert place.words == ["done"]
    assert counts_of(place.rig.store) == {"done": 1}
    assert place.group.rows.ends["done"] == place.group.rows.noted == 1


def all_done(place: Place, count: int) -> None:
    """A worker comes, and in the end each message is done, and counted once."""
    place.rig.pump()
    place.peer.drop()
    place.peer = place.rig.lasting("w", pump=False)
    place.rig.pump()
    for _ in range(12):
        place.rig.pass_ms(5_000)
        place.peer.deliveries(is_strict=False)
    assert not place.group.session.flights
    place.rig.finish()
    assert counts_of(place.rig.store) == {"done": count}
    place.check()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("survivors", [0, 1])
@pytest.mark.parametrize("how", ["crash", "lose"])
def test_each_is_counted_once_whatever_is_durable_as_it_is_killed(qos: int, survivors: int, how: str) -> None:
    for steps in range(9):
        place = Place(ALL, qos=qos)
        place.rig.send("jobs", "1", "2", "3", "4", qos=qos)
        ids = [job.packet_id for job in place.peer.publishes()]
        for kind in (wire.PUBACK,) if qos == 1 else (wire.PUBREC, wire.PUBCOMP):
            for number, packet_id in enumerate(ids[:3]):
                is_last = number == 2 and kind != wire.PUBREC
                place.rig.clock.now_ms += 150 * (not is_last)
                place.peer.ack(kind, packet_id, pump=not is_last)
        place.rig.take_steps(steps)
        if how == "crash":
            place.rig.crash(survivors)
        elif place.rig.stepper.unsynced:
            place.rig.lose(survivors)
        all_done(place, 4)


def test_at_qos_2_the_count_goes_with_the_cursor_of_the_member() -> None:
    place = Place(NONE, qos=2)
    place.rig.send("jobs", "1", "2", qos=2)
    place.store()
    first, second = place.peer.publishes()
    for kind in (wire.PUBREC, wire.PUBCOMP):
        place.peer.ack(kind, first.packet_id)
        place.peer.inbox.clear()
    place.rig.clock.now_ms += 200
    place.peer.ack(wire.PUBREC, second.packet_id)  # which waits for that cursor
    place.rig.crash()
    assert place.rig.session("w").session.flights.keys() == {second.packet_id}
    assert counts_of(place.rig.store) == {"done": 1}


@pytest.mark.parametrize("survivors", [0, 1, 2, 5])
@pytest.mark.parametrize("is_lost", [False, True])
def test_each_has_one_row_though_batches_overlap(survivors: int, is_lost: bool) -> None:
    """In a cluster a batch takes longer than the time between two writes of a cursor."""
    place = Place(ALL)
    place.rig.send("jobs", "1", "2", "3")
    place.rig.pass_ms(3_000)
    for job in place.peer.publishes():
        place.peer.ack(wire.PUBACK, job.packet_id, pump=False)
        place.rig.deliver()
        place.rig.clock.now_ms += 300
        place.rig.decide(lambda _: None, pump=False)
        place.rig.compose()
    assert place.rig.stepper.unsynced > 1
    if is_lost:
        place.rig.lose(survivors)
    place.rig.pump()
    place.store()
    assert place.words == ["done"] * 3
    assert counts_of(place.rig.store) == {"done": 3}


@pytest.mark.parametrize("survivors", [0, 5])
def test_what_a_group_has_done_that_ends_is_counted_once_though_its_batch_fails(survivors: int) -> None:
    place = Place(ALL)
    job = place.job()
    place.peer.ack(wire.PUBACK, job.packet_id, pump=False)
    place.rig.deliver()
    group, groups = place.group, place.rig.core.groups
    place.rig.decide(lambda commit: groups.disband(commit, group), pump=False)
    place.rig.compose()
    place.rig.compose()
    assert counts_of(place.rig.store) == {"done": 1}
    place.rig.lose(survivors)
    place.rig.pump()
    place.rig.decide(lambda _: None)
    assert place.words == ["done"]
    assert counts_of(place.rig.store) == {"done": 1}


def test_beyond_the_bound_ends_are_only_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(ALL)
    place.ack(place.job())
    size, group = ended.total(place.rig.store), place.rig.core.opened.open_batch
    assert (size.rows, group.ends_lost) == (2, 0)
    monkeypatch.setattr(ended, "ENDS_MAX", 2)
    place.ack(place.job())
    place.rig.pass_ms(1_000)
    assert counts_of(place.rig.store) == {"done": 2}, "there is still room for counts"
    assert (ended.total(place.rig.store).rows, group.ends_lost) == (2, 1)
    monkeypatch.setattr(ended, "ROWS_MAX", 2)
    place.ack(place.job())
    place.peer.nack(place.job(), "never")
    place.rig.pass_ms(1_000)
    assert ended.total(place.rig.store).rows == size.rows
    assert counts_of(place.rig.store) == {"done": 2}
    assert group.ends_lost == 3
    assert words_of(place.rig.store) == ["done"]
    assert not list(pointers(place.rig.store, place.rig.core.directory))


def test_what_the_archive_has_is_cleared(place: Place) -> None:
    place.ack(place.job())
    cut_ms = (place.rig.clock.now_ms // QUARTER_MS + 1) * QUARTER_MS
    place.rig.decide(lambda commit: ended.clear_before(commit, cut_ms))
    assert place.words == ["done"], "it is not over yet"
    place.rig.jump(cut_ms - place.rig.clock.now_ms)
    place.ack(place.job())
    place.rig.decide(lambda commit: ended.clear_before(commit, cut_ms + 5))
    assert len(ends_of(place.rig.store)) == sum(counts_of(place.rig.store).values()) == 1
    assert ended.total(place.rig.store).rows == 2
    place.rig.jump(2 * QUARTER_MS)
    place.rig.decide(lambda commit: ended.clear_before(commit, place.rig.clock.now_ms))
    assert ended.total(place.rig.store) == ended.NONE
    assert list(place.rig.store.scan(Table.DELIVERIES, keys.ENDED, keys.LAST)) == []


def test_what_was_noted_for_an_archive_that_is_given_up_goes(place: Place) -> None:
    place.ack(place.job())
    asked: list[object] = []

    async def ask(decide: Any) -> None:
        asked.extend(place.rig.decide(decide))

    others: list[Any] = [AsyncMock() for _ in range(6)]
    for settings, left in ((ARCHIVED, 2), (config(), 0)):
        place.rig.crash(settings=settings, pump=True)
        place.rig.jump(QUARTER_MS)
        asyncio.run(Housekeeping(place.rig.core, ask, *others)._sweep_ends())
        assert ended.total(place.rig.store).rows == left
    assert len(asked) == 1
    assert ends_of(place.rig.store) == []


def test_what_a_batch_that_could_not_be_sealed_had_is_written_with_the_next(place: Place) -> None:
    place.ack(place.job())
    counts, group = DoneCounts(), place.group
    group.rows.ends["done"] += 1
    before = group.rows.noted
    place.rig.decide(lambda commit: counts.write(commit, group, {}))
    place.rig.decide(counts.begin)
    assert group.rows.noted == before
