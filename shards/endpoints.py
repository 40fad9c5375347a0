"""Rows of webhook endpoints.

    endpoints    name, UTF-8 -> MessagePack of `EndpointRow`

How an endpoint stands (position, in flight, paused, its terms) is its group's matter, whose rows stand in
`sessions` and `cursors`. Secrets are stored as they are: they are needed to sign.
"""

from collections.abc import Iterator

import msgspec

from .commit import Commit
from .errors import Corrupt
from .store import Store, Table
from .tables import decoded, encode_row
from .unreadable import readable

_NAMES_END = b"\x7f"
"""Above every name: they are ASCII."""


class SecretRow(msgspec.Struct, frozen=True, array_like=True):
    """What signs; `until_ms` wall ms until which it does, 0: for good."""

    secret: bytes
    until_ms: int = 0


class EndpointRow(msgspec.Struct, frozen=True, array_like=True):
    """Where, and how, messages are posted."""

    url: str
    secrets: list[SecretRow]
    """The newest first."""
    headers: dict[str, str]
    concurrency: int
    """0: the server's."""
    timeout_ms: int
    """0: the server's."""
    created_ms: int
    changed_ms: int
    gone: str = ""
    """Why the server has paused it; empty: it has not."""


_endpoint = msgspec.msgpack.Decoder(EndpointRow)


def endpoint_of(value: bytes) -> EndpointRow:
    """Raises Corrupt."""
    return decoded(_endpoint, value)


def read_endpoints(store: Store) -> Iterator[tuple[str, EndpointRow | Corrupt]]:
    """All endpoints by name, or why one cannot be read."""
    for key, value in readable(store, Table.ENDPOINTS, b"", _NAMES_END):
        name = key.decode(errors="replace")
        try:
            yield name, endpoint_of(value)
        except Corrupt as error:
            yield name, error


def write_endpoint(commit: Commit, name: str, row: EndpointRow | None) -> None:
    """Put the row with this group, or delete it."""
    commit.row(Table.ENDPOINTS, name.encode(), None if row is None else encode_row(row))
