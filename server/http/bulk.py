"""Changes of many in one go of the writer: each is decided by itself; one that cannot be read stops none."""

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from shards.dedupe import Refused
from shards.errors import Corrupt

log = logging.getLogger(__name__)

Item = TypeVar("Item")


class Acted(NamedTuple):
    """How many were changed, and what stopped it before the last one, if something did."""

    changed: int
    refused: Refused | None = None


def change_each(items: Iterable[Item], change: Callable[[Item], bool], name: Callable[[Item], str]) -> Acted:
    """One that cannot be read is not changed; what is refused otherwise would be for the others too.

    `change`: whether it was. `name`: what the log calls one.
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
