"""Divides `limits.memory` into the parts of caches, queues and tables.

A part has a share of what the fixed parts leave, at least `least` and at most `most`. Its bounds are
attributes of the configuration without a key: each is the part's size divided by the measured size of one
unit, up to a maximum of its own:

    limits.memory = 1 GiB, 144 MiB are fixed       880 MiB are left
    queued     152 / 1,024 of these, 130 MiB       limits.queued_bytes   32 MiB, of which there are 4 copies
    wheel       64 / 1,024, 55 MiB                 wheel.max_entries     43,000 of 1,342 bytes

`limits.sessions` and `limits.connections` are settings; the parts may reduce them. A caller of `Config(...)`
sets all of them by hand; the default is the maximum.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .kinds import KindError, SettingKind, read_size, show_size

MIB = 1 << 20
SHARES = 1_024
"""Sum of all parts' shares at most; the rest is unused."""
MANY = 1 << 40
"""No bound: the setting is the bound."""
MEMORY_MIN = 256 * MIB
MACHINE_SHARE, CGROUP_SHARE = 4, 2
"""`auto` is one part in this many of the machine or cgroup: the system's file cache serves the database
beside it."""
CGROUP_FILES = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files of cgroup versions 2 and 1, as in a container."""


class Memory(NamedTuple):
    """Bytes, and the reason. 0: not known yet."""

    bytes: int
    why: str

    def __str__(self) -> str:
        return f"{self.bytes // MIB:,} MiB ({self.why})" if self.bytes else self.why


class Unit(NamedTuple):
    """Bytes of one unit in its part, and the maximum number."""

    part: str
    each: int
    most: int


class Part(NamedTuple):
    """`share` of SHARES; `least` and `most` in MiB."""

    name: str
    share: int
    least: int
    most: int
    what: str

    @property
    def bounds(self) -> dict[str, Unit]:
        return {name: unit for name, unit in UNITS.items() if unit.part == self.name}

    def bytes_of(self, free: int) -> int:
        """Its bytes if the fixed parts leave `free`."""
        return min(max(free * self.share // SHARES, self.least * MIB), self.most * MIB)


PARTS = (
    Part("process", 0, 64, 64, "the interpreter, its modules, what is made once, the history"),
    Part("topics", 0, 36, 36, "learned structures of topics, and what is remembered of them"),
    Part("keys", 0, 44, 44, "keys that are being checked, and answers to those that were"),
    Part("memtables", 48, 12, 48, "rows that are in no file yet"),
    Part("block cache", 32, 4, 32, "blocks that were read"),
    Part("wheel", 64, 4, 64, "messages of the near future"),
    Part("tail", 64, 4, 64, "dispatched messages, and those that wait for room and are not stored"),
    Part(
        "queued",
        152,
        12,
        512,
        "what waits for the writer: as it came, as values, as it is written; and wills",
    ),
    Part("connections", 96, 4, MANY, "sockets and what belongs to them"),
    Part(
        "unread and unsent",
        152,
        12,
        512,
        "what connections have sent that is not handled, and have not read of what they are sent",
    ),
    Part(
        "answers", 64, 4, 128, "pages and batches that are being read, leased messages that are not sent yet"
    ),
    Part("routes", 32, 2, 32, "who gets which topic"),
    Part("sessions", 80, 4, MANY, "present or away"),
    Part("subscriptions", 64, 4, 1_145, "of sessions and groups, with their filters"),
    Part("groups", 32, 2, 120, "and what their members have given back"),
    Part("leases", 24, 2, 88, "and calls that wait for messages"),
    Part("ordering keys", 10, 1, MANY, "of groups that order"),
    Part("schedules", 16, 1, 68, "recurring ones"),
    Part("endpoints", 8, 1, 17, "of webhooks"),
    Part("slices", 12, 2, 24, "the directory of the timeline"),
)
UNITS = {
    "store.memtable_bytes": Unit("memtables", 1, 48 * MIB),
    "store.cache_bytes": Unit("block cache", 1, 32 * MIB),
    "wheel.max_bytes": Unit("wheel", 1, 64 * MIB),
    "wheel.max_entries": Unit("wheel", 1_342, 50_000),
    "tail.max_bytes": Unit("tail", 2, 32 * MIB),
    "tail.max_entries": Unit("tail", 1_342, 50_000),
    "limits.queued_bytes": Unit("queued", 4, 128 * MIB),
    "limits.queued": Unit("queued", 5_000, 100_000),
    "http.max_body": Unit("queued", 12, 16 * MIB),
    "limits.connections": Unit("connections", 17_000, MANY),
    "http.connections": Unit("connections", 42_000, 4_000),
    "limits.pool_bytes": Unit("unread and unsent", 2, 256 * MIB),
    "limits.out_bytes": Unit("unread and unsent", 128, MIB),
    "http.buffered_bytes": Unit("answers", 2, 64 * MIB),
    "limits.route_cache_bytes": Unit("routes", 2, 16 * MIB),
    "limits.sessions": Unit("sessions", 4_500, MANY),
    "limits.subscriptions": Unit("subscriptions", 1_200, 1_000_000),
    "limits.subscription_bytes": Unit("subscriptions", 17, 64 * MIB),
    "limits.groups": Unit("groups", 12_000, 10_000),
    "limits.returned": Unit("groups", 2_400, 50_000),
    "limits.leases": Unit("leases", 900, 100_000),
    "limits.waiting_pulls": Unit("leases", 44_000, 2_000),
    "limits.ordering_keys": Unit("ordering keys", 750, MANY),
    "limits.schedules": Unit("schedules", 700, 100_000),
    "limits.endpoints": Unit("endpoints", 17_000, 1_000),
    "slices.max": Unit("slices", 1_200, 20_000),
}
"""`section.attribute` -> its unit."""
FIXED = sum(part.least for part in PARTS if not part.share) * MIB


def sizes(total: int) -> Iterator[tuple[Part, int]]:
    """All parts with their bytes."""
    return ((part, part.bytes_of(total - FIXED)) for part in PARTS)


def bounds_of(total: int) -> dict[str, int]:
    """`section.attribute` -> its bound with `total` bytes."""
    return {
        name: min(size // unit.each, unit.most)
        for part, size in sizes(total)
        for name, unit in part.bounds.items()
    }


def part_lines(memory: Memory) -> list[str]:
    """All parts for `--check`: name, MiB, purpose."""
    rows = [(part.name, size, part.what) for part, size in sizes(memory.bytes)]
    rows.append(("in all", sum(size for _, size, _ in rows), f"of {memory}"))
    wide = max(len(f"{size // MIB:,}") for _, size, _ in rows)
    return in_columns([(name, f"{size // MIB:>{wide},} MiB", what) for name, size, what in rows])


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{wide}}" for cell, wide in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def automatic(root: Path, machine_bytes: int) -> Memory:
    """The value of `auto`. `root`: root of the file system; `machine_bytes`: RAM of the machine."""
    allowed = [size for file in CGROUP_FILES if (size := _limit(root / file)) is not None]
    whole, parts, where = machine_bytes, MACHINE_SHARE, "a quarter of"
    if allowed and min(allowed) < machine_bytes:
        whole, parts, where = min(allowed), CGROUP_SHARE, "half of the cgroup's"
    if whole // parts < MEMORY_MIN:
        return Memory(MEMORY_MIN, f"auto: the least, there are {_in_gib(whole)}")
    return Memory(whole // parts, f"auto: {where} {_in_gib(whole)}")


def _limit(file: Path) -> int | None:
    """Maximum bytes of a cgroup; None: no limit, or no such file."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def _in_gib(size: int) -> str:
    return f"{size / (1 << 30):.3g} GiB"


def _read(value: object) -> Memory:
    if value == "auto":
        return Memory(0, "auto")
    try:
        size = read_size(value)
    except KindError:
        raise KindError('must be "auto" or a size: bytes, or a string such as "512MiB", "2GiB"') from None
    if size < MEMORY_MIN:
        raise KindError(f"must be at least {show_size(MEMORY_MIN)}")
    return Memory(size, "limits.memory")


MEMORY = SettingKind(_read)
