"""What the places of a store keep of deliveries that are done."""

from collections.abc import Iterator

from shards.delivery_rows import Name, roots
from shards.kept import Kept, kept_at, result_of
from shards.store import Store
from timeline.position import START


def kept_of(store: Store, whose: bytes) -> Iterator[Kept]:
    """Those of a place, in the order of their roots."""
    for root in roots(store, whose, START):
        kept = kept_at(store, Name(whose, root))
        if kept is not None:
            yield kept


def result_at(store: Store, name: Name) -> bytes | None:
    """The result of a delivery, JSON; None: there is none."""
    kept = kept_at(store, name)
    return None if kept is None else result_of(store, name.whose, kept)
