"""Reads a whole archive, and names what is wrong in it, a line each.

commits    one after the other, of one timeline; appends cover the positions without a gap
files      of all commits that count, and of an archive of before: there, with their bytes
the rest   files that no commit names, and those that a compaction has replaced and not moved away

The archive goes on meanwhile: what a commit has replaced or brought since is looked at again at the end.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise

from shards.archives import APPEND, MANIFESTS, MESSAGES, TABLES, manifest_name, number_text, prefix_of

from .errors import SparkError
from .manifests import ALL, READS, Archive, read_archive
from .publish import read_marker
from .storage import Storage, storage_at

OURS = (*map(prefix_of, TABLES), MANIFESTS)
"""Where an archive's files are."""


def faults_in(name: str) -> Iterator[str]:
    """What is wrong. Raises StorageFailed if the archive cannot be read at all."""
    storage = storage_at(name)
    there = [entry.path for entry in storage.list(recursive=True)]
    try:
        archive = read_archive(storage)
        marker = read_marker(storage)
    except SparkError as error:
        yield str(error)
        return
    if not (archive.commits or archive.old or marker):
        yield f"{storage.name} is no archive: it has no manifests"
    yield from _in_commits(storage, archive, marker.timeline if marker else "")
    files = [file for table in TABLES for file in archive.files(table)]
    with ThreadPoolExecutor(READS) as threads:
        found = [one for one in zip(files, threads.map(storage.fault_in, files), strict=True) if one[1]]
    later = read_archive(storage)
    yield from (fault for file, fault in found if file.path not in later.replaced)
    yield from _beside(storage, later, there)


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


def _beside(storage: Storage, archive: Archive, there: Iterable[str]) -> Iterator[str]:
    files = chain((one.files for one in archive.old), (one.files for one in archive.commits))
    named = {file.path for file in chain.from_iterable(files)}
    named |= {manifest_name(one.number) for one in archive.commits}
    for path in there:
        folder, _, name = path.rpartition("/")
        is_old = folder == MANIFESTS and ("-" in name or name.endswith(ALL))
        number, last = name.partition("-")[0], number_text(archive.last)
        is_new = len(number) == len(last) and number > last  # in the making
        if is_old or is_new or not path.startswith(OURS):
            continue
        if path not in named and storage.exists(path):
            yield f"{storage.name}/{path} belongs to no commit"
        elif path in archive.replaced and storage.exists(path):
            yield f"{storage.name}/{path} is replaced, and was not moved away"
