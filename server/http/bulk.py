"""Calls that change many messages, in requests to the writer of many changes each. Each change is decided by
itself; an unreadable one stops no other."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from shards.dedupe import Refused
from shards.errors import Corrupt

from ..engine.clock import Clock
from ..engine.writer import Ask
from .cursors import Cursors
from .timeline import Timeline
from .turns import Turns

log = logging.getLogger(__name__)

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, eq=False)
class BulkParts:
    """Used by each such call."""

    ask: Ask
    clock: Clock
    timeline: Timeline
    cursors: Cursors
    turns: Turns
    max_delay_ms: int


class Acted(NamedTuple):
    """Number of changes, and the refusal that stopped them early, if any."""

    changed: int
    refused: Refused | None = None


def change_each(items: Iterable[Item], change: Callable[[Item], bool], name: Callable[[Item], str]) -> Acted:
    """Change each item. An unreadable one is skipped; a refusal stops here, since the rest would be refused
    too.

    `change`: returns whether the item was changed. `name`: the item's name in the log.
    """
    changed = 0
    for item in items:
        try:
            changed += change(item)
        except Corrupt as error:
            log.error("message %s: not changed: %s", name(item), error)
        except Refused as refused:
            if refused.why != "unreadable":
                return Acted(changed, refused)
            log.error("message %s: not changed: %s", name(item), refused)
    return Acted(changed)
