"""A draft that is read in one go is the one that is made of all that the message says."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.http.values.batch_body import Reading, is_ndjson
from server.http.values.bodies import FieldError, RequestError
from server.http.values.drafts import draft_of
from server.http.values.message_body import ParsedMessage
from server.http.values.reader import Reader
from server.settings.config import Limits
from shards.draft import Draft
from shards.record import decode

NOW = 1_795_248_000_000
LIMITS = replace(Limits(), max_payload=64, topic_levels=4)
LINES, ARRAY = "application/x-ndjson", "application/json"
MAX_BATCH = 6

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONTEXT = (("traceparent", PARENT),)

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
        "headers": st.sampled_from([{}, {"a": "b"}, {"traceparent": PARENT}, {"fasti-a": ""}, None]),
        "key_scope": st.sampled_from(["kept", "pending", "x", None]),
        "late": st.sampled_from(["drop", "deliver", "x"]),
        "spread": st.sampled_from(["1m", 0, "x", None]),
        "deliver_to": st.sampled_from(["hook", "https://example.com/a", "a b", None]),
        "expires_in": st.sampled_from(["1h", 0, None]),
        "content_type": st.sampled_from(["text/plain", "", None]),
        "ordering_key": st.sampled_from(["customer-17", "é" * 64, "é" * 65, "", "\n", None]),
        "nope": st.just(1),
    },
)
BROKEN = st.sampled_from([b"{", b"3", b"\xff", b'{"topic": "a", "payload": "\xff"}', b"{} {}", b'"\\ud800"'])
RAWS = st.one_of(st.builds(lambda one: json.dumps(one).encode(), ITEMS), BROKEN)
Found = list[Draft | tuple[str, str]] | str


def read(body: bytes, content_type: str, user: str, step: int, *, as_drafts: bool, is_child: bool) -> Found:
    """The drafts, and what is wrong with the others; or with all."""
    context = CONTEXT if is_child else ()
    reader = Reader(NOW, LIMITS, user, context, as_drafts=as_drafts)
    try:
        reading = Reading(body, is_ndjson(content_type), reader, MAX_BATCH)
        while not reading.is_over:
            reading.step(step)
    except RequestError as error:
        return f"{type(error).__name__}: {error}"
    found: list[Draft | tuple[str, str]] = []
    for item in reading.items:
        if isinstance(item, FieldError):
            found.append((item.field, item.detail))
        else:
            found.append(draft_of(item, NOW, user, context) if isinstance(item, ParsedMessage) else item)
    assert {one.topic for one in reading.items if isinstance(one, Draft)} <= set(reader.topics.values())
    return found


@pytest.mark.long
@given(
    st.lists(RAWS, max_size=8),
    st.sampled_from([b"\n", b"\r\n\n", b" "]),
    st.sampled_from(["", "meter"]),
    st.integers(1, 9),
    st.booleans(),
)
def test_it_is_what_is_made_of_all_that_the_message_says(
    raws: list[bytes], joint: bytes, user: str, step: int, is_child: bool
) -> None:
    for body, kind in ((joint.join(raws), LINES), (b" [" + b" ,\n".join(raws) + b"]", ARRAY)):
        found = read(body, kind, user, step, as_drafts=True, is_child=is_child)
        assert found == read(body, kind, user, MAX_BATCH, as_drafts=False, is_child=is_child)


def test_bytes_as_base64() -> None:
    """As the SDK sends them, also between texts."""
    raws = [
        b'{"topic":"a","payload":"AP8=","encoding":"base64"}',
        b'{"topic":"a","payload":"AP8="}',
        b'{"topic":"a","payload":"","encoding":"base64","key":"k"}',
        b'{"topic":"a","payload":"x","encoding":null}',
    ]
    found = read(b"\n".join(raws), LINES, "", MAX_BATCH, as_drafts=True, is_child=False)
    values = [one.value for one in found if isinstance(one, Draft)]
    assert [decode(value).payload for value in values] == [b"\0\xff", b"AP8=", b"", b"x"]


@pytest.mark.parametrize(
    "few",
    [
        b'"headers": {}',
        b'"deliver_at": "2027-03-28T03:30[Europe/Bucharest]"',
        b'"late": "drop"',
        b'"retain": true',
        b'"expires_in": 1',
        b'"spread": 1',
        b'"content_type": "a"',
        b'"deliver_to": "hook"',
        b'"key": "k", "key_scope": "kept"',
    ],
)
def test_few_messages_are_no_drafts_yet(few: bytes) -> None:
    """Somebody has to look at what they say besides."""
    usual = b'"topic": "a", "payload": "x", "qos": 2'
    assert isinstance(Reader(NOW, LIMITS).one(b'{%b, "deliver_in": 1, "encoding": null}' % usual), Draft)
    assert isinstance(Reader(NOW, LIMITS).one(b"{%b, %b}" % (usual, few)), ParsedMessage)


@pytest.mark.parametrize("qos", [b'3, "qos": 0', b'0, "qos": 3', b'-1, "qos": 1'])
def test_of_a_field_given_twice_each_has_to_be_right(qos: bytes) -> None:
    body = b'{"topic": "a", "payload": "x", "qos": ' + qos + b"}"
    with pytest.raises(FieldError, match="qos"):
        Reader(NOW, LIMITS).one(body)
