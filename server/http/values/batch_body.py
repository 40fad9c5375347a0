"""A batch of message requests: NDJSON or a JSON array -> checked messages, all of them or each on its own.

This is a hot path (100,000 messages a second come in batches), hence: one decoder call for the whole body, a
topic checked once per batch, and only if anything in the batch is not fine a second, slow pass that goes item
by item to find out what. Per message of 180 bytes the fast pass takes 1.4 µs (without a due time) to 2.6 µs
(with one), of which decoding is 0.35, a key adds 1.5, and the slow pass takes 5 to 8 on top.

The fast pass takes what the decoder takes, so a message may span lines as long as all are fine. In the slow
pass a line is a line: broken JSON is an error of that line, and the numbers in errors count from 1, lines of
NDJSON (empty ones count and are skipped) or items of an array. An array that is no JSON has no items to blame
and is not readable as a whole. The slow pass walks an array item by item and stops above the bound, because
a list of all items of `[0,0,0,...]` would take 30 times the memory of the body.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import TypedDict

import msgspec

from ...settings.config import Limits
from .bodies import (
    UNREADABLE,
    FieldError,
    NotReadable,
    RequestError,
    UnsupportedMedia,
    media_type,
    why_unreadable,
)
from .message_body import MessageRequest, ParsedMessage, checked, decode

ERRORS_MAX = 100


class LineError(TypedDict):
    """One bad item of a batch; `line` counts from 1 (lines of NDJSON, items of an array)."""

    line: int
    field: str
    detail: str


class BatchError(RequestError):
    """A batch with bad items, `count` of them; `errors` holds the first 100, the message is the first one."""

    def __init__(self, errors: Sequence[LineError]) -> None:
        first = errors[0]
        field = f"{first['field']}: " if first["field"] else ""
        super().__init__(f"line {first['line']}: {field}{first['detail']}")
        self.errors = list(errors[:ERRORS_MAX])
        self.count = len(errors)


class TooMany(RequestError):
    """A batch with more items than `limit`."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a batch holds at most {limit} messages (http.max_batch)")
        self.limit = limit


_LINES = msgspec.json.Decoder(MessageRequest)
_ARRAY = msgspec.json.Decoder(list[MessageRequest])
# Numbers stay text here: only where a value ends is of interest, and a long number costs time and a limit.
_SCAN = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode
_BLANKS = re.compile(r"[ \t\r\n]*")


def is_ndjson(content_type: str) -> bool:
    """Whether a batch comes as lines (True) or as an array (False). Raises UnsupportedMedia."""
    media = media_type(content_type)
    if media in ("application/x-ndjson", "application/ndjson", "application/jsonl"):
        return True
    if media == "application/json":
        return False
    raise UnsupportedMedia(
        f"application/x-ndjson or application/json is expected, not {media or 'no content type'}"
    )


def parse_batch(
    body: bytes, content_type: str, now_ms: int, limits: Limits, max_batch: int, *, keep_ids: bool = False
) -> list[ParsedMessage]:
    """All messages of a batch, in order.

    Raises UnsupportedMedia, TooMany, BatchError naming the bad items; for an array that is no JSON
    NotReadable, for JSON that is no array FieldError.
    """
    lines = is_ndjson(content_type)
    fine = _parse_whole(body, lines, now_ms, limits, max_batch, keep_ids)
    if fine is not None:
        return fine
    messages: list[ParsedMessage] = []
    errors: list[LineError] = []
    for line, item in _parseitems_of(body, lines, now_ms, limits, max_batch, keep_ids):
        if isinstance(item, FieldError):
            errors.append({"line": line, "field": item.field, "detail": item.detail})
        else:
            messages.append(item)
    if errors:
        raise BatchError(errors)
    return messages


def items_at_most(body: bytes, max_batch: int) -> int:
    """How many items a body can have; nothing is read for it."""
    return min(max_batch, 1 + max(body.count(b","), body.count(b"\n")))


def parse_each(
    body: bytes, content_type: str, now_ms: int, limits: Limits, max_batch: int, *, keep_ids: bool = False
) -> list[ParsedMessage | FieldError]:
    """Each item of a batch, in order, as a message or as what is wrong with it.

    Raises UnsupportedMedia, TooMany; for an array that is no JSON NotReadable, for JSON that is no array
    FieldError.
    """
    lines = is_ndjson(content_type)
    fine = _parse_whole(body, lines, now_ms, limits, max_batch, keep_ids)
    if fine is not None:
        return list(fine)
    return [item for _, item in _parseitems_of(body, lines, now_ms, limits, max_batch, keep_ids)]


def _parse_whole(
    body: bytes, lines: bool, now_ms: int, limits: Limits, max_batch: int, keep_ids: bool
) -> list[ParsedMessage] | None:
    """The fast pass: all messages, or None if there is anything that the slow pass has to look at."""
    if lines and body.count(b"\n") > max_batch:
        return None
    try:
        if not body.isascii():
            body.decode()
        requests = _LINES.decode_lines(body) if lines else _ARRAY.decode(body)
        if len(requests) > max_batch:
            raise TooMany(max_batch)
        raws: Iterable[bytes] = repeat(b"")
        if any(request.key is not None for request in requests):
            raws = [raw for _, raw in items_of(body, lines, max_batch)]
            if len(raws) != len(requests):
                return None
        topics: dict[str, bytes] = {}
        return [
            checked(request, now_ms, limits, raw, topics, keep_ids=keep_ids)
            for request, raw in zip(requests, raws, strict=False)
        ]
    except (FieldError, *UNREADABLE):
        return None


def _parseitems_of(
    body: bytes, lines: bool, now_ms: int, limits: Limits, max_batch: int, keep_ids: bool
) -> Iterator[tuple[int, ParsedMessage | FieldError]]:
    """The slow pass: (line, message or error) of each item."""
    topics: dict[str, bytes] = {}
    for line, raw in items_of(body, lines, max_batch):
        try:
            yield line, checked(decode(raw, limits), now_ms, limits, raw, topics, keep_ids=keep_ids)
        except FieldError as error:
            yield line, FieldError(error.field, error.detail)
        except UNREADABLE as error:
            yield line, FieldError("", why_unreadable(error))


def items_of(body: bytes, lines: bool, max_batch: int) -> Iterator[tuple[int, bytes]]:
    """(line, bytes as sent) of each item. Raises TooMany, NotReadable."""
    found = _lines(body, max_batch) if lines else _elements(body)
    for count, (line, raw) in enumerate(found, 1):
        if count > max_batch:
            raise TooMany(max_batch)
        yield line, raw


def _lines(body: bytes, max_batch: int) -> Iterator[tuple[int, bytes]]:
    # Empty lines are allowed; that they are counted here only bounds the list.
    if body.count(b"\n") > 2 * max_batch:
        raise TooMany(max_batch)
    for line, raw in enumerate(body.split(b"\n"), 1):
        stripped = raw.strip()
        if stripped:
            yield line, stripped


def _elements(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The items of a JSON array; each is checked again when it is decoded."""
    try:
        text = body.decode()
        at = _skip(text, 0)
        if text[at : at + 1] != "[":
            _SCAN(text, at)
            raise FieldError("", "an array of messages is expected, or NDJSON as application/x-ndjson")
        yield from _walk(text, _skip(text, at + 1))
    except json.JSONDecodeError as error:
        raise NotReadable(f"not JSON: {error}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise NotReadable(why_unreadable(error)) from None


def _walk(text: str, at: int) -> Iterator[tuple[int, bytes]]:
    """From behind the `[` to the end. Raises JSONDecodeError."""
    count = 0
    while count or text[at : at + 1] != "]":
        _, end = _SCAN(text, at)
        count += 1
        yield count, text[at:end].encode()
        at = _skip(text, end)
        if text[at : at + 1] == "]":
            break
        if text[at : at + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
        at = _skip(text, at + 1)
    if _skip(text, at + 1) != len(text):
        raise json.JSONDecodeError("Extra data", text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at
