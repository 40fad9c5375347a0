"""`keys add|ls|revoke`: the keys file from the command line, whether the server runs or not.

A running server sees the change within seconds (server/run.py), at once with SIGHUP.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..settings.memory import in_columns
from .keys_file import (
    KeysFileError,
    StoredKey,
    add_key,
    client_ids_of,
    read_keys,
    revoke_key,
    rules_of,
    scopes_of,
)
from .last_use import FILE, read_last_use
from .rights import ADMIN, BOUNDS, READ, SCHEDULE, Grant


def add(
    path: Path,
    name: str,
    *,
    scopes: Sequence[str],
    filters: Mapping[str, Sequence[str] | None],
    client_ids: Sequence[str] = (),
    bounds: Mapping[str, int],
) -> str:
    """The new key, to be shown once. `scopes`: also with commas. `filters`: by RULES. `bounds`: those of
    BOUNDS that it gets, by name. Raises KeysFileError."""
    try:
        wanted = scopes_of([one for text in scopes for one in text.split(",") if one])
        given: dict[str, Any] = {w: rules_of(list(some)) for w, some in filters.items() if some is not None}
    except ValueError as error:
        raise KeysFileError(path, 0, str(error), name) from None
    for bound in BOUNDS:
        if not 0 <= bounds.get(bound.name, 0) <= bound.most:
            raise KeysFileError(path, 0, f"from 0 to {bound.most} {bound.of_what}", bound.name)
    given |= bounds
    try:
        patterns = client_ids_of(list(client_ids)) if client_ids else ()
    except ValueError as error:
        raise KeysFileError(path, 0, str(error), "client_ids") from None
    if "subscribe" in given:
        given.setdefault("deliver", given["subscribe"])  # written, so that every version reads the same
    return add_key(path, name, Grant(wanted, client_ids=patterns, **given))


def revoke(path: Path, name: str) -> str:
    """Revoke a key; returns a text about the effects. Raises KeysFileError."""
    revoke_key(path, name)
    return (
        f"{name} is revoked. Its messages are withheld from now on, delayed, retained or read again: "
        f"nobody gets them until there is a key {name} again that may send them."
    )


def listed(path: Path, data: Path) -> list[str]:
    """A line for each key, in columns; bounds that no key has are left out. `data`: where the server notes
    their last use, which is unknown if the note is not there. Raises KeysFileError."""
    used, keys = None if unknown_use(data) else read_last_use(data), read_keys(path)
    bounds = [bound.name for bound in BOUNDS if any(getattr(key.grant, bound.name) for key in keys)]
    columns = [name.upper() for name in bounds]
    rows: list[tuple[str, ...]] = [("NAME", "SCOPES", *columns, "CREATED", "LAST USED", "TOPICS")]
    rows += [_row(key, used, bounds) for key in keys]
    return in_columns(rows)


def unknown_use(data: Path) -> str:
    """Why nothing is known of the last use of keys; empty if it is."""
    note = data / FILE
    if os.access(note, os.R_OK):
        return ""
    return (
        f"Last use unknown: the server notes it in its data directory, and {note} cannot be read: name the "
        "directory with --data."
    )


def _row(key: StoredKey, used: Mapping[str, int] | None, bound_names: Sequence[str]) -> tuple[str, ...]:
    grant = key.grant
    scopes = ADMIN if ADMIN in grant.scopes else ",".join(sorted(grant.scopes))
    used_ms = used and used.get(key.name)
    last = _day(datetime.fromtimestamp(used_ms / 1000, UTC)) if used_ms else "-"
    if used is None:
        last = "unknown"
    if key.revoked is not None:
        last = f"revoked {_day(key.revoked)}"
    bounds = (str(getattr(grant, name) or "-") for name in bound_names)
    clients = f" client_ids={','.join(grant.client_ids)}" if grant.client_ids else ""
    return key.name, scopes, *bounds, _day(key.created), last, _topics(grant) + clients


def _topics(grant: Grant) -> str:
    """The rules that the key's scopes use, omitted ones included. "all" if no rule is given."""
    named = (SCHEDULE, "publish"), (READ, "subscribe"), (READ, "deliver")
    used = {what: getattr(grant, what).allow for scope, what in named if scope in grant.scopes}
    if all(allow is None for allow in used.values()):
        return "all"
    return " ".join(f"{what}={_filters(allow)}" for what, allow in used.items())


def _filters(allow: Sequence[str] | None) -> str:
    return "all" if allow is None else ",".join(allow) or "none"


def _day(at: datetime | None) -> str:
    return "-" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
