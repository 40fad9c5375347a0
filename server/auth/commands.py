"""`keys add|ls|revoke|rotate`: the keys file from the command line, whether the server runs or not.

A running server sees the change within seconds (server/run.py), at once with SIGHUP.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ..settings.durations import TimeError, parse_delay
from ..settings.memory import in_columns
from .keys_file import (
    KeysFileError,
    StoredKey,
    add_key,
    client_ids_of,
    read_keys,
    revoke_key,
    rotate_key,
    rules_of,
    scopes_of,
)
from .last_use import FILE, noted, read_last_use
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


def rotate(path: Path, name: str, overlap: str) -> tuple[str, str]:
    """The new key, to be shown once, and a text about former ones. Raises KeysFileError."""
    try:
        key, before = rotate_key(path, name, timedelta(milliseconds=parse_delay(overlap)))
    except (TimeError, OverflowError) as error:
        why = str(error) if isinstance(error, TimeError) else "is too long"
        raise KeysFileError(path, 0, why, "overlap") from None
    text = f"The key is shown only once; the file contains its hash. The former key ends in {overlap}."
    if before.former_until and before.former_until > datetime.now(UTC):
        text += f" The one before it, valid until {_day(before.former_until)}, has ended."
    return key, text


def listed(path: Path, data: Path) -> list[str]:
    """A line for each key, in columns; bounds that no key has are left out. `data`: where the server notes
    their last use, which is unknown if the note is not there. Raises KeysFileError."""
    used, keys = None if unknown_use(data) else read_last_use(data), read_keys(path)
    bounds = [bound.name for bound in BOUNDS if any(getattr(key.grant, bound.name) for key in keys)]
    columns = [name.upper() for name in bounds]
    rows: list[tuple[str, ...]] = [("NAME", "SCOPES", *columns, "CREATED", "LAST USED", "TOPICS")]
    for key in keys:
        rows.append(_row(key, used, bounds))
        if key.former_hash and key.revoked is None:
            last, until = _last(used, noted(key.name, key.former_hash)), _day(key.former_until)
            rows.append((key.name, "former key", *("-" for _ in bounds), "-", last, f"valid until {until}"))
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
    last = _last(used, noted(key.name, key.hash) if key.former_hash else key.name)
    if key.revoked is not None:
        last = f"revoked {_day(key.revoked)}"
    bounds = (str(getattr(grant, name) or "-") for name in bound_names)
    clients = f" client_ids={','.join(grant.client_ids)}" if grant.client_ids else ""
    return key.name, scopes, *bounds, _day(key.created), last, _topics(grant) + clients


def _last(used: Mapping[str, int] | None, name: str) -> str:
    """Last use; `used` None: unknown."""
    last_ms = used and used.get(name)
    return (
        "unknown" if used is None else _day(datetime.fromtimestamp(last_ms / 1000, UTC) if last_ms else None)
    )


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
