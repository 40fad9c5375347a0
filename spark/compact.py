"""Compaction: a closed day's files of each table become few, sorted and with a Bloom filter on the id.

    work     Spark tasks write the new files: a commit, which replaces the day's
    after    of any commit, once its manifest is written: what it replaces goes to _replaced/, for a week

Each append covers later positions than the one before it. So the files of a day, by their first rows, are one
sorted run, and a task joins them row group by row group. What a task reads has the sum that its commit says.
Killed at any point, the manifests name either the old files or the new ones.

A message that nobody had got may have come again later, under its id. Its earlier row is left out, if the
later one is archived by then, within LOOK_MS. Readers leave it out anyhow.

Memory: a few row groups. A file is read twice: for its sum, and its rows.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shards.archives import (
    COMPACT,
    FILES_MAX,
    MESSAGES,
    REPLACED,
    TABLES,
    ArchivedFile,
    Manifest,
    Report,
    dates_of,
    file_name,
    number_text,
)
from timeline.slices import DAY_MS

from .errors import SparkError
from .job import Job
from .manifests import Archive, read_archive, write_all
from .parquet import GROUP_ROWS, SCHEMAS, TIMES, row_groups, write_file
from .storage import Missing, Storage, StorageFailed, storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT_S = 7 * 86_400.0
SWEPT = 500
"""Where nothing is compacted, a reader opens so many manifests at most."""
FILE_MAX = 512 << 20
"""Bytes that become one file: of a day above it, half of that at least."""
LOOK_MS = 8 * DAY_MS
WITHHELD_MAX = 1_000_000
"""With more such rows in a file to be, all stay."""
BLOOM = {"id": {"ndv": GROUP_ROWS, "fpp": 0.01}}
"""Two bytes a row. Of the row groups without an id, 1 in 100 is read for it."""


class Part(msgspec.Struct):
    """Neighbours that become one file, `path`; `later`: of the days after."""

    path: str
    files: Sequence[ArchivedFile]
    later: Sequence[ArchivedFile]


def work(session: "SparkSession", job: Job, storage: Storage) -> Report | None:
    """Write the day's files again. Returns what to have recorded; None: it has few files already. Raises
    StorageFailed, SparkError."""
    from .tasks import each

    archive = read_archive(storage)
    parts = [part for table in TABLES for part in parts_of(job, table, archive)]
    while parts and sum(len(part.files) for part in parts) > FILES_MAX:
        parts.pop()
    if not parts:
        return None
    name = storage.name

    def join(part: Part) -> dict[str, Any]:
        return {"file": msgspec.to_builtins(joined(storage_at(name), part))}

    made = [msgspec.convert(one["file"], ArchivedFile | None) for one in each(session, parts, join)]
    replaced = [file.path for part in parts for file in part.files]
    return Report(COMPACT, files=[file for file in made if file is not None], replaces=replaced)


def after(storage: Storage, manifest: Manifest, now_s: float | None = None) -> None:
    """Delete what other tries of a published commit have left in its folders, and move what it replaces out
    of the way. A compaction, and one commit in SWEPT, also looks after the tries of commits before it. It
    deletes what was replaced a week ago, and leaves all manifests in one file. It may run twice, and late: it
    goes by manifests. Raises StorageFailed."""
    is_sweep = manifest.kind == COMPACT or manifest.number % SWEPT == 0
    commits = read_archive(storage).commits if is_sweep else [manifest]
    named = {number_text(one.number): {file.path for file in one.files} for one in commits}
    dates = dates_of(manifest.start_ms, manifest.end_ms)
    paths = [file_name(table, date, manifest.number, "", 0) for table in TABLES for date in dates]
    paths += [file.path for file in manifest.files]
    for folder in {path.rpartition("/")[0] for path in paths}:
        for entry in storage.list(folder):
            number = entry.path.removeprefix(f"{folder}/").partition("-")[0]
            if entry.path not in named.get(number, {entry.path}):
                storage.delete(entry.path)
    for path in manifest.replaces:
        with suppress(Missing):
            storage.move(path, f"{REPLACED}/{path}")
    if not is_sweep:
        return
    until_s = (time.time() if now_s is None else now_s) - KEPT_S
    for entry in storage.list(REPLACED, recursive=True):
        if entry.changed_s < until_s:
            storage.delete(entry.path)
    write_all(storage, commits)


def parts_of(job: Job, table: str, archive: Archive) -> list[Part]:
    """The day's files of a table in parts of about the same size. One that is made already is left alone."""
    files = sorted((one for one in job.files if one.table == table), key=lambda one: one.first_ms)
    ends = list(accumulate(one.bytes for one in files))
    room = ends[-1] // (ends[-1] // FILE_MAX + 1) + 1 if files else 1
    last_ms = files[-1].last_ms if files else 0
    later = [one for one in archive.files(table) if last_ms < one.first_ms <= last_ms + LOOK_MS]
    made = {file.path for one in archive.commits if one.kind == COMPACT for file in one.files}
    found = []
    for number, same in groupby(range(len(files)), key=lambda index: (ends[index] - 1) // room):
        indices = [*same]
        part, rest = files[indices[0] : indices[-1] + 1], files[indices[-1] + 1 :]
        path = file_name(table, job.date or "", job.number, job.id, number)
        if len(part) > 1 or part[0].path not in made:
            found.append(Part(path, part, [*rest, *later]))
    return found


def joined(storage: Storage, part: Part) -> ArchivedFile | None:
    """Write one file of a part's; None: all of its rows came again. Raises StorageFailed, SparkError."""
    from .archived import standing

    table = part.files[0].table
    last = last_of(storage, part) if table == MESSAGES else {}
    rows = (standing(batch, last) if last else batch for batch in _rows(storage, part.files))
    keys = [pq.SortingColumn(SCHEMAS[table].get_field_index(TIMES[table]))]
    blooms = BLOOM if "id" in SCHEMAS[table].names else None
    how = {"sorting_columns": keys, "bloom_filter_options": blooms}
    return write_file(storage, part.path, table, row_groups(rows), **how)


def last_of(storage: Storage, part: Part) -> dict[str, int]:
    """Of the ids that the part has as withheld, the last `at` (ms) of each."""
    from .archived import last_rows, withheld_in

    if not 0 < sum(one.withheld for one in part.files) <= WITHHELD_MAX:
        return {}
    withheld = withheld_in(storage, part.files, WITHHELD_MAX)
    found = last_rows(storage, [*part.files, *part.later], withheld, 0)
    return {name: at_ms for name, (at_ms, _) in found.items()}


def _rows(storage: Storage, files: Iterable[ArchivedFile]) -> Iterator[pa.Table]:
    """All rows of files, as today's schema has them. Raises SparkError unless they are in order;
    StorageFailed for a file with other bytes than its commit says."""
    from pyarrow.dataset import ParquetFileFormat

    last_ms = 0
    for file in files:
        if fault := storage.fault_in(file):
            raise StorageFailed(fault)
        schema = SCHEMAS[file.table]
        with storage.opened(file.path) as opened, storage.failing(file.path):
            fragment = ParquetFileFormat().make_fragment(opened)
            options = {"batch_size": GROUP_ROWS, "batch_readahead": 1, "use_threads": False}
            for batch in fragment.to_batches(schema=schema, **options):
                times = batch[TIMES[file.table]].cast(pa.int64()).to_numpy()
                if len(times) and (times[0] < last_ms or np.any(np.diff(times) < 0)):
                    raise SparkError(f"{storage.name}: rows up to {file.path} are not in order")
                last_ms = times[-1] if len(times) else last_ms
                yield pa.Table.from_batches([batch], schema)
