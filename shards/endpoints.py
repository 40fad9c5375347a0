"""Rows of webhook endpoints.

    endpoints    name, UTF-8 -> MessagePack of `EndpointRow`

Position, flights, pauses and terms of an endpoint belong to its group, whose rows are in `sessions` and
`cursors`. Secrets are stored in the clear: the server signs with them.
"""

from collections.abc import Iterator

import msgspec

from .commit import Commit
from .errors import Corrupt
from .store import Store, Table
from .tables import encode_row, reading
from .unreadable import readable

_NAMES_END = b"\x7f"
"""Above every name: names are ASCII."""


class SecretRow(msgspec.Struct, frozen=True, array_like=True):
    """A signing secret, valid until `until_ms`, wall ms; 0: without end."""

    secret: bytes
    until_ms: int = 0


class EndpointRow(msgspec.Struct, frozen=True, array_like=True):
    """A webhook endpoint: its URL and how messages are posted."""

    url: str
    secrets: list[SecretRow]
    """Newest first."""
    headers: dict[str, str]
    concurrency: int
    """0: the server's default."""
    timeout_ms: int
    """0: the server's default."""
    created_ms: int
    changed_ms: int
    gone: str = ""
    """Why the server has paused it; empty: not paused."""
    is_enveloped: bool = False
    """Posts a JSON envelope with the payload, not the payload."""


endpoint_of = reading(EndpointRow)


def read_endpoints(store: Store) -> Iterator[tuple[str, EndpointRow | Corrupt]]:
    """All endpoints by name; a Corrupt in place of a row that cannot be read."""
    for key, value in readable(store, Table.ENDPOINTS, b"", _NAMES_END):
        name = key.decode(errors="replace")
        try:
            yield name, endpoint_of(value)
        except Corrupt as error:
            yield name, error


def write_endpoint(commit: Commit, name: str, row: EndpointRow | None) -> None:
    """Put the row with this group, or delete it."""
    commit.row(Table.ENDPOINTS, name.encode(), None if row is None else encode_row(row))
