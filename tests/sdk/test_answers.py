"""A value is read from an answer by the types of its attributes. What is missing leaves a default."""

from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fasti import answers, errors, values

VALUES = [one for one in vars(answers).values() if is_dataclass(one)]
AT = "2026-01-01T00:00:00.000Z"
INSTANTS = ("at", "died_at", "retry_at", "start", "end", "from", "to", "now", "until", "deliver_at")
DAY = datetime(2026, 1, 1, tzinfo=UTC)


def read(kind: Any, **members: object) -> Any:
    return values.value_of(kind, values.object_of(members))


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_what_is_missing_leaves_the_default_of_its_attribute(kind: Any) -> None:
    given: dict[str, object] = dict.fromkeys(INSTANTS, AT) | {"bucket_s": 60, "undone": {}}
    needed = {one.name: 1 for one in fields(kind) if one.default is MISSING and one.name != "raw"}
    answer = {**needed, **given}
    found = read(kind, **answer)
    left = {one.name: one.default for one in fields(kind) if one.name not in answer and one.name != "raw"}
    for name, default in left.items():
        assert getattr(found, name) == default, name
    assert getattr(found, "raw", answer) == answer


def test_types_say_how_members_are_read() -> None:
    letter: dict[str, object] = dict.fromkeys(("id", "topic", "group", "attempts", "reason"), "a")
    tries = [{"at": AT, "seconds": 2.5}, {"by": "a"}, 7]
    dead = read(answers.DeadLetter, **letter, died_at=AT, tries=tries)
    assert dead.died_at == DAY
    assert dead.tries == (answers.Try(DAY, seconds=2.5),), "what cannot be read is left out"
    density = read(answers.Density, **{"from": AT, "to": AT, "bucket_s": 60, "total": 2})
    assert (density.start, density.bucket, density.buckets) == (DAY, timedelta(minutes=1), ())
    group = read(answers.Group, name="g", filter="a", state="active", expiry=60, undone={"lag": None})
    assert (group.expiry, group.undone) == (timedelta(minutes=1), answers.Undone())
    schedule = read(answers.Schedule, name="s", next={"id": "x"}, topic=None)
    assert (schedule.next_id, schedule.topic) == ("x", "")


def test_what_is_needed_and_missing_is_an_error() -> None:
    with pytest.raises(errors.Error, match="the answer has no 'at'"):
        read(answers.Try)
