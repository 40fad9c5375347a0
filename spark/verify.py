"""Reads a whole archive, and names what is wrong in it, a line each.

commits    one after the other, of one timeline; appends cover the positions without a gap
files      of all commits that count, and of an archive of before: there, with their bytes
the rest   files that no commit names, and those that a compaction has replaced and not moved away
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise

from shards.archives import APPEND, MANIFESTS, MESSAGES, TABLES, manifest_name

from .errors import SparkError
from .manifests import READS, Archive, read_archive
from .publish import read_marker
from .storage import Storage, storage_at


def faults_in(name: str) -> Iterator[str]:
    """What is wrong. Raises StorageFailed if the archive cannot be read at all."""
    storage = storage_at(name)
    try:
        archive = read_archive(storage)
        marker = read_marker(storage) if archive.commits else None
    except SparkError as error:
        yield str(error)
        return
    yield from _in_commits(storage, archive, marker.timeline if marker else "")
    files = [file for table in TABLES for file in archive.files(table)]
    with ThreadPoolExecutor(READS) as threads:
        yield from filter(None, threads.map(storage.fault_in, files))
    yield from _beside(storage, archive)


def _in_commits(storage: Storage, archive: Archive, timeline: str) -> Iterator[str]:
    there = {entry.path for entry in storage.list(MANIFESTS)}
    if archive.commits and not timeline:
        yield f"{storage.name} has commits, but no marker"
    for one in archive.commits:
        path = manifest_name(one.number)
        if path not in there:
            yield f"{storage.name}/{path} is missing"
        if one.timeline != timeline and timeline:
            yield f"{storage.name}/{path} is of another timeline"
        archived, rows = (
            sum(span.archived for span in one.spans),
            sum(file.rows for file in one.files if file.table == MESSAGES),
        )
        if one.kind == APPEND and archived != rows:
            yield f"{storage.name}/{path} has spans with {archived} messages, and files with {rows}"
    for before, after in pairwise(archive.commits):
        if after.number != before.number + 1:
            yield f"{storage.name} has no commits between {before.number} and {after.number}"
    for before, after in pairwise(one for one in archive.commits if one.kind == APPEND):
        if before.end_ms != after.start_ms:
            yield f"commit {after.number} begins at {after.start_ms}, the one before ends at {before.end_ms}"


def _beside(storage: Storage, archive: Archive) -> Iterator[str]:
    files = chain((one.files for one in archive.old), (one.files for one in archive.commits))
    named = {file.path for file in chain.from_iterable(files)}
    for entry in storage.list(recursive=True):
        path = entry.path
        if not path.endswith(".parquet") or path.startswith("_replaced/"):
            continue
        if path not in named:
            yield f"{storage.name}/{path} belongs to no commit"
        elif path in archive.replaced:
            yield f"{storage.name}/{path} is replaced, and was not moved away"
