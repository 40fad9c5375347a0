"""Many changes in one request to the writer. Each is decided by itself; an unreadable one stops no other."""

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from shards.dedupe import Refused
from shards.errors import Corrupt

log = logging.getLogger(__name__)

Item = TypeVar("Item")


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
