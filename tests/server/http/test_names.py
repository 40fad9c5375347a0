"""A name that stands twice in an object is refused by every way that a body comes in, and nothing else is."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.http.values.batch_body import BatchError, parse_batch
from server.http.values.bodies import FieldError
from server.http.values.message_body import parse_one
from server.http.values.names import LOOKED_AT_BYTES_MAX, check_names
from server.http.values.usual import usual_batch
from server.settings.config import Limits

from ..conftest import NDJSON, Running

NOW = 1_795_248_000_000
LIMITS = replace(Limits(), max_payload=1_024)

WORDS = st.text(alphabet='a"\\\u00e9{}[]:,\n', max_size=6)
MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["a", 'say/"so"', "back\\slash"]),
    "payload": WORDS | st.dictionaries(WORDS, WORDS | st.integers(), max_size=3) | st.lists(WORDS),
    "deliver_in": st.sampled_from(["15m", 90]),
    "qos": st.sampled_from([0, 1, 2]),
    "key": st.sampled_from(["k", 'k"', None]),
    "headers": st.none() | st.dictionaries(st.text('h"\\', min_size=1, max_size=4), WORDS, max_size=3),
    "late": st.just("drop"),
    "content_type": st.sampled_from([None, "text/plain"]),
    "encoding": st.just("text") | st.none(),
}


def spelled(text: str, is_escaped: bool) -> str:
    """A string of JSON, with all of its characters as numbers or as few as can be."""
    if is_escaped:
        return '"' + "".join(f"\\u{ord(character):04x}" for character in text) + '"'
    return json.dumps(text, ensure_ascii=False)


@st.composite
def objects(draw: st.DrawFn) -> tuple[bytes, bool]:
    """One message as it may be written, and whether a name stands twice, in itself or in its headers."""
    names = ["topic", "payload", *draw(st.lists(st.sampled_from(sorted(MEMBERS)[1:]), max_size=5))]
    names = [name for index, name in enumerate(names) if name not in names[:index] or draw(st.booleans())]
    is_doubled, parts = len(set(names)) < len(names), []
    for name in draw(st.permutations(names)):
        value = draw(MEMBERS[name])
        written = json.dumps(value, ensure_ascii=draw(st.booleans()))
        if name == "headers" and isinstance(value, dict):
            pairs = [*value.items(), *(draw(st.sampled_from([[], list(value.items())[:1]])) if value else [])]
            is_doubled |= len(pairs) > len(value)
            inner = (
                f"{spelled(header, draw(st.booleans()))}:{spelled(text, draw(st.booleans()))}"
                for header, text in pairs
            )
            written = "{" + ",".join(inner) + "}"
        elif isinstance(value, str):
            written = spelled(value, draw(st.booleans()))
        blank = draw(st.sampled_from(["", " "]))
        parts.append(f"{spelled(name, draw(st.booleans()))}{blank}:{blank}{written}")
    return ("{" + ",".join(parts) + "}").encode(), is_doubled


def is_refused(body: bytes) -> bool:
    """Whether it is, for a name."""
    try:
        parse_one(body, NOW, LIMITS)
    except FieldError as error:
        return "given twice" in error.detail
    return False


@given(objects())
def test_one_is_refused_for_a_doubled_name_and_for_nothing_like_it(drawn: tuple[bytes, bool]) -> None:
    body, is_doubled = drawn
    try:
        parse_one(body, NOW, LIMITS)
    except FieldError as error:
        if "given twice" not in error.detail:
            return  # a value is refused before names are looked at
    assert is_refused(body) == is_doubled, body


@given(st.lists(objects(), min_size=1, max_size=4), st.booleans())
def test_a_batch_is_refused_for_the_same(drawn: list[tuple[bytes, bool]], is_lines: bool) -> None:
    bodies = [body for body, _ in drawn]
    whole = b"\n".join(bodies) if is_lines else b"[" + b", ".join(bodies) + b"]"
    doubled = [line for line, body in enumerate(bodies, 1) if is_refused(body)]
    found: list[int] = []
    try:
        parse_batch(whole, NDJSON if is_lines else "application/json", NOW, LIMITS, 10)
    except BatchError as error:
        found = [each["line"] for each in error.errors if "given twice" in each["detail"]]
    assert found == doubled
    if any(is_doubled for _, is_doubled in drawn):
        assert usual_batch(whole, is_lines, NOW, LIMITS, 10, "") is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"topic":"a","payload":"x"}',
        b'{"topic":"a","payload":"x","qos":1,"key":null,"deliver_in":"1s"}',
        b'{"topic":"a","payload":"{\\"a\\": 1}","deliver_in":5}',
        b'{"topic":"a","payload":{"twice":1,"twice":"2"},"deliver_at":"2026-12-03T07:45:31Z"}',
        b'{"topic":"a","payload":"AP8=","encoding":"base64","key":"k"}',
    ],
)
def test_what_is_usual_stays_so(body: bytes) -> None:
    """The count says it all; a payload's names are the client's."""
    assert usual_batch(b"\n".join([body, body]), True, NOW, LIMITS, 10, "") is not None or b"twice" in body
    assert parse_one(body, NOW, LIMITS).topic == b"a"
    doubled = body[:-1] + b',"topic":"b"}'
    assert usual_batch(b"\n".join([body, doubled]), True, NOW, LIMITS, 10, "") is None


def test_a_long_one_is_refused_without_a_name() -> None:
    check_names(b'{"a":"' + rb"\"" * LOOKED_AT_BYTES_MAX + b'","b":1}')
    with pytest.raises(FieldError, match="a name is given twice"):
        check_names(b'{"a":"' + b"x" * LOOKED_AT_BYTES_MAX + b'","b":1,"b":2}')


def test_what_is_nested_is_looked_at() -> None:
    check_names(b'{"spec":{"a":1,"b":[{"a":1},{"a":2}]},"payload":{"a":1,"a":2}}')
    with pytest.raises(FieldError, match="a: is given twice"):
        check_names(b'{"spec":{"b":[{"a":1},{"a":2,"a":3}]}}')


async def test_all_doors(server: Running) -> None:
    async def refused(method: str, path: str, body: bytes, **headers: str) -> Any:
        return (await server.call(method, path, body, status=422, **headers)).body["errors"]

    said = {"field": "topic", "detail": "is given twice"}
    body = b'{"topic":"a","payload":"x","topic":"b"}'
    assert await refused("POST", "/v1/messages", body) == [said]
    line = b'{"topic":"a","payload":"x"}\n' + body
    assert await refused("POST", "/v1/messages:batch", line, Content_Type=NDJSON) == [{"line": 2, **said}]
    one = {"topic": "a", "payload": "x", "deliver_in": "1h"}
    name = (await server.call("POST", "/v1/messages", one, status=201)).body["id"]
    moved = b'{"deliver_in":"2h","deliver_in":"3h"}'
    said = {"field": "deliver_in", "detail": "is given twice"}
    assert await refused("PATCH", f"/v1/messages/{name}", moved) == [said]
    schedule = b'{"every":"1h","topic":"a","payload":{"a":1,"a":2},"every":"2h"}'
    said = {"field": "every", "detail": "is given twice"}
    assert await refused("PUT", "/v1/schedules/s", schedule) == [said]
    assert (await server.call("GET", "/v1/messages?topic=a", status=200)).body["messages"][0]["id"] == name


def test_an_escaped_mark_hides_nothing() -> None:
    """As many of them in a text as a second name brings."""
    body = rb'{"topic":"a","topic":"b","payload":"\u0022\u0022\u0022\u0022"}'
    assert is_refused(body)
    assert usual_batch(body, True, NOW, LIMITS, 10, "") is None
    headers = rb'{"\u0022\u0022\u0022\u0022":"1","h":"2","h":"3"}'
    assert is_refused(b'{"topic":"a","payload":"","headers":' + headers + b"}")
    assert not is_refused(b'{"topic":"a","payload":"","headers":' + headers.replace(b'"h"', b'"i"', 1) + b"}")
