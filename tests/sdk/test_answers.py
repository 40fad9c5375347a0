"""A value is read from an answer by the types of its attributes. What is missing leaves a default.

It has what the server says: each member of the answer's type is an attribute of the value, or named here as
left out, and has the type in which the SDK has it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import UnsetType

from fasti import answers, errors, values
from server.cluster import view
from server.http.values import shapes
from shards.archives import Manifest

VALUES = [one for one in vars(answers).values() if is_dataclass(one) and not one.__subclasses__()]
AT = "2026-01-01T00:00:00.000Z"
INSTANTS = ("at", "died_at", "retry_at", "start", "end", "from", "to", "now", "until", "deliver_at")
DAY = datetime(2026, 1, 1, tzinfo=UTC)

OTHERS: dict[str, Any] = {
    "Slice": shapes.SliceDetail,
    "ClusterNode": view.NodeRow,
    "ClusterState": view.View,
    "OrderingKey": shapes.GroupKey,
    "Job": shapes.JobView,
    "Commit": Manifest,
    "BulkResult": shapes.KeptChanged,
    "Handling": shapes.Delivery,
}
"""Types of the server, by the values whose name they do not have."""
SHAPES: dict[Any, Any] = {kind: OTHERS.get(kind.__name__) or vars(shapes)[kind.__name__] for kind in VALUES}
READ_AS = {shape: kind for kind, shape in SHAPES.items()}
SENT = "payload encoding headers cancelled_at withheld_by outcome"
KEPT = f"{SENT} retain late expires_in local publisher"
PLACE = "position lag_messages_is_exact keep result_ttl alerts"
LEFT_OUT = {
    "Session": "expiry_s read_position",
    "ClusterState": "log",
    "DeadLetter": KEPT,
    "WaitingRetry": KEPT,
    "Endpoint": f"{PLACE} delivered failed lag_seconds created_at changed_at left_at last_answers",
    "Group": PLACE,
    "Job": "token lease_s checkpoint archive_catalog timeline last files unpublished again manifests"
    " manifest",
    "Schedule": "payload",
}
"""Members that only `raw` has, or a property of the base."""
EMPTY = {"Handling": ("reason",), "Job": ("detail",), "Schedule": ("topic",)}
"""Texts that are empty where the server leaves them out; anything else is None then, or no items."""
SPANS = ("expiry", "bucket_s")
"""Members that are a number of seconds, and a timedelta in the SDK."""


def read(kind: Any, /, **members: object) -> Any:
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


def kinds_of(hint: Any) -> set[Any]:
    """The types of a union, as the SDK has them; NoneType where it may be null, or missing."""
    origin = get_origin(hint)
    if origin is Annotated:
        described = [one.extra_json_schema or {} for one in hint.__metadata__]
        is_instant = any(one.get("format") == "date-time" for one in described)
        return {datetime} if is_instant else kinds_of(hint.__origin__)
    if origin is NotRequired:
        return {NoneType, *kinds_of(get_args(hint)[0])}
    if origin in (Union, UnionType):
        return {kind for one in get_args(hint) for kind in kinds_of(one)}
    if origin in (list, tuple):
        (item,) = kinds_of(get_args(hint)[0])
        return {tuple[item, ...]}
    if hint in (NoneType, UnsetType):
        return {NoneType}
    if origin is Literal:
        return {str}
    if hint in (Any, str, int, float, bool, datetime, timedelta, *SHAPES):
        return {hint}
    return {READ_AS.get(hint, Mapping[str, Any])}


def members_of(shape: Any) -> dict[str, Any]:
    """The types of an answer's members, by their names in it."""
    names = dict(
        zip(
            getattr(shape, "__struct_fields__", ()),
            getattr(shape, "__struct_encode_fields__", ()),
            strict=True,
        )
    )
    hints = get_type_hints(shape, include_extras=True).items()
    return {names.get(name, name): hint for name, hint in hints}


def within(hint: Any, name: str) -> Any:
    """The type of a member of a member."""
    (shape,) = [one for one in get_args(hint) if one not in (NoneType, UnsetType)] or [hint]
    return members_of(shape)[name]


def attributes_of(kind: Any) -> Iterator[tuple[str, Any, object]]:
    """Where each attribute is in the answer, its type and its default."""
    hints, places = get_type_hints(kind), getattr(kind, "_PLACES", {})
    for one in fields(kind):
        if one.name != "raw":
            yield places.get(one.name, one.name), hints[one.name], one.default


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_a_value_has_what_the_server_says(kind: Any) -> None:
    members, left = members_of(SHAPES[kind]), set(LEFT_OUT.get(kind.__name__, "").split())
    had = {place.partition(".")[0] for place, _, _ in attributes_of(kind)}
    assert (members.keys() - had, had - members.keys()) == (left, set())
    for place, hint, default in attributes_of(kind):
        outer, _, inner = place.partition(".")
        said = kinds_of(within(members[outer], inner) if inner else members[outer])
        may_be_none = NoneType in said if default is MISSING else default is None
        if NoneType in said and not may_be_none:
            assert default == () or place in EMPTY[kind.__name__], place
        expected = {timedelta} if place in SPANS else said - {NoneType}
        assert kinds_of(hint) == expected | ({NoneType} if may_be_none else set()), place
