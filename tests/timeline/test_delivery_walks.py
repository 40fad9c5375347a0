"""The life of deliveries, walked at random: places of all kinds, and groups that order.

The rules are the facts of decision 0032. Each rule left out is found. A fault is an entry of the table that
is another one (here), or a line of the code or of the walked place that is another one: `lives` and `ordered`
in tests/support/faults/timeline.toml.
"""

from typing import NamedTuple

import pytest

from tests.model import delivery_lives as model
from tests.model import order
from tests.model.ordered_deliveries import Ruled
from tests.support.planted import Fault, finds
from tests.support.soak import SOAK
from timeline import deliveries as table
from timeline.deliveries import LIFE, CannotBe, Rule
from timeline.delivery_rows import Event, State

LIVES, ORDERED = (5_000, 50_000) if SOAK else (20, 120)
SEARCH, ORDERED_SEARCH = 300, 400
"""Walks that a fault may take."""
FOUND = (AssertionError, CannotBe, KeyError)


class Entry(NamedTuple):
    """An entry of the table, and what somebody may believe in its place. `fact` 0: it is of no fact."""

    fact: int
    event: Event
    state: State
    rule: Rule
    driver: str = "lives"

    def __str__(self) -> str:
        return f"{self.fact}-{self.event.name}-{self.state.name}-{self.rule.__name__}-{self.driver}"


E, S = Event, State
ENTRIES = [
    Entry(1, E.RELEASE, S.DEAD, table.ends, "ordered"),
    Entry(0, E.BURY, S.WAITING, table.drops),
    Entry(3, E.SKIP, S.WAITING, table.stays, "ordered"),
    Entry(3, E.SKIP, S.UNREAD, table.stays),
    Entry(6, E.NACK, S.HANDED, table.stays),
    Entry(6, E.NACK, S.HANDED, table.ends),
    Entry(6, E.KILL, S.HANDED, table.left),
    Entry(6, E.LATE_ACK, S.HANDED, table.stays),
    Entry(6, E.INHERIT, S.HANDED, table.ends),
    Entry(6, E.INHERIT, S.OUT, table.left),
    Entry(6, E.INHERIT, S.OUT, table.ends),
    Entry(7, E.END_OF_PLACE, S.WAITING, table.stays),
    Entry(7, E.END_OF_PLACE, S.DEAD, table.ends),
    Entry(7, E.DROP, S.DEAD, table.stays),
    Entry(8, E.RETURN, S.OUT, table.fails),
    Entry(8, E.PUT_BACK, S.LEASED, table.fails),
    Entry(8, E.PUT_BACK, S.LEASED, table.returns),
    Entry(8, E.PUT_BACK, S.LEASED, table.left),
    Entry(9, E.OWNER_BACK, S.WITHHELD, table.dies),
    Entry(9, E.WITHHOLD, S.OUT, table.dies),
    Entry(9, E.PUT_OFF, S.OUT, table.dies),
    Entry(9, E.PUT_OFF, S.OUT, table.dies, "ordered"),
    Entry(9, E.PUT_OFF, S.OUT, table.ends, "ordered"),
    Entry(9, E.PUT_OFF, S.WAITING, table.drops),
    Entry(10, E.ACK, S.LEASED, table.left),
    Entry(10, E.RETURN, S.LEASED, table.fails),
    Entry(11, E.KILL, S.OUT, table.left),
    Entry(12, E.MOVE, S.WAITING, table.stays),
    Entry(12, E.JOIN, S.DEAD, table.joined),
    Entry(13, E.SLICE_GOES, S.OUT, table.stays),
    Entry(13, E.SLICE_GOES, S.OUT, table.dies),
    Entry(13, E.SLICE_GOES, S.LEASED, table.dies),
    Entry(13, E.SLICE_GOES, S.UNREAD, table.stays),
    Entry(13, E.SLICE_GOES, S.DROPPED, table.stays),
    Entry(13, E.SLICE_GOES, S.DONE, table.stays),
    Entry(7, E.END_OF_PLACE, S.DONE, table.stays),
    Entry(0, E.EVICT, S.DONE, table.stays),
    Entry(0, E.COME, S.DONE, table.stays),
    Entry(13, E.UNREADABLE, S.OUT, table.acked),
    Entry(13, E.UNREADABLE, S.WAITING, table.stays),
    Entry(13, E.BAR, S.WAITING, table.acked),
    Entry(13, E.EXPIRE, S.OUT, table.acked),
    Entry(13, E.TOO_LARGE, S.OUT, table.fails),
    Entry(14, E.KILL, S.LEASED, table.left),
    Entry(14, E.LOST, S.LEASED, table.left),
    Entry(14, E.WITHHOLD, S.WAITING, table.dies),
    Entry(0, E.LATE_ACK, S.WAITING, table.stays),
    Entry(0, E.LATE_ACK, S.DEAD, table.stays),
    Entry(0, E.LATE_ACK, S.UNREAD, table.stays),
    Entry(0, E.NACK, S.OUT, table.left),
    Entry(0, E.ACK, S.WAITING, table.never),
    Entry(0, E.ACK, S.WAITING, table.stays),
    Entry(0, E.ACK, S.DEAD, table.stays),
]


def lives(first: int, walks: int) -> None:
    for seed in range(first, first + walks):
        model.walk(seed)


def ordered(first: int, walks: int) -> None:
    for seed in range(first, first + walks):
        order.walk(seed, kind=Ruled)


DRIVERS = {"lives": (lives, SEARCH), "ordered": (ordered, ORDERED_SEARCH)}


@pytest.mark.long
def test_lives_keep_every_promise() -> None:
    lives(0, LIVES)


@pytest.mark.long
def test_groups_that_order_keep_every_promise() -> None:
    ordered(0, ORDERED)


def test_a_few_walks() -> None:
    lives(0, 1)
    ordered(0, 3)


@pytest.mark.proof
@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_each_entry_that_is_another_one_is_found(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = list(LIFE[entry.event])
    rules[entry.state.value] = entry.rule
    monkeypatch.setitem(LIFE, entry.event, tuple(rules))
    driver, walks = DRIVERS[entry.driver]
    with pytest.raises(FOUND):
        driver(0, walks)


@pytest.mark.proof
@finds("lives")
def test_each_rule_of_lives_left_out_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    with pytest.raises(FOUND):
        lives(fault.drivers["lives"], SEARCH)


@pytest.mark.proof
@finds("ordered")
def test_each_rule_of_order_left_out_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    with pytest.raises(FOUND):
        ordered(fault.drivers["ordered"], ORDERED_SEARCH)
