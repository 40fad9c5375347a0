"""A payload as a JSON value: how answers and webhook envelopes show it."""

from base64 import b64encode
from typing import Literal

import msgspec

Encoding = Literal["text", "base64", "json"]


def payload_view(payload: bytes, encoding: Encoding) -> tuple[object, Encoding]:
    """A payload as it came in; text that is not UTF-8 (a plain publish can be anything) as base64."""
    if encoding == "json":
        return msgspec.Raw(payload), encoding
    if encoding == "text":
        try:
            return payload.decode(), encoding
        except UnicodeDecodeError:
            pass
    return b64encode(payload).decode(), "base64"
