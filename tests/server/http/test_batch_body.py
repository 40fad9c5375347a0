"""Batches: the fast pass and the slow one agree, and every bad item is named by its line."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.http.routes.batch import check_all
from server.http.values.batch_body import BatchError, Reading, TooMany, is_ndjson, read_whole
from server.http.values.bodies import FieldError, NotReadable, UnsupportedMedia
from server.http.values.message_body import ParsedMessage
from server.http.values.reader import Reader
from server.settings.config import Limits
from tests.support.reading import parse_each, parse_one, parsed

NOW = 1_795_248_000_000
LIMITS = Limits()
LINES, ARRAY = "application/x-ndjson", "application/json"
GOOD = b'{"topic": "a/b", "payload": "hi"}'


def read(raw: bytes, content_type: str = LINES, max_batch: int = 100) -> Reading:
    return read_whole(raw, is_ndjson(content_type), Reader(NOW, LIMITS, as_drafts=False), max_batch)


def batch(raw: bytes, content_type: str = LINES, max_batch: int = 100) -> list[ParsedMessage]:
    reading = read(raw, content_type, max_batch)
    check_all(reading)
    return [parsed(item) for item in reading.items if not isinstance(item, FieldError)]


def errors(raw: bytes, content_type: str = LINES) -> list[tuple[int, str]]:
    with pytest.raises(BatchError) as caught:
        batch(raw, content_type)
    assert all(error["detail"] for error in caught.value.errors)
    return [(error["line"], error["field"]) for error in caught.value.errors]


def item(**fields: Any) -> bytes:
    return json.dumps({"topic": "a", "payload": 1, **fields}).encode()


ITEMS = st.lists(
    st.one_of(
        st.builds(lambda n: item(payload=n, deliver_in=n), st.integers(0, 5)),
        st.builds(lambda text: item(payload=text, key="k"), st.text(max_size=3)),
        st.sampled_from([b"{", b"[1]", item(topic="+"), item(qos=9), item(nope=1), b'{"payload": "\xff"}']),
    ),
    max_size=8,
)


@pytest.mark.long
@given(ITEMS)
def test_a_line_in_a_batch_is_what_it_is_alone(items: list[bytes]) -> None:
    alone: list[ParsedMessage | tuple[str, str]] = []
    for raw in items:
        try:
            alone.append(parse_one(raw, NOW, LIMITS))
        except FieldError as error:
            alone.append((error.field, error.detail))
        except NotReadable as error:
            alone.append(("", str(error)))
    found = parse_each(b"\n".join(items), LINES, NOW, LIMITS, 100)
    assert [(x.field, x.detail) if isinstance(x, FieldError) else x for x in found] == alone
    bad = [number for number, one in enumerate(alone, 1) if isinstance(one, tuple)]
    if bad:
        assert [line for line, _ in errors(b"\n".join(items))] == bad
    else:
        assert batch(b"\n".join(items)) == alone
        assert batch(b" [" + b" , ".join(items) + b"]\n", ARRAY) == alone


def test_an_array_is_judged_item_by_item() -> None:
    raw = b" [" + b" ,\n".join([GOOD, item(topic="#"), GOOD, item(qos=7, key="k"), b"3"]) + b" ] "
    assert errors(raw, ARRAY) == [(2, "topic"), (4, "qos"), (5, "")]
    found = parse_each(raw, ARRAY, NOW, LIMITS, 5)
    assert [isinstance(one, FieldError) for one in found] == [False, True, False, True, True]


def test_lines_are_counted_as_an_editor_does() -> None:
    assert errors(b"\n" + GOOD + b"\r\n\r\n  \nnope\n" + GOOD + b"\n" + item(late="x")) == [
        (5, ""),
        (7, "late"),
    ]


def test_blank_lines_and_a_missing_end_of_line_are_fine() -> None:
    assert len(batch(b"\r\n" + GOOD + b"\r\n\n" + GOOD)) == 2
    assert batch(b"") == batch(b"\n\n") == batch(b" [ ] ", ARRAY) == []


def test_a_key_brings_the_fingerprint_of_its_own_line() -> None:
    keyed = [item(key="a", payload=n) for n in range(3)]
    alone = [parse_one(raw, NOW, LIMITS) for raw in keyed]
    assert len({message.fingerprint for message in alone}) == 3
    assert batch(b"\r\n\n".join(keyed) + b"\n") == alone
    assert batch(b"[\n " + b" ,\n ".join(keyed) + b" ]", ARRAY) == alone
    mixed = batch(b"\n".join([GOOD, keyed[0]]))
    assert [message.fingerprint for message in mixed] == [b"", alone[0].fingerprint]


def test_a_message_over_lines_is_not_a_line_once_lines_matter() -> None:
    loose = GOOD.replace(b", ", b",\n")
    assert len(batch(loose)) == 1
    assert errors(loose + b"\n" + item(key="k")) == [(1, ""), (2, "")]
    assert errors(GOOD + item(key="k")) == [(1, "")]


def test_not_utf8_is_an_error_of_its_line_and_of_a_whole_array() -> None:
    bad = b'{"topic": "a", "payload": ["\xff"]}'
    assert errors(GOOD + b"\n" + bad + b"\n" + item(payload="é")) == [(2, "")]
    with pytest.raises(NotReadable, match="UTF-8"):
        batch(b"[" + bad + b"]", ARRAY)
    assert batch('[{"topic": "é", "payload": "é"}]'.encode(), ARRAY)[0].payload == "é".encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nope",
        b"[",
        b"[" + GOOD,
        b"[" + GOOD + b",]",
        b"[" + GOOD + b" " + GOOD + b"]",
        b"[" + GOOD + b"] x",
        b"[]]",
        b"[,]",
        b'[{"payload": ' + b"[" * 100_000,
    ],
)
def test_an_array_that_is_no_json_is_not_readable(raw: bytes) -> None:
    with pytest.raises(NotReadable):
        batch(raw, ARRAY)


def test_json_that_is_no_array_is_refused() -> None:
    for raw in (GOOD, b"3", b'"x"'):
        with pytest.raises(FieldError, match="must be an array of messages"):
            batch(raw, ARRAY)
    assert errors(b"[" + GOOD + b"]", LINES) == [(1, "")]


def test_a_batch_above_the_bound_is_too_many_good_or_bad() -> None:
    for one in (GOOD, b"{}"):
        assert len(parse_each(b"\n".join([one] * 3), LINES, NOW, LIMITS, 3)) == 3
        for raw, kind in ((b"\n".join([one] * 4), LINES), (b"[" + b",".join([one] * 4) + b"]", ARRAY)):
            with pytest.raises(TooMany, match="at most 3 messages") as caught:
                parse_each(raw, kind, NOW, LIMITS, 3)
            assert caught.value.limit == 3
    with pytest.raises(TooMany):
        batch(b"\n" * 10 + GOOD, max_batch=3)
    assert len(batch(b"\n" * 5 + GOOD, max_batch=3)) == 1


def test_at_most_100_errors_are_told_and_all_are_counted() -> None:
    with pytest.raises(BatchError, match="line 1: payload: is required") as caught:
        batch(b"{}\n" * 300, max_batch=300)
    assert (len(caught.value.errors), caught.value.count) == (100, 300)


def test_long_numbers_are_no_trouble() -> None:
    digits = b"9" * 5_000
    assert batch(b'[{"topic": "a", "key": "k", "payload": ' + digits + b"}]", ARRAY)[0].payload == digits


def test_the_media_type_decides() -> None:
    assert is_ndjson("application/x-ndjson; charset=utf-8")
    assert is_ndjson("application/jsonl")
    assert not is_ndjson("application/json")
    for bad in ("", "text/csv", "application/octet-stream", "application/json; charset=utf-16"):
        with pytest.raises(UnsupportedMedia):
            batch(GOOD, bad)


def test_of_a_name_that_stands_twice_the_last_counts() -> None:
    raw = b'{"topic": "a", "payload": "x", "topic": "b", "headers": {"h": "1", "h": "2"}}'
    for message in (parse_one(raw, NOW, LIMITS), *batch(raw), *batch(b"[" + raw + b"]", ARRAY)):
        assert (message.topic, message.headers) == (b"b", (("h", "2"),))
