"""What the store knows of the archive: its records, and what of them counts."""

import pytest
from msgspec.structs import replace

from shards import archived, keys
from shards.archives import APPEND, COMPACT, MESSAGES, QUARTER_MS, ArchivedFile, DamagedRange, Manifest, Span
from shards.errors import Corrupt
from shards.store import Table
from shards.tables import encode_row
from shards.verify import verify_tables
from tests.support.memory_store import MemoryStore
from timeline.slices import DAY_MS, Home, Slice

DAY = "1970-01-02"


def manifest(number: int, kind: str = APPEND, quarter: int | None = None, **changes: object) -> Manifest:
    start_ms = DAY_MS + (number if quarter is None else quarter) * QUARTER_MS
    path = f"date={DAY}/{number:010d}-{'a' * 8}-0.parquet"
    file = ArchivedFile(path, 1, 1, "0" * 64, MESSAGES, start_ms, start_ms)
    spans = [Span(start_ms, 0, start_ms, start_ms + QUARTER_MS, 1, 1)]
    made = Manifest(
        kind,  # type: ignore[arg-type]
        start_ms,
        start_ms + QUARTER_MS,
        spans,
        [file],
        number=number,
        timeline="0" * 32,
        node=0,
        job="a" * 32,
        created_ms=0,
        version=2,
    )
    return replace(made, **changes)


def stored(*manifests: Manifest) -> MemoryStore:
    store, batch = MemoryStore(), None
    batch = store.batch()
    for one in manifests:
        batch.put(Table.META, archived.record_key(one.number), encode_row(one))
    store.write(batch)
    return store


def piece(number: int) -> Slice:
    made = Slice(DAY_MS + number * QUARTER_MS, DAY_MS + (number + 1) * QUARTER_MS, 0)
    made.count = 1
    return made


def compaction(number: int, *replaced: Manifest) -> Manifest:
    paths = [file.path for one in replaced for file in one.files]
    return manifest(number, COMPACT, start_ms=0, end_ms=0, spans=[], replaces=paths)


def test_what_is_read_back_before_a_drop() -> None:
    first, second, third = (manifest(number) for number in (1, 2, 3))
    compact = compaction(4, first, second)
    store = stored(first, second, third, compact)
    found, count = archived.behind_slices(store, [piece(1)], 1 << 20)
    assert ([one.number for one in found], count) == ([1, 4], 1), "with what replaced its file"
    found, count = archived.behind_slices(store, [piece(1), piece(2), piece(3)], 1 << 20)
    assert ([one.number for one in found], count) == ([1, 2, 3, 4], 3)
    found, count = archived.behind_slices(store, [piece(1), piece(2)], 1)
    assert ([one.number for one in found], count) == ([1, 4], 1), "one slice at least"


def test_what_has_been_written_again_counts_once() -> None:
    first = manifest(1)
    home = Home(DAY_MS + QUARTER_MS, 0)
    again = manifest(2, "again", quarter=1)
    assert archived.archived_of([first, again]) == {home: archived.Archived(1, 1)}
    gap = DamagedRange("0" * 24, "1" * 24)
    torn = replace(first, spans=[replace(first.spans[0], rows=0, archived=0, damaged=[gap])])
    assert archived.archived_of([torn]) == {home: archived.Archived(0, 0, True)}
    assert archived.lacks(piece(1), archived.Archived()) != ""
    assert archived.lacks(piece(1), archived.Archived(0, 0, True)) == ""


def test_a_day_is_compacted_once_it_has_ended_and_not_again() -> None:
    first, second = manifest(1), manifest(2)
    row = archived.ArchiveRow("t", "u", 1, 2, 2, 2 * DAY_MS)
    store = stored(first, second)
    day, files = archived.day_to_compact(store, row, "")
    assert (day, [one.number for one in files]) == (DAY, [1, 2])
    assert archived.day_to_compact(store, replace(row, end_ms=2 * DAY_MS - 1), "") == ("", [])
    assert archived.day_to_compact(store, replace(row, published=1), "") == ("", [])
    store = stored(first, second, compaction(3, first, second))
    assert archived.day_to_compact(store, replace(row, last=3, published=3), "") == ("", [])
    day, files = archived.day_to_compact(store, replace(row, last=3, published=3), DAY)
    assert [one.number for one in files] == [3], "if asked for"


def test_the_newest_day_goes_first() -> None:
    """One that cannot be compacted is tried when no other is left."""
    days = [
        manifest(number, quarter=day * 96 + number) for day in (0, 1) for number in (2 * day + 1, 2 * day + 2)
    ]
    for day, one in zip((2, 2, 3, 3), days, strict=True):
        one.files[0] = replace(one.files[0], path=one.files[0].path.replace("01-02", f"01-0{day}"))
    row = archived.ArchiveRow("t", "u", 1, 4, 4, 9 * DAY_MS)
    assert archived.day_to_compact(stored(*days), row, "")[0] == "1970-01-03"


def test_rows_that_cannot_be_decoded_are_found() -> None:
    store = stored(manifest(1))
    assert verify_tables(store) == []
    for key, value in ((archived.STATE, b"\xc1"), (archived.record_key(1), b"\x80")):
        batch = store.batch()
        batch.put(Table.META, key, value)
        store.write(batch)
        (damage,) = verify_tables(store)
        assert damage.bad[-1] == key or key in damage.bad
    with pytest.raises(Corrupt):
        list(archived.records(store))
    assert keys.under(archived.PREFIX)[0] < archived.record_key(1) < keys.under(archived.PREFIX)[1]
