"""Failed tries of a message as they are told to whoever has it: the JSON of `fasti-tries`."""

from collections.abc import Sequence

import msgspec

from shards.fields import TryRow

from ..settings.times import format_ms

BYTES_MAX = 4_096
"""Of the JSON: the last tries that fit."""
_encode = msgspec.json.Encoder().encode


def _text(one: TryRow) -> bytes:
    return _encode(
        {
            "at": format_ms(one.at_ms),
            "by": one.by,
            "outcome": one.outcome,
            "reason": one.reason,
            "seconds": one.ms / 1_000 if one.ms else None,
        }
    )


def tries_text(tries: Sequence[TryRow]) -> str:
    """A JSON array, the last try at its end; of many long ones only the last."""
    texts: list[bytes] = []
    size = 2
    for one in reversed(tries):
        text = _text(one)
        size += len(text) + 1
        if size > BYTES_MAX:
            break
        texts.append(text)
    return f"[{b','.join(reversed(texts)).decode()}]"
