"""Reading of bodies: media types, instants and durations, and the wording of refusals.

Two errors are distinct: invalid JSON (`NotReadable`, 400), and valid JSON that is refused (`FieldError`, 422,
which names the field). msgspec finds both while decoding; its messages are taken apart here.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TypeVar

import msgspec

from ...settings.durations import TimeError, parse_delay
from ...settings.times import SECONDS_MAX, other_reading, parse_deliver_at, unix_ms

Body = TypeVar("Body")
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding invalid JSON."""
_OF_SURROGATES = re.compile("truncated|hex escape|surrogate")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class RequestError(ValueError):
    """A request that cannot be accepted."""


class NotReadable(RequestError):
    """The body does not match its media type: broken JSON, or not UTF-8."""


class FieldError(RequestError):
    """A readable request that is refused. `field` is "" if no single field is to blame."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}" if field else detail)
        self.field = field
        self.detail = detail


class UnsupportedMedia(RequestError):
    """An unsupported media type."""


_AT = " - at `"
"""Separates msgspec's message from the place in the body."""
_WHERE = re.compile(r"(?:key` in `)?\$(?:\[\d++\])?\.?((?:[^`\[]|\[\d++\]\.)*+)")
"""Finds `then[0].qos` in the place: without the index of a batch's item, or of a plain value in a list."""
_STEPS = re.compile(r"^[^$]*\$|\[[^\]]*\]")
"""The parts of a place that are not names: `$`, and list indices."""
_NO_WORD = "Invalid enum value "
_NAMED = re.compile(r"Object (?:contains unknown|(missing required)) field `")
_TIMES = ("deliver_at", "start", "end")
_A_NUMBER = re.compile(r"Expected `str.*`, got `(?:int|float)`")
NAME_CHARS_MAX = 256
"""Maximum characters of a client's name repeated in an error."""


def field_error(error: msgspec.ValidationError, kind: type) -> FieldError:
    """msgspec's error about a value of the wrong type; the field (`then[0].qos`) is taken out of its message.

    `kind`: the decoded type; for an invalid word the error lists its valid ones. A name in the message may be
    as long as a body and contain anything, so it is read once, from the end.
    """
    text = str(error)
    named = _NAMED.match(text)
    if named:
        name, _, place = text[named.end() :].rpartition(f"`{_AT}")
        inside = _WHERE.match(f"{place.removesuffix('`')}.") if name else None
        names = (inside[1].rstrip("."), name) if inside else (text[named.end() : -1],)
        path = ".".join(filter(None, names))
        return FieldError(path[:NAME_CHARS_MAX], "is required" if named[1] else "unknown field")
    detail, _, where = text.rpartition(_AT)
    found = _WHERE.match(where) if detail else None
    if found and detail.startswith(_NO_WORD):
        words = words_of(kind).get(_STEPS.sub("", where.removesuffix("`")), ())
        detail = (
            f"must be one of {', '.join(words)}, not {detail.removeprefix(_NO_WORD)}" if words else detail
        )
    if found and _A_NUMBER.fullmatch(detail) and found[1].rpartition(".")[2] in _TIMES:
        detail = "must be RFC 3339, such as 2026-11-21T08:00:00Z; a number may be Unix seconds, ms or a delay"
    return FieldError(found[1], detail) if found else FieldError("", text)


@lru_cache(64)
def words_of(kind: type) -> Mapping[str, tuple[str, ...]]:
    """Fields of a body, like `dst.gap`, that take one of a few words, with these words."""
    return dict(_words("", msgspec.inspect.type_info(kind)))


def _words(path: str, found: msgspec.inspect.Type) -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(found, msgspec.inspect.LiteralType):
        yield path, tuple(str(word) for word in found.values)
    elif isinstance(found, msgspec.inspect.UnionType):
        for each in found.types:
            yield from _words(path, each)
    elif isinstance(found, msgspec.inspect.ListType):
        yield from _words(path, found.item_type)
    elif isinstance(found, msgspec.inspect.Metadata):
        yield from _words(path, found.type)
    elif isinstance(found, msgspec.inspect.StructType):
        for field in found.fields:
            yield from _words(f"{path}.{field.encode_name}", field.type)


def decoded(raw: bytes, decoder: "msgspec.json.Decoder[Body]") -> Body:
    """A body as the decoder's type. Raises NotReadable, FieldError."""
    try:
        if not raw.isascii():
            raw.decode()  # msgspec does not check the content of a `Raw`
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise field_error(error, decoder.type) from None
    except UNREADABLE as error:
        raise NotReadable(why_unreadable(error, raw)) from None


def why_unreadable(error: Exception, raw: bytes) -> str:
    """The error for one of UNREADABLE, in words. msgspec calls half of a surrogate pair truncated input."""
    is_whole = raw.rstrip()[-1:] in (b"}", b"]")
    if is_whole and _OF_SURROGATES.search(str(error)) and (half := _SURROGATE.search(raw)):
        return f"{half[0].decode()} is half of a surrogate pair, and no character"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"not JSON: {str(error).removeprefix('JSON is malformed: ')}"


def check_json(content_type: str) -> None:
    """Raise UnsupportedMedia unless `content_type` is JSON (UTF-8), also with a profile of its own."""
    media = media_type(content_type)
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        raise UnsupportedMedia(f"application/json is expected, not {media or 'no content type'}")


def media_type(content_type: str) -> str:
    """The media type without parameters. Raises UnsupportedMedia for a charset other than UTF-8."""
    media, _, parameters = content_type.lower().partition(";")
    charset = re.search(r"charset\s*=\s*\"?([^\s;\"]*)", parameters)
    if charset and charset[1] not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMedia(f"UTF-8 is expected, not {charset[1]}")
    return media.strip()


def instant_ms(field: str, text: str) -> int:
    """UTC ms of an instant in RFC 3339, or Unix ms in digits. Raises FieldError."""
    try:
        is_number = text.isascii() and text.isdigit() and len(text) < 15
        return unix_ms(int(text)) if is_number else parse_deliver_at(text)
    except TimeError as error:
        raise FieldError(field, str(error)) from None


def delay_ms(field: str, value: str | float) -> int:
    """A duration, ms. Raises FieldError, also for a number that is a Unix time."""
    try:
        span_ms = parse_delay(value)
    except TimeError as error:
        raise FieldError(field, str(error)) from None
    is_number = not isinstance(value, str) or value.isdigit()
    other = other_reading(span_ms // 1_000) if is_number and span_ms >= SECONDS_MAX * 1_000 else ""
    if other:
        raise FieldError(field, f"{span_ms // 1_000} s is more than 31 years{other}")
    return span_ms
