"""The picture of docs/places.md is drawn from the table. That it is up to date, test_tables.py says."""

import pytest

from tests.support.life import SHOWN, WAYS, arrows, picture
from timeline.deliveries import LIFE, refused
from timeline.delivery_rows import Event, State


def test_it_has_each_event_and_each_state_that_users_see() -> None:
    told = {event for way in WAYS for event in way.events}
    assert told == set(Event)
    assert {end for arrow in arrows() for end in arrow} == set(SHOWN)
    assert len(picture().splitlines()) <= 40, "one screen"


def test_it_is_what_the_table_says() -> None:
    found = arrows()
    assert "ack" in found["in_flight", "done"]
    assert "nack" in found["in_flight", "retry"]
    assert found["waiting", "in_flight"] == found["retry", "in_flight"] == ["given"]
    assert ("dropped", "dead") not in found
    assert "sender barred" in found["retry", "withheld"]
    assert found["withheld", "retry"] == ["sender allowed", "try", "requeue from another place"]


def test_another_table_is_another_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    before, rules = picture(), list(LIFE[Event.BURY])
    rules[State.WAITING.value] = refused
    monkeypatch.setitem(LIFE, Event.BURY, tuple(rules))
    assert "bury" not in arrows()["retry", "dead"]
    assert picture() != before
