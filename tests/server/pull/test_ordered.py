"""Leases of a group that orders: whatever becomes of the lease of a key's first message, what is behind it is
given when the first one is over, and not before."""

from collections.abc import Callable

import pytest

from server.pull.lease_id import LeaseId
from tests.support.pulling import TEXT, Puller, lease_of
from tests.support.rig import Rig
from timeline.position import END, START, message_id

LEASE_MS, BACKOFF_MS, TURN_MS, STEP_MS = 2_000, 1_000, 500, 250
TERMS = (("order", "true"), ("backoff", "1s"), ("expiry", "never"), ("max-attempts", "0"))


class Line:
    """A key with three messages, the first of which is leased. `lease`: the first lease."""

    def __init__(self, *, is_moved: bool = False) -> None:
        self.rig = Rig()
        founder = self.rig.connected("founder")
        founder.subscribe(TEXT, qos=1, user_properties=TERMS)
        founder.disconnect()
        self.puller = Puller(self.rig)
        self.send("1", wait="1h" if is_moved else "0s")
        if is_moved:
            ((place, shard, _),) = self.rig.core.reader.read(START, END, None)
            to_ms = self.rig.clock.now_ms + 500
            self.decided(lambda commit: commit.move(message_id(place, shard, 0), to_ms))
            self.rig.pass_ms(1_000)
        self.send("2", "3")
        (self.lease,) = self.asks("1")

    def send(self, *payloads: str, wait: str = "0s") -> None:
        sender = self.rig.connected("sender")
        for one in payloads:
            sender.publish1("t", one, user_properties=(("ordering-key", "k"), ("deliver-in", wait)))
        sender.disconnect()

    def decided(self, decide: Callable[..., object]) -> None:
        self.rig.core.writer.submit(decide, lambda _: None)
        self.rig.pump()

    def asks(self, *payloads: str) -> list[LeaseId]:
        """A call gets these."""
        leased = self.puller.ask(lease_ms=LEASE_MS).leased
        assert [one.given.message.record.payload.decode() for one in leased] == [*payloads]
        return [lease_of(one) for one in leased]

    def acks(self, *leases: LeaseId) -> int:
        (settled,) = self.puller.ack(leases)
        return settled.done

    def wait(self, by_ms: int) -> None:
        """In steps shorter than those in which leases are looked at."""
        for _ in range(0, by_ms, STEP_MS):
            self.rig.pass_ms(STEP_MS)

    def lapse(self, *, pump: bool = True) -> None:
        """The lease has just ended, and its next try is not due yet."""
        if pump:
            self.wait(LEASE_MS + TURN_MS)
        else:
            self.rig.clock.now_ms += LEASE_MS + TURN_MS


def _acked_in_the_turn_of_its_end(line: Line) -> None:
    line.lapse(pump=False)
    assert line.acks(line.lease) == 1


def _acked_while_it_waits(line: Line) -> None:
    line.lapse()
    line.asks()
    assert line.acks(line.lease) == 1


def _acked_while_another_has_it(line: Line) -> None:
    line.lapse()
    line.wait(BACKOFF_MS)
    (again,) = line.asks("1")
    line.asks()
    assert line.acks(line.lease) == 1
    assert line.acks(again) == 0


def _acked_by_its_next_lease(line: Line) -> None:
    line.lapse()
    line.wait(BACKOFF_MS)
    (again,) = line.asks("1")
    line.puller.nack([line.lease])  # of a former try: that is gone
    line.puller.release([line.lease])
    line.asks()
    assert line.acks(again) == 1


def _ended_while_many_are_passed(line: Line) -> None:
    line.lapse(pump=False)
    line.send(*(str(n) for n in range(4, 40)))
    line.asks()
    line.wait(BACKOFF_MS)
    assert line.acks(*line.asks("1")) == 1


def _kept_over_a_kill(line: Line) -> None:
    line.rig.kill()
    line.asks()
    assert line.acks(line.lease) == 1


def _ended_after_a_kill(line: Line) -> None:
    line.rig.kill()
    line.lapse()
    line.asks()
    assert line.acks(line.lease) == 1


def _given_again_after_a_kill(line: Line) -> None:
    line.lapse()
    line.rig.kill()
    line.asks()
    line.wait(BACKOFF_MS)
    (again,) = line.asks("1")
    line.rig.kill()
    line.asks()
    assert line.acks(line.lease) == 1
    assert line.acks(again) == 0


def _extended(line: Line) -> None:
    line.wait(LEASE_MS - TURN_MS)
    line.puller.extend([line.lease], LEASE_MS)
    line.wait(LEASE_MS - TURN_MS)
    line.asks()
    assert line.acks(line.lease) == 1


def _extended_too_late(line: Line) -> None:
    line.lapse()
    (settled,) = line.puller.extend([line.lease], 60_000)
    assert settled.gone == [line.lease]
    line.asks()
    line.wait(BACKOFF_MS)
    assert line.acks(*line.asks("1")) == 1


def _nacked_and_acked(line: Line) -> None:
    line.puller.nack([line.lease], 5_000, pump=False)
    line.puller.ack([line.lease], pump=False)
    line.rig.pump()


def _released(line: Line) -> None:
    line.puller.release([line.lease])
    (again,) = line.asks("1")
    assert line.acks(line.lease, again) >= 1


def _held_and_let_go(line: Line) -> None:
    rig = line.rig
    group = rig.core.groups.get(TEXT)
    assert group is not None
    line.decided(lambda commit: rig.core.holds.hold(commit, group, b"k"))
    assert line.acks(line.lease) == 1
    line.asks()
    line.decided(lambda commit: rig.core.holds.let_go(commit, group, b"k"))


def _given_up_by_its_client(line: Line) -> None:
    assert line.acks(line.lease) == 1
    asked = line.puller.ask(pump=False)
    for _ in range(3):
        line.rig.micro()
    line.puller.pull.abandon(asked.call)
    line.rig.pump()


WAYS = (
    *(_acked_in_the_turn_of_its_end, _acked_while_it_waits, _acked_while_another_has_it),
    *(_acked_by_its_next_lease, _ended_while_many_are_passed, _kept_over_a_kill, _ended_after_a_kill),
    *(_given_again_after_a_kill, _extended, _extended_too_late, _nacked_and_acked, _released),
    *(_held_and_let_go, _given_up_by_its_client),
)


@pytest.mark.parametrize("is_moved", [False, True], ids=["", "moved"])
@pytest.mark.parametrize("way", WAYS)
def test_what_follows_is_given_when_the_first_is_over(way: Callable[[Line], None], is_moved: bool) -> None:
    line = Line(is_moved=is_moved)
    way(line)
    (second,) = line.asks("2")
    line.asks()
    line.wait(LEASE_MS + TURN_MS + BACKOFF_MS)
    (again,) = line.asks("2")
    assert line.acks(second, again) >= 1
    line.asks("3")


@pytest.mark.parametrize("survivors", range(3))
@pytest.mark.parametrize("steps", range(8))
def test_a_kill_in_the_middle_of_an_ack(steps: int, survivors: int) -> None:
    """The lease holds, or the next one is given: never neither, never both."""
    line = Line()
    line.puller.ack([line.lease], pump=False)
    line.puller.ask(wait_ms=60_000, lease_ms=LEASE_MS, pump=False)
    for _ in range(steps):
        line.rig.micro()
    line.rig.crash(survivors)
    line.rig.pump()
    line.acks(line.lease)
    leased = line.puller.ask(lease_ms=LEASE_MS).leased
    if not leased:  # the call that was killed has it, and nobody else
        line.lapse()
        line.wait(BACKOFF_MS)
        leased = line.puller.ask(lease_ms=LEASE_MS).leased
    assert [one.given.message.record.payload for one in leased] == [b"2"]
    assert line.acks(lease_of(leased[0])) == 1
    line.asks("3")
