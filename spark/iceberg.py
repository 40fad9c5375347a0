"""The archive as Iceberg tables: fasti.messages, fasti.deliveries and fasti.ends, by day.

A commit is one snapshot of each table that it has files of. Files are registered as they are. Where files are
replaced, entries are swapped: no row is read. A table's property `fasti.number` is the last commit that it
has, set together with the files.

    killed between two tables     the next call adds what is missing
    two at once                   one meets another snapshot than it has read, and looks again
    a new catalog                 gets all that the archive has

The files stay the archive's (`gc.enabled` is false), and nobody else may rewrite the tables. Snapshots from
before a compaction cannot be read any more: their files have moved.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shards.archives import Manifest, is_local, prefix_of

from .archived import archive_at
from .errors import ArchiveClash, SparkError
from .manifests import Archive
from .parquet import SCHEMAS, TIMES
from .parquet import Table as Name
from .storage import CONNECT_S, REQUEST_S, Storage, s3_endpoint

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

SPACE = "fasti"
NUMBER, TIMELINE, ARCHIVE = "fasti.number", "fasti.timeline", "fasti.archive"
PROPERTIES = {
    "gc.enabled": "false",
    # A commit that met another one must look at the numbers again.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
KEPT = 100
"""Snapshots, of a day. With twice as many the older half goes: each commit reads and writes them all."""
TRIES = 5


def add(catalog: str, storage: Storage, manifest: Manifest) -> None:
    """Add a commit, and those before it that are missing; nothing if it is there. `catalog`: a name in
    pyiceberg's configuration, which then says all, or sqlite:///, postgresql:// or http(s)://. Raises
    SparkError, ArchiveClash."""
    with _failing(catalog):
        from pyiceberg.exceptions import CommitFailedException

        opened = _opened(catalog, storage)
        for _ in range(TRIES - 1):
            with suppress(CommitFailedException):
                _add(opened, storage, manifest)
                return
        _add(opened, storage, manifest)


def _add(catalog: "Catalog", storage: Storage, manifest: Manifest) -> None:
    catalog.create_namespace_if_not_exists(SPACE)
    tables = {name: _loaded(catalog, name) or _made(catalog, name, manifest.timeline) for name in SCHEMAS}
    base = _base(storage)
    for table in tables.values():
        if table.properties[TIMELINE] != manifest.timeline:
            raise ArchiveClash("has the tables of another timeline")
        if _number(table) >= manifest.number and table.properties.get(ARCHIVE) != base:
            raise ArchiveClash("is ahead of this archive, as after a restore: drop its tables")
    is_next = min(map(_number, tables.values())) >= manifest.number - 1
    archive = Archive([manifest]) if is_next else archive_at(storage).up_to(manifest.number)
    for name, table in tables.items():
        _update(table, name, base, archive, manifest)
        if len(table.metadata.snapshots) >= 2 * KEPT:
            found = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
            table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in found[:-KEPT]]).commit()


def _loaded(catalog: "Catalog", name: Name) -> "Table | None":
    from pyiceberg.exceptions import NoSuchTableError

    try:
        table = catalog.load_table(f"{SPACE}.{name}")
    except NoSuchTableError:
        return None
    if {*SCHEMAS[name].names} - {field.name for field in table.schema().fields}:
        with table.update_schema() as change:
            change.union_by_name(SCHEMAS[name])
    return table


def _made(catalog: "Catalog", name: Name, timeline: str) -> "Table":
    from pyiceberg.transforms import DayTransform

    own = {TIMELINE: timeline, NUMBER: "0"}
    with catalog.create_table_transaction(
        f"{SPACE}.{name}", SCHEMAS[name], properties={**PROPERTIES, **own}
    ) as made:
        mapping = made.table_metadata.schema().name_mapping.model_dump_json()
        made.set_properties({"schema.name-mapping.default": mapping})
        with made.update_spec() as spec:
            spec.add_field(TIMES[name], DayTransform(), "day")
    return catalog.load_table(f"{SPACE}.{name}")


def _update(table: "Table", name: Name, base: str, archive: Archive, manifest: Manifest) -> None:
    """Make one snapshot of the commits that the table lacks."""
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    known = _number(table)
    if known >= manifest.number:
        return
    later = Archive([one for one in archive.commits if one.number > known], [] if known else archive.old)
    new = {file.path for one in later.commits for file in one.files}
    gone = {f"{base}/{path}" for path in later.replaced - new if path.startswith(prefix_of(name))}
    paths = [f"{base}/{file.path}" for file in later.files(name)]
    entries = _entries(table, gone)
    number = {NUMBER: str(manifest.number)}
    with table.transaction() as change:
        if paths or gone:
            snapshot = change.update_snapshot(snapshot_properties=number)
            with snapshot.overwrite() if gone else snapshot.merge_append() as files:
                for entry in entries:
                    files.delete_data_file(entry)
                for entry in parquet_files_to_data_files(table.io, change.table_metadata, iter(paths)):
                    files.append_data_file(entry)
        change.set_properties({**number, ARCHIVE: base})


def _entries(table: "Table", paths: set[str]) -> "list[DataFile]":
    """The table's entries of files. Raises SparkError."""
    found = [task.file for task in table.scan().plan_files() if task.file.file_path in paths] if paths else []
    if len(found) < len(paths):
        raise SparkError("lacks files that the archive replaces. Drop its tables: they are made again")
    return found


def _number(table: "Table") -> int:
    """The last commit in a table."""
    return int(table.properties[NUMBER])


def _base(storage: Storage) -> str:
    return f"file://{storage.name}" if is_local(storage.name) else storage.name


def _opened(catalog: str, storage: Storage) -> "Catalog":
    from pyiceberg.catalog import load_catalog

    scheme, is_uri, rest = catalog.partition("://")
    if not is_uri:
        return load_catalog(catalog)
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    given = {"s3.endpoint": s3_endpoint(), "s3.region": region}
    given |= {"s3.connect-timeout": str(CONNECT_S), "s3.request-timeout": str(REQUEST_S)}
    if scheme in ("sqlite", "postgresql"):
        scheme = {"postgresql": "postgresql+psycopg"}.get(scheme, scheme)
        given["warehouse"] = f"{_base(storage)}/_iceberg"
    known = {name: value for name, value in given.items() if value}
    return load_catalog(SPACE, uri=f"{scheme}://{rest}", **known)


@contextmanager
def _failing(catalog: str) -> Iterator[None]:
    """Any error as one line, without a password."""
    parts = urlsplit(catalog)
    name = f"{parts.scheme}://{parts.hostname or ''}{parts.path}" if parts.scheme else catalog
    try:
        yield
    except ModuleNotFoundError as error:
        raise SparkError(f"the catalog {name} needs {error.name}: install fasti-server[iceberg]") from None
    except ArchiveClash as error:
        raise ArchiveClash(f"the catalog {name} {error}") from None
    except Exception as error:
        why = " ".join(str(error).split())[:500] or type(error).__name__
        raise SparkError(f"the catalog {name}: {why}") from error
