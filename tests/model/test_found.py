"""What the walks have found, each in the fewest steps that show it."""

from random import Random

import pytest

from server.engine.writer import Writer
from timeline.position import END, Position, at_of

from .rig import DAY_MS, Rig
from .walk import walk


def ready(*filters: tuple[str, str]) -> Rig:
    """With a durable session, open and subscribed, for each (client, filter)."""
    rig = Rig()
    for client_id, topic_filter in filters:
        rig.connect(client_id)
        group(rig)
        rig.subscribe(client_id, topic_filter, None)
        group(rig)
    return rig


def group(rig: Rig) -> None:
    rig.compose()
    rig.settle()


def deliver(rig: Rig, turns: int = 3) -> None:
    """Load and dispatch what is due."""
    for _ in range(turns):
        rig.heartbeat()
        group(rig)
        rig.load(8)
        rig.dispatch(8)
        rig.replay()


def test_a_day_passes_before_a_bound_is_durable() -> None:
    """The wheel skips to now, the horizon may not follow yet: that stopped the server."""
    rig = ready(("p0", "#"))
    deliver(rig)
    rig.tick(DAY_MS)
    rig.load(4)
    rig.dispatch(4)
    rig.load(4)
    rig.dispatch(4)
    rig.drain()


@pytest.mark.parametrize("is_composed", [False, True])
def test_a_move_is_cancelled_before_it_is_durable(is_composed: bool) -> None:
    """The moved row entered the wheel when its group was settled, cancelled or not: it came after a 204."""
    rig = ready(("p0", "#"))
    rig.put([(5_000, "a/1")])
    deliver(rig)
    rig.move(0, 100)
    if is_composed:
        rig.compose()
    rig.cancel(0)
    rig.compose()
    rig.settle()
    rig.settle()
    rig.tick(200)
    deliver(rig)
    assert not rig.oracle.delivered
    rig.drain()


def test_an_ack_of_the_last_connection_comes_on_the_next() -> None:
    """Before the message was sent again: it was sent again after its ack was durable."""
    rig = ready(("p0", "#"))
    rig.put([(0, "a/1")])
    deliver(rig)
    rig.room("p0", 0)
    rig.disconnect("p0")
    rig.bury()
    group(rig)
    rig.connect("p0")
    group(rig)
    rig.ack_late("p0", 0)
    rig.tick(300)
    rig.heartbeat()
    group(rig)
    rig.replay()
    rig.drain()


def test_a_session_is_woken_while_its_new_connection_opens() -> None:
    """It joined the tail before that was open, and what was in flight was not sent again."""
    rig = ready(("p0", "a/1"))
    rig.put([(0, "a/1")])
    deliver(rig)
    rig.connect("p0")
    session = rig.core.sessions.get("p0")
    assert session is not None
    rig.core.groups.read_on(session)
    rig.replay()
    group(rig)
    rig.replay()
    assert len(rig.clients["p0"].unread) == 1
    rig.drain()


def test_a_clean_start_is_not_undone_by_the_connection_before() -> None:
    """The old connection's end wrote the old session over the new one."""
    rig = ready(("p0", "#"))
    rig.connect("p0", clean=True)
    group(rig)
    rig.bury()
    group(rig)
    rig.kill(9, 0)
    session = rig.core.sessions.get("p0")
    assert session is not None
    assert not session.session.subscriptions
    rig.drain()


def test_a_failed_clean_start_leaves_no_half_of_it() -> None:
    """The new read position was stored with the old subscriptions."""
    rig = ready(("p0", "#"))
    rig.put([(0, "a/1")])
    deliver(rig)
    rig.kill(9, 0)
    rig.dispatch(8)
    rig.connect("p0", clean=True)
    rig.compose()
    rig.fail_sync()
    rig.recover(0)
    rig.heartbeat()
    rig.put([(5_000, "b/1/x")])
    rig.compose()
    rig.settle()
    rig.kill(0, 0)
    rig.drain()


def test_who_takes_a_session_over_keeps_it_when_the_connection_before_fails() -> None:
    """The group that was to make it durable failed, and the session was made to end with its connection:
    whoever had come for it meanwhile, was told that it stays, and lost it with the next kill."""
    rig = ready(("p0", "#"))
    rig.connect("p0", clean=True)
    rig.spoil(5_000, "a/1")
    rig.connect("p0")
    rig.compose()
    group(rig)
    assert rig.core.writer.given_up == rig.spoilt == 1
    rig.subscribe("p0", "b/#", None)
    group(rig)
    rig.kill(0, 0)
    assert set(rig.core.sessions.get("p0").session.subscriptions) == {"b/#"}  # type: ignore[union-attr]
    rig.drain()


def test_who_comes_back_in_a_group_that_is_given_up_is_told() -> None:
    """Nobody answered its CONNECT before another group was written, which may be long."""
    rig = ready(("p0", "#"))
    rig.connect("p0")
    rig.spoil(5_000, "a/1")
    rig.compose()
    assert rig.core.writer.given_up == rig.spoilt == 1
    assert rig.clients["p0"].is_closed
    rig.drain()


def test_a_key_is_asked_for_again_in_the_group_that_cuts_its_slice() -> None:
    """What the group had placed lay in a shard that the pieces borrow; it was looked for among their own."""
    rig = ready(("p0", "#"))
    rig.put([(400_000 + n, "b/1/x") for n in range(3)])
    group(rig)
    group(rig)
    rig.put_keyed(2)
    rig.split(0, Random(1))
    rig.put_keyed(2)
    group(rig)
    assert rig.core.writer.given_up == 0
    assert len([one for one in rig.oracle.messages.by_id.values() if one.tag == "key2"]) == 1
    rig.drain()


def test_dispatch_goes_on_after_a_failed_heartbeat() -> None:
    """The bound that the failed group had promised was thought to be written: none was for a while."""
    rig = ready(("p0", "#"))
    deliver(rig)
    rig.tick(60_000)
    rig.heartbeat()
    rig.compose()
    rig.fail_sync()
    rig.recover(0)
    assert rig.core.horizon.needs_heartbeat
    deliver(rig)
    assert at_of(rig.core.horizon.position) == rig.clock.now_ms


def test_a_failed_expiry_passes_nothing_over() -> None:
    """The slice was back, the floor was not."""
    rig = ready(("p0", "#"))
    rig.disconnect("p0")
    rig.bury()
    group(rig)
    rig.put([(1, "a/1")])
    group(rig)
    rig.tick(30_000)
    deliver(rig)
    rig.expire(0)
    group(rig)
    rig.compose()
    rig.fail_sync()
    rig.recover(0)
    assert at_of(rig.core.directory.floor) == 0
    rig.oracle.passed_over_ms = 0
    rig.drain()


def test_a_store_that_can_only_be_read_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes are refused, what is due goes out."""
    rig = ready(("p0", "#"))
    rig.put([(100, "a/1")])
    deliver(rig)
    rig.put([(100, "a/2")])
    rig.compose()
    rig.fail_sync()
    rig.recover(0, is_refused=True)
    writer: Writer = rig.core.writer
    assert writer.broken is not None
    rig.tick(500)
    rig.load(8)
    rig.dispatch(8)
    assert rig.oracle.delivered == {"m1"}
    rig.drain()
    assert writer.broken is None


def broken_and_late(*, is_markable: bool) -> Rig:
    """The store takes no groups, and a message becomes due long after."""
    rig = ready(("p0", "#"))
    rig.put([(60_000, "a/1")])
    deliver(rig)
    rig.put([(60_000, "a/2")])
    rig.fail_write()
    rig.recover(0, is_refused=True)
    assert rig.core.writer.broken is not None
    rig.tick(60_000)
    rig.core.heartbeat()
    rig.dispatch(8)
    assert rig.oracle.delivered == set(), "beyond the bound, which no group has moved"
    rig.mark(is_refused=not is_markable)
    rig.load(8)
    rig.dispatch(8)
    assert rig.oracle.delivered == {"m1"}
    return rig


def test_what_was_sent_on_a_full_disk_cannot_be_cancelled_after_a_kill() -> None:
    """Also if the clock is set back: nothing in the rows says that it was sent, the mark does."""
    rig = broken_and_late(is_markable=True)
    rig.kill(0, -50_000)
    rig.cancel(0)
    group(rig)
    assert rig.oracle.letters["m1"].is_accepted
    assert not rig.oracle.letters["m1"].is_cancelled
    rig.drain()


def test_a_disk_that_takes_not_even_a_mark() -> None:
    """Dispatch goes on without a bound until there is one again."""
    rig = broken_and_late(is_markable=False)
    assert rig.core.horizon.unbounded
    rig.mark()
    assert not rig.core.horizon.unbounded
    rig.drain()


def test_a_walk_is_the_same_twice() -> None:
    """A seed names a run."""
    one, two = walk(12), walk(12)
    assert one.history == two.history
    assert one.oracle.checks == two.oracle.checks
    assert [place for place, _, _ in one.core.reader.read(Position(0), END)] == [
        place for place, _, _ in two.core.reader.read(Position(0), END)
    ]
