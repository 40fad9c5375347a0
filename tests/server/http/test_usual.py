"""The pass for usual items gives what the general way gives, or leaves the batch to it."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.http.values.batch_body import parse_each
from server.http.values.bodies import RequestError
from server.http.values.drafts import draft_of
from server.http.values.message_body import ParsedMessage
from server.http.values.usual import Reading, usual_batch
from server.settings.config import Limits
from shards.draft import Draft
from shards.record import decode

NOW = 1_795_248_000_000
LIMITS = replace(Limits(), max_payload=64, topic_levels=4)
LINES, ARRAY = "application/x-ndjson", "application/json"
MAX_BATCH = 6

TOPICS = st.sampled_from(["a", "a/b", "é", "", "+", "$SYS/x", "$own", "a/b/c/d", "a/b/c/d/e", "a\0", 3, None])
PAYLOADS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["eA==", "AP8=", "eA", "e A==", "eA==\n", "é", ""]),
    st.sampled_from(["x" * 64, "x" * 65, '"\\', 7, None, True, {"a": ["é", 1.50]}, [], "y" * 900]),
)
TIMES = st.sampled_from(
    [
        "2026-12-03T07:45:31.123Z",
        "2026-12-03T07:45:31Z",
        "2026-12-03T07:45:31.1230001Z",
        "2026-12-03t07:45:31.123+02:00",
        "2027-03-28T03:30[Europe/Bucharest]",
        "2026-12-31T23:59:60Z",
        "2026-02-31T07:45:31.123Z",
        "1969-12-31T23:59:59.999Z",
        "1970-01-01T00:00:00.001Z",
        "9999-12-31T23:59:59.999Z",
        "2026-12-03T07:45:31.123",
        "2026-12-03T07:45:31.12zZ",
        "soon",
        "",
        5,
        None,
    ]
)
DELAYS = st.sampled_from(["15m", "PT2H", "-1s", "", 0, 90, 1.0005, -1, 10**15, 10**30, "99999d", True, None])
ITEMS = st.fixed_dictionaries(
    {"topic": TOPICS, "payload": PAYLOADS},
    optional={
        "deliver_at": TIMES,
        "deliver_in": DELAYS,
        "qos": st.sampled_from([0, 1, 2, 3, -1, 1.0, "1", None]),
        "key": st.sampled_from(["k", "l", "", "x" * 257, "\n", None]),
        "encoding": st.sampled_from(["base64", "text", "json", "base32", 1, None]),
        "retain": st.booleans(),
        "nope": st.just(1),
    },
)
GOOD_ITEMS = st.fixed_dictionaries(
    {"topic": st.sampled_from(["a", "a/b", "é"]), "payload": st.one_of(st.text(max_size=8), st.integers())},
    optional={
        "deliver_at": st.sampled_from(["2026-12-03T07:45:31.123Z", "2026-12-03T07:45:31Z"]),
        "qos": st.integers(0, 2),
        "key": st.sampled_from(["k", "l"]),
    },
)
BROKEN = st.sampled_from([b"{", b"3", b"\xff", b'{"topic": "a", "payload": "\xff"}', b"{} {}", b'"\\ud800"'])
RAWS = st.one_of(st.builds(lambda one: json.dumps(one).encode(), ITEMS), BROKEN)


def general(body: bytes, content_type: str, user: str) -> list[Draft] | None:
    """The drafts of the general way; None if anything is wrong."""
    try:
        items = parse_each(body, content_type, NOW, LIMITS, MAX_BATCH)
    except RequestError:
        return None
    messages = [item for item in items if isinstance(item, ParsedMessage)]
    if len(messages) < len(items):
        return None
    return [draft_of(message, NOW, user) for message in messages]


def check(raws: list[bytes], joint: bytes, user: str) -> None:
    for body, content_type in ((joint.join(raws), LINES), (b" [" + b" ,\n".join(raws) + b"]", ARRAY)):
        found = usual_batch(body, content_type == LINES, NOW, LIMITS, MAX_BATCH, user)
        if found is not None:
            assert found.drafts == general(body, content_type, user)
            assert sorted(found.topics) == sorted({draft.topic for draft in found.drafts})
            assert found.keys == sum(bool(draft.key) for draft in found.drafts)


@given(st.lists(RAWS, max_size=8), st.sampled_from([b"\n", b"\r\n\n", b" "]), st.sampled_from(["", "meter"]))
def test_whatever_is_taken_is_the_same(raws: list[bytes], joint: bytes, user: str) -> None:
    check(raws, joint, user)


@given(st.lists(GOOD_ITEMS, max_size=MAX_BATCH), st.sampled_from([b"\n", b"\r\n"]))
def test_what_is_usual_is_taken(items: list[dict[str, Any]], joint: bytes) -> None:
    raws = [json.dumps(item, ensure_ascii=False).encode() for item in items]
    check(raws, joint, "meter")
    assert usual_batch(joint.join(raws), True, NOW, LIMITS, MAX_BATCH, "") is not None
    assert usual_batch(b"[" + b",".join(raws) + b"]", False, NOW, LIMITS, MAX_BATCH, "") is not None


@given(st.lists(GOOD_ITEMS, max_size=MAX_BATCH), st.booleans(), st.integers(1, 3))
def test_in_steps_it_is_the_same(items: list[dict[str, Any]], has_bad: bool, count: int) -> None:
    raws = [json.dumps(item).encode() for item in items] + [b'{"topic": "+", "payload": ""}'] * has_bad
    body = b"\n".join(raws)
    reading = Reading(body, True, NOW, LIMITS, MAX_BATCH, "")
    steps = 0
    while not reading.is_over:
        reading.step(count)
        steps += 1
    assert steps <= max(1, -(-len(raws) // count))
    assert reading.usual == usual_batch(body, True, NOW, LIMITS, MAX_BATCH, "")
    reading.step(count)  # is nothing any more
    assert reading.is_over


def test_bytes_as_base64_are_usual() -> None:
    """As the SDK sends them, also between texts."""
    raws = [
        b'{"topic":"a","payload":"AP8=","encoding":"base64"}',
        b'{"topic":"a","payload":"AP8="}',
        b'{"topic":"a","payload":"","encoding":"base64","key":"k"}',
        b'{"topic":"a","payload":"x","encoding":null}',
    ]
    check(raws, b"\n", "meter")
    found = usual_batch(b"\n".join(raws), True, NOW, LIMITS, MAX_BATCH, "")
    assert found is not None
    assert [decode(draft.value).payload for draft in found.drafts] == [b"\0\xff", b"AP8=", b"", b"x"]


@pytest.mark.parametrize(
    "item",
    [
        {"topic": "a", "payload": "x", "headers": {}},
        {"topic": "a", "payload": "x", "deliver_at": "2027-03-28T03:30[Europe/Bucharest]"},
        {"topic": "a", "payload": "x", "deliver_at": "2026-12-03T07:45:31Z", "deliver_in": 1},
        {"topic": "a", "payload": "x", "qos": 3},
        {"topic": "a", "payload": "x" * 65},
        {"topic": "#", "payload": "x"},
        {"topic": "a", "payload": "x", "deliver_in": "9999d"},
        {"topic": "a", "payload": "x", "deliver_at": "soon"},
        {"topic": "a", "payload": "x", "key": ""},
        {"payload": "x"},
    ],
)
def test_anything_else_is_left_to_the_general_way(item: dict[str, Any]) -> None:
    good = b'{"topic": "a", "payload": "x"}\n'
    assert usual_batch(good, True, NOW, LIMITS, MAX_BATCH, "") is not None
    assert usual_batch(good + json.dumps(item).encode(), True, NOW, LIMITS, MAX_BATCH, "") is None


def test_no_more_than_a_batch_may_hold() -> None:
    good = b'{"topic": "a", "payload": "x"}'
    for count in (MAX_BATCH, MAX_BATCH + 1):
        lines, array = b"\n".join([good] * count), b"[" + b",".join([good] * count) + b"]"
        is_taken = count <= MAX_BATCH
        assert (usual_batch(lines, True, NOW, LIMITS, MAX_BATCH, "") is not None) is is_taken
        assert (usual_batch(array, False, NOW, LIMITS, MAX_BATCH, "") is not None) is is_taken


@pytest.mark.parametrize("qos", [b'3, "qos": 0', b'0, "qos": 3', b'-1, "qos": 1'])
def test_of_a_field_given_twice_each_has_to_be_right(qos: bytes) -> None:
    body = b'{"topic": "a", "payload": "x", "qos": ' + qos + b"}"
    assert general(body, LINES, "") is None
    assert usual_batch(body, True, NOW, LIMITS, MAX_BATCH, "") is None
