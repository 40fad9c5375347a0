"""The stored endpoints by name, in RAM.

A change is decided in the writer and applied here at once. The batch may still be lost, so after a failure of
the store all rows are read again. A dropped endpoint stays dropped, as its group has ended: its row goes with
the first batch that can be written. An unreadable row is no endpoint: it is counted, and kept until an
endpoint of its name is put.
"""

import logging
from collections.abc import Iterator

import msgspec
from yarl import URL

from shards.commit import Commit
from shards.endpoints import EndpointRow, SecretRow, read_endpoints, write_endpoint
from shards.errors import Corrupt
from shards.store import Store

from ..engine.commit_hook import Done
from ..settings.config import POSTS, Webhook

log = logging.getLogger(__name__)

ROTATION_MS = 86_400_000
"""How long a replaced secret still signs."""


class Endpoint(msgspec.Struct, frozen=True):
    """One endpoint, with defaults applied."""

    name: str
    row: EndpointRow
    url: URL
    timeout_s: float
    concurrency: int

    def secrets(self, now_ms: int) -> list[bytes]:
        """Secrets that sign now."""
        return [one.secret for one in signing(self.row.secrets, now_ms)]

    def is_same_receiver(self, other: "Endpoint") -> bool:
        """Whether answers to one hold for the other: the same URL, and not created anew."""
        return (self.row.created_ms, self.row.url) == (other.row.created_ms, other.row.url)


def signing(secrets: list[SecretRow], now_ms: int) -> list[SecretRow]:
    """Secrets that still sign, newest first."""
    return [one for one in secrets if not one.until_ms or one.until_ms > now_ms]


def rotated(secrets: list[SecretRow], wanted: bytes | None, now_ms: int) -> list[SecretRow]:
    """Secrets with `wanted` as the newest, or none for None. The one before signs for ROTATION_MS more."""
    if wanted is None:
        return []
    kept = signing(secrets, now_ms)
    if kept and kept[0].secret == wanted:
        return kept
    before = [SecretRow(one.secret, now_ms + ROTATION_MS) for one in kept[:1]]
    return [SecretRow(wanted), *before]


class Registry:
    """All endpoints of one server."""

    def __init__(self, store: Store, config: Webhook, *, max_endpoints: int) -> None:
        self._store = store
        self._config = config
        self.max_endpoints = max_endpoints
        self._by_name: dict[str, Endpoint] = {}
        self._unreadable: set[str] = set()
        self._dropped: set[str] = set()
        """Deleted, but not in a batch yet."""
        self.recover()

    def recover(self) -> None:
        """Read all rows, at start and after a failure of the store."""
        self._by_name.clear()
        self._unreadable.clear()
        for name, row in read_endpoints(self._store):
            if name in self._dropped:
                continue
            try:
                if isinstance(row, Corrupt):
                    raise row
                self._by_name[name] = self._endpoint(name, row)
            except (Corrupt, ValueError) as error:
                self._unreadable.add(name)
                log.error("endpoint %r: unreadable, nothing is posted: %s", name, error)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Endpoint | None:
        return self._by_name.get(name)

    @property
    def unreadable(self) -> int:
        """Unreadable rows."""
        return len(self._unreadable)

    def has_row(self, name: str) -> bool:
        """Whether it is stored, readable or not."""
        return name in self._by_name or name in self._unreadable

    def names(self) -> list[str]:
        """Sorted."""
        return sorted(self._by_name)

    def others_concurrency(self, name: str) -> int:
        """Sum of the concurrency of all other endpoints."""
        return sum(one.concurrency for one in self._by_name.values() if one.name != name)

    def concurrency_of(self, row: EndpointRow) -> int:
        return row.concurrency or POSTS

    def put(self, commit: Commit, name: str, row: EndpointRow) -> None:
        """In the writer."""
        write_endpoint(commit, name, row)
        self._dropped.discard(name)
        self._by_name[name] = self._endpoint(name, row)

    def drop(self, name: str) -> None:
        """In the writer."""
        self._by_name.pop(name, None)
        self._dropped.add(name)

    def write(self, commit: Commit) -> Done | None:
        """With each batch: delete the rows of dropped endpoints."""
        if not self._dropped:
            return None
        dropped, self._dropped = self._dropped, set()
        for name in dropped:
            write_endpoint(commit, name, None)

        def done(answer: object) -> None:
            if isinstance(answer, Exception):
                self._dropped |= dropped

        return done

    def _endpoint(self, name: str, row: EndpointRow) -> Endpoint:
        timeout_ms = row.timeout_ms or self._config.timeout_ms
        return Endpoint(name, row, URL(row.url), timeout_ms / 1_000, self.concurrency_of(row))
