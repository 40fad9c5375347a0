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

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .kinds import Kind, KindError, read_size, show_size

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

    each: int
    most: int


class Part(NamedTuple):
    """`share` of SHARES; `least` and `most` in MiB; `bounds`: `section.attribute` -> its unit."""

    name: str
    share: int
    least: int
    most: int
    bounds: Mapping[str, Unit]
    what: str

    def bytes_of(self, free: int) -> int:
        """Its bytes if the fixed parts leave `free`."""
        return min(max(free * self.share // SHARES, self.least * MIB), self.most * MIB)


PARTS = (
    Part("process", 0, 64, 64, {}, "the interpreter, its modules, what is made once, the history"),
    Part("topics", 0, 36, 36, {}, "learned structures of topics, and what is remembered of them"),
    Part("keys", 0, 44, 44, {}, "keys that are being checked, and answers to those that were"),
    Part(
        "memtables", 48, 12, 48, {"store.memtable_bytes": Unit(1, 48 * MIB)}, "rows that are in no file yet"
    ),
    Part("block cache", 32, 4, 32, {"store.cache_bytes": Unit(1, 32 * MIB)}, "blocks that were read"),
    Part(
        "wheel",
        64,
        4,
        64,
        {"wheel.max_bytes": Unit(1, 64 * MIB), "wheel.max_entries": Unit(1_342, 50_000)},
        "messages of the near future",
    ),
    Part(
        "tail",
        64,
        4,
        64,
        {"tail.max_bytes": Unit(2, 32 * MIB), "tail.max_entries": Unit(1_342, 50_000)},
        "dispatched messages, and those that wait for room and are not stored",
    ),
    Part(
        "queued",
        152,
        12,
        512,
        {
            "limits.queued_bytes": Unit(4, 128 * MIB),
            "limits.queued": Unit(5_000, 100_000),
            "http.max_body": Unit(12, 16 * MIB),
        },
        "what waits for the writer: as it came, as values, as it is written; and wills",
    ),
    Part(
        "connections",
        96,
        4,
        MANY,
        {"limits.connections": Unit(17_000, MANY), "http.connections": Unit(42_000, 4_000)},
        "sockets and what belongs to them",
    ),
    Part(
        "unread and unsent",
        152,
        12,
        512,
        {"limits.pool_bytes": Unit(2, 256 * MIB), "limits.out_bytes": Unit(128, MIB)},
        "what connections have sent that is not handled, and have not read of what they are sent",
    ),
    Part(
        "answers",
        64,
        4,
        128,
        {"http.buffered_bytes": Unit(2, 64 * MIB)},
        "pages and batches that are being read, leased messages that are not sent yet",
    ),
    Part(
        "routes",
        32,
        2,
        32,
        {"limits.route_cache_bytes": Unit(2, 16 * MIB)},
        "who gets which topic",
    ),
    Part("sessions", 80, 4, MANY, {"limits.sessions": Unit(4_500, MANY)}, "present or away"),
    Part(
        "subscriptions",
        64,
        4,
        1_145,
        {"limits.subscriptions": Unit(1_200, 1_000_000), "limits.subscription_bytes": Unit(17, 64 * MIB)},
        "of sessions and groups, with their filters",
    ),
    Part(
        "groups",
        32,
        2,
        120,
        {"limits.groups": Unit(12_000, 10_000), "limits.returned": Unit(2_400, 50_000)},
        "and what their members have given back",
    ),
    Part(
        "leases",
        24,
        2,
        88,
        {"limits.leases": Unit(900, 100_000), "limits.waiting_pulls": Unit(44_000, 2_000)},
        "and calls that wait for messages",
    ),
    Part("ordering keys", 10, 1, MANY, {"limits.ordering_keys": Unit(750, MANY)}, "of groups that order"),
    Part("schedules", 16, 1, 68, {"limits.schedules": Unit(700, 100_000)}, "recurring ones"),
    Part("endpoints", 8, 1, 17, {"limits.endpoints": Unit(17_000, 1_000)}, "of webhooks"),
    Part("slices", 12, 2, 24, {"slices.max": Unit(1_200, 20_000)}, "the directory of the timeline"),
)
FIXED = sum(part.least for part in PARTS if not part.share) * MIB
UNITS = {name: unit for part in PARTS for name, unit in part.bounds.items()}


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


def told(memory: Memory) -> list[str]:
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
        return Memory(MEMORY_MIN, f"auto: the least, there are {_shown(whole)}")
    return Memory(whole // parts, f"auto: {where} {_shown(whole)}")


def _limit(file: Path) -> int | None:
    """Maximum bytes of a cgroup; None: no limit, or no such file."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def _shown(size: int) -> str:
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


MEMORY = Kind(_read)
