"""`keys add|ls|revoke`: the keys file from the command line, whether the server runs or not.

A running server sees the change within seconds (server/run.py), at once with SIGHUP.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from timeline.filters import TopicError

from .keys_file import (
    GROUPS_MAX,
    PENDING_MAX,
    RATE_MAX,
    KeysFileError,
    StoredKey,
    add_key,
    read_keys,
    revoke_key,
    rules_of,
    scopes_of,
)
from .last_use import read_last_use
from .rights import ADMIN, Grant


def add(
    path: Path,
    name: str,
    *,
    scopes: Sequence[str],
    publish: Sequence[str] | None,
    subscribe: Sequence[str] | None,
    deliver: Sequence[str] | None,
    rate: int,
    pending: int,
    groups: int,
) -> str:
    """The new key, to be shown once. `scopes` as given, also with commas. Raises KeysFileError."""
    try:
        wanted = scopes_of([one for text in scopes for one in text.split(",") if one])
        asked = {"publish": publish, "subscribe": subscribe, "deliver": deliver}
        rules = {what: rules_of(list(given)) for what, given in asked.items() if given is not None}
    except (ValueError, TopicError) as error:
        raise KeysFileError(path, 0, str(error), name) from None
    if not 0 <= rate <= RATE_MAX:
        raise KeysFileError(path, 0, f"from 0 to {RATE_MAX} messages a second", "rate")
    if not 0 <= pending <= PENDING_MAX:
        raise KeysFileError(path, 0, f"from 0 to {PENDING_MAX} messages", "pending")
    if not 0 <= groups <= GROUPS_MAX:
        raise KeysFileError(path, 0, f"from 0 to {GROUPS_MAX} groups and endpoints", "groups")
    return add_key(path, name, Grant(wanted, rate=rate, pending=pending, groups=groups, **rules))


def revoke(path: Path, name: str) -> str:
    """What that means, to be shown. Raises KeysFileError."""
    revoke_key(path, name)
    return (
        f"{name} is revoked. What it has sent is withheld from now on: delayed, retained or read again it is "
        f"handed out to nobody, until there is a key {name} again that may send it."
    )


def listed(path: Path, data: Path) -> list[str]:
    """A line for each key, in columns. `data`: where the server notes when they were used. Raises
    KeysFileError."""
    used = read_last_use(data)
    rows: list[tuple[str, ...]] = [
        ("NAME", "SCOPES", "RATE", "PENDING", "GROUPS", "CREATED", "LAST USED", "TOPICS")
    ]
    rows += [_row(key, used.get(key.name, 0)) for key in read_keys(path)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(f"{cell:<{wide}}" for cell, wide in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _row(key: StoredKey, used_ms: int) -> tuple[str, ...]:
    grant = key.grant
    scopes = ADMIN if ADMIN in grant.scopes else ",".join(sorted(grant.scopes))
    last = _day(datetime.fromtimestamp(used_ms / 1000, UTC)) if used_ms else "-"
    if key.revoked is not None:
        last = f"revoked {_day(key.revoked)}"
    named = (("publish", grant.publish), ("subscribe", grant.subscribe), ("deliver", grant.deliver))
    topics = " ".join(
        f"{what}={','.join(rules.allow) or 'none'}" for what, rules in named if rules.allow is not None
    )
    bounds = (str(bound or "-") for bound in (grant.rate, grant.pending, grant.groups))
    return key.name, scopes, *bounds, _day(key.created), last, topics or "all"


def _day(at: datetime | None) -> str:
    return "-" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
