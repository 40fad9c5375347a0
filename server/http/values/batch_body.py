"""A batch of message requests: NDJSON or a JSON array -> messages and errors.

This is a hot path (100,000 messages a second come in batches). Hence one decoder call for the whole body;
only if there is an error, a second, slow pass goes item by item to find it.

The fast pass accepts what the decoder accepts, so a message may span lines as long as all are fine. In the
slow pass broken JSON is an error of its line. Numbers in errors count from 1: lines of NDJSON (empty ones
count and are skipped) or items of an array. An array that is not JSON is unreadable as a whole. The slow pass
walks an array item by item and stops above the bound, because a list of all items of `[0,0,0,...]` would take
30 times the memory of the body.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypedDict

import msgspec

from .bodies import (
    UNREADABLE,
    FieldError,
    NotReadable,
    RequestError,
    UnsupportedMedia,
    media_type,
    why_unreadable,
)
from .message_body import MessageRequest
from .reader import Item, Reader

ERRORS_MAX = 100
COUNTED_BYTES = 1 << 20
"""Counting commas and lines of 16 MiB takes 34 ms."""
PIECE_BYTES = 512 << 10
"""Bytes of lines decoded at once, while no other thread has the interpreter: 1 ms."""


class LineError(TypedDict):
    """One bad item of a batch; `line` counts from 1 (lines of NDJSON, items of an array)."""

    line: int
    field: str
    detail: str


class BatchError(RequestError):
    """A batch with bad items, `count` of them; `errors` holds the first 100. The message is the first
    error."""

    def __init__(self, errors: Sequence[LineError]) -> None:
        first = errors[0]
        field = f"{first['field']}: " if first["field"] else ""
        super().__init__(f"line {first['line']}: {field}{first['detail']}")
        self.errors = list(errors[:ERRORS_MAX])
        self.count = len(errors)


class TooMany(RequestError):
    """A batch with more items than `limit`."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a batch holds at most {limit} messages")
        self.limit = limit


_LINES = msgspec.json.Decoder(MessageRequest)
_ARRAY = msgspec.json.Decoder(list[MessageRequest])
# Numbers stay text: only the end of a value matters, and a long number costs time and has a limit.
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


def items_at_most(body: bytes, max_batch: int) -> int:
    """Upper bound of a body's items, without parsing."""
    if len(body) > COUNTED_BYTES:
        return max_batch
    return min(max_batch, 1 + max(body.count(b","), body.count(b"\n")))


class Reading:
    """A batch read in steps, so that messages that fall due meanwhile go out in between."""

    def __init__(self, body: bytes, lines: bool, reader: Reader, max_batch: int) -> None:
        """`lines`: NDJSON, else an array. Raises TooMany."""
        self._body, self._lines, self._max_batch = body, lines, max_batch
        self._reader = reader
        self.items: list[Item | FieldError] = []
        """Messages, or their errors, read so far, in order."""
        self._numbers: list[int] = []
        """Their line numbers, after the fast pass has failed."""
        self._whole = whole(body, lines, max_batch)
        self._one_by_one: Iterator[tuple[int, bytes]] | None = None
        self.is_over = self._whole is not None and not self._whole[0]

    @property
    def is_fine(self) -> bool:
        """Whether the fast pass has accepted everything so far."""
        return self._whole is not None

    def step(self, count: int) -> None:
        """Read `count` more items. Raises TooMany; for an invalid array NotReadable, for JSON that is not an
        array FieldError."""
        if self._whole is not None:
            requests, raws = self._whole
            start = len(self.items)
            end = start + count
            try:
                self.items += self._reader.read(requests[start:end], raws[start:end])
            except FieldError:
                self._whole = None
            else:
                self.is_over = end >= len(requests)
                return
        if self._one_by_one is None:
            self.items.clear()
            self._one_by_one = items_of(self._body, self._lines, self._max_batch)
        found = list(islice(self._one_by_one, count))
        for line, raw in found:
            self._numbers.append(line)
            try:
                self.items.append(self._reader.line(raw))
            except FieldError as error:
                self.items.append(FieldError(error.field, error.detail))  # without its traceback
        self.is_over = len(found) < count

    def line_of(self, index: int) -> int:
        """The line of an item in the body, from 1; in an array, the item's number."""
        if self._numbers:
            return self._numbers[index]
        return line_of(self._body, self._lines, index, len(self.items))


def line_of(body: bytes, lines: bool, index: int, count: int) -> int:
    """The line of an item in a body of `count` items that are all fine."""
    if lines:
        numbers = [number for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
        if len(numbers) == count:
            return numbers[index]
    return index + 1


def whole(body: bytes, lines: bool, max_batch: int) -> tuple[list[MessageRequest], Sequence[bytes]] | None:
    """All requests, and each as it was sent if one has a key; None if they must be read one by one. Raises
    TooMany."""
    try:
        if not body.isascii():
            body.decode()
        requests = _in_lines(body, max_batch) if lines else _ARRAY.decode(body)
        if requests is None:
            return None
        if len(requests) > max_batch:
            raise TooMany(max_batch)
        if all([request.key is None for request in requests]):  # noqa: C419 - a generator costs more
            return requests, [b""] * len(requests)
        if lines:
            raws = [line for raw in body.split(b"\n") if (line := raw.strip())]
        else:
            raws = [raw for _, raw in _elements(body)]
    except (FieldError, *UNREADABLE):
        return None
    return (requests, raws) if len(raws) == len(requests) else None


def _in_lines(body: bytes, max_batch: int) -> list[MessageRequest] | None:
    """All requests; None if there are more lines than allowed messages."""
    found: list[MessageRequest] = []
    start, lines = 0, 0
    try:
        while start < len(body):
            end = body.find(b"\n", start + PIECE_BYTES) + 1 or len(body)
            piece = body[start:end]
            lines += piece.count(b"\n")
            if lines > max_batch:
                return None
            found += _LINES.decode_lines(piece)
            start = end
    except (FieldError, *UNREADABLE):
        if len(body) <= PIECE_BYTES or body.count(b"\n") > max_batch:
            raise
        return _LINES.decode_lines(body)  # a message may cross the end of a piece
    return found


def read_whole(body: bytes, lines: bool, reader: Reader, max_batch: int) -> Reading:
    """Read a batch at once. Raises as `Reading` does."""
    reading = Reading(body, lines, reader, max_batch)
    while not reading.is_over:
        reading.step(max_batch)
    return reading


def items_of(body: bytes, lines: bool, max_batch: int) -> Iterator[tuple[int, bytes]]:
    """(line, bytes as sent) of each item. Raises TooMany, NotReadable."""
    found = _lines(body, max_batch) if lines else _elements(body)
    for count, (line, raw) in enumerate(found, 1):
        if count > max_batch:
            raise TooMany(max_batch)
        yield line, raw


def _lines(body: bytes, max_batch: int) -> Iterator[tuple[int, bytes]]:
    # Empty lines are allowed; counting them only bounds the list.
    if body.count(b"\n") > 2 * max_batch:
        raise TooMany(max_batch)
    for line, raw in enumerate(body.split(b"\n"), 1):
        stripped = raw.strip()
        if stripped:
            yield line, stripped


def _elements(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Items of a JSON array; each is checked again when it is decoded."""
    try:
        text = body.decode()
        at = _skip(text, 0)
        if text[at : at + 1] != "[":
            _SCAN(text, at)
            raise FieldError("", "must be an array of messages, or NDJSON as application/x-ndjson")
        yield from _walk(text, _skip(text, at + 1))
    except json.JSONDecodeError as error:
        raise NotReadable(f"not JSON: {error}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise NotReadable(why_unreadable(error, body)) from None


def _walk(text: str, at: int) -> Iterator[tuple[int, bytes]]:
    """Items from behind the `[` to the end. Raises JSONDecodeError."""
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
