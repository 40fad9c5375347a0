"""What a job hands back for a slice that was cut, and whether it is what was asked for.

One file or more for each child, each a sorted run of rows under the child's key; several of one child do not
overlap. The manifest tells of each file its size, hash and bounds and how many rows of each source shard are
in it. Nothing that can be looked up is taken on trust:

    the manifest    names are plain and different, bounds lie in the child, files of a child are apart,
                    rows of each source add up to what the source holds within the job's span
    the files       are there, have the size and the hash; the engine opens them and finds as many rows, the
                    same first and last key, and the first and last row of each shard

Only whether each value is the right one is not looked up: that is what the hash is for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import file_digest
from pathlib import Path

import msgspec

from timeline.position import Position
from timeline.slices import Home, Shard

from .errors import Corrupt
from .jobs import PieceRow, SourceRow
from .store import Store

PLACE_DIGITS = 24
NAME_BYTES_MAX = 255
"""Of a file, as file systems have it."""
NUMBER_MAX = (1 << 48) - 1
"""Of rows and of bytes: sums of them fit in the rows of `shards`."""


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of a source shard is in a file; `first` and `last` are places in hex."""

    shard: int
    rows: int
    live: int
    bytes: int
    first: str
    last: str


# Its name and docstring are in /openapi.json, those of Share too.
class MovedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a split. `slice`: the start of the child it is of; `first` and `last`: keys in hex."""

    name: str
    rows: int
    bytes: int
    sha256: str
    first: str
    last: str
    slice: int
    shards: list[Share]


class Fault(msgspec.Struct, frozen=True):
    """A check that a file, or the manifest as a whole, does not pass."""

    file: str
    check: str
    detail: str


def manifest_faults(
    files: Sequence[MovedFile],
    children: Sequence[PieceRow],
    sources: Sequence[SourceRow],
    rows: Mapping[int, int],
) -> list[Fault]:
    """What is wrong with the manifest by itself. `rows`: what each source holds for the job, by number."""
    by_start = {child.start_ms: child for child in children}
    numbers = {source.shard for source in sources}
    faults: list[Fault] = []
    names: set[str] = set()
    for file in files:
        child = by_start.get(file.slice)
        for check, detail in _file_faults(file, child, numbers, names):
            faults.append(Fault(file.name[:NAME_BYTES_MAX], check, detail))
        names.add(file.name)
    if faults:
        return faults
    return [*_overlaps(files), *_sums(files, rows)]


def _file_faults(
    file: MovedFile, child: PieceRow | None, numbers: set[int], names: set[str]
) -> Iterable[tuple[str, str]]:
    if not file.name or file.name in (".", "..") or "/" in file.name or "\0" in file.name:
        yield "name", "is not a plain file name"
        return
    if len(file.name.encode()) > NAME_BYTES_MAX:
        yield "name", f"has more than {NAME_BYTES_MAX} bytes"
        return
    if file.name in names:
        yield "name", "is listed twice"
    if child is None:
        yield "slice", f"{file.slice} is not the start of a new slice"
        return
    shares = file.shards
    if not shares or [s.shard for s in shares] != sorted({s.shard for s in shares} & numbers):
        yield "shards", "must be source shards, at least one, each once, in rising order"
        return
    if any(not 0 <= s.live <= s.rows or s.rows < 1 or not s.rows <= s.bytes <= NUMBER_MAX for s in shares):
        yield "shards", "live, rows and bytes contradict each other"
        return
    if file.rows != sum(share.rows for share in shares):
        yield "rows", f"{file.rows} is not the sum over its shards"
    if not all(_is_hex(text, PLACE_DIGITS) for s in shares for text in (s.first, s.last)):
        yield "first", "first and last of a shard are 24 lower-case hex digits"
        return
    low, high = f"{child.start_ms:012x}", f"{child.end_ms:012x}"
    if any(not low <= s.first <= s.last or s.last[:12] >= high for s in shares):
        yield "range", f"has places outside of its slice, {child.start_ms} to {child.end_ms}"
    prefixes = [prefix_of(child, share.shard).hex() for share in shares]
    if file.first != prefixes[0] + shares[0].first or file.last != prefixes[-1] + shares[-1].last:
        yield "range", "first and last key are not those of its shards"


def _overlaps(files: Sequence[MovedFile]) -> Iterable[Fault]:
    last = ""
    for file in sorted(files, key=lambda file: file.first):
        if file.first <= last:
            yield Fault(file.name, "overlap", "begins before another file of its slice ends")
        last = max(last, file.last)


def _sums(files: Sequence[MovedFile], rows: Mapping[int, int]) -> Iterable[Fault]:
    for number, expected in rows.items():
        found = sum(share.rows for file in files for share in file.shards if share.shard == number)
        if found != expected:
            yield Fault("", "rows", f"shard {number}: {found} rows in all files, {expected} are stored")


def files_faults(
    store: Store,
    files: Sequence[MovedFile],
    out: Path,
    scratch: Path,
    is_abandoned: Callable[[], bool] = lambda: False,
) -> list[Fault]:
    """What is wrong with the files. Reads all of them: for a thread. `scratch`: an empty folder."""
    faults = []
    for file in files:
        if is_abandoned():
            break
        fault = _stored_fault(store, file, out / file.name, scratch)
        if fault is not None:
            faults.append(fault)
    return faults


def _stored_fault(store: Store, file: MovedFile, path: Path, scratch: Path) -> Fault | None:
    if path.is_symlink() or not path.is_file():
        return Fault(file.name, "file", "is not there")
    size = path.stat().st_size
    if size != file.bytes:
        return Fault(file.name, "bytes", f"has {size} bytes, the manifest says {file.bytes}")
    with path.open("rb") as content:
        digest = file_digest(content, "sha256").hexdigest()
    if digest != file.sha256:
        return Fault(file.name, "sha256", f"is {digest}")
    prefix = bytes.fromhex(file.first)[:8]
    ends = [
        prefix + share.shard.to_bytes(2, "big") + bytes.fromhex(place)
        for share in file.shards
        for place in (share.first, share.last)
    ]
    try:
        held = store.examine(path, scratch, ends)
    except Corrupt as error:
        return Fault(file.name, "table", str(error))
    if held.rows != file.rows:
        return Fault(file.name, "rows", f"has {held.rows}, the manifest says {file.rows}")
    if (held.first.hex(), held.last.hex()) != (file.first, file.last):
        return Fault(file.name, "range", f"is from {held.first.hex()} to {held.last.hex()}")
    if held.absent:
        return Fault(file.name, "shards", f"has no row {held.absent[0].hex()}")
    return None


def prefix_of(child: PieceRow, number: int) -> bytes:
    """The prefix of a child's shard."""
    return Shard(Home(child.start_ms, child.generation), number).prefix


def child_shards(files: Sequence[MovedFile], child: PieceRow, structures: Mapping[int, int]) -> list[Shard]:
    """The shards that a child gets. `structures`: by number."""
    shards: dict[int, Shard] = {}
    for file in files:
        for share in file.shards if file.slice == child.start_ms else ():
            number = share.shard
            shard = shards.setdefault(number, Shard(child.home, number, structures[number]))
            first, last = Position(int(share.first, 16)), Position(int(share.last, 16))
            shard.take(share.rows, share.live, share.bytes, first, last)
    return list(shards.values())


def _is_hex(text: str, digits: int) -> bool:
    return len(text) == digits and set(text) <= set("0123456789abcdef")
