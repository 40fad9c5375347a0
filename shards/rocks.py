"""The store contract on RocksDB through rocksdict: one database, a column family per table, one log.

Group commit is `write(batch)` without sync and then `flush_wal(True)`: the binding holds the interpreter
lock during a synced write but not during `flush_wal`, so a caller's thread can wait for the disk while
the event loop goes on.

The log is recovered with `tolerate_corrupted_tail_records`: a torn tail after a kill is cut off, a
damaged record in the middle refuses to open. (The engine's default opens quietly with what came before
the damage.)

A rotten block fails every read of it. Once a compaction has met it the engine refuses all writes until it is
opened again, and then again. So after the first rotten block nothing is compacted any longer: reads get
slower in the long run, and the log says so; `verify --repair` ends it.

The log holds all rows that are in no table file yet. One log serves all tables, and cannot be deleted before
each has flushed its rows. Small tables never fill a memtable, and kept up to 256 MiB of log, as much as a
million messages. So they are flushed as soon as the log has LOG_BYTES: a million messages of 200 B take 191
MiB instead of 486, and after a kill the server is ready in 0.9 s instead of 1.24.

Blocks are LZ4, and zstd on the bottom level, where they stay longest. zstd shrinks base64 text by a quarter,
which LZ4 cannot compress, and JSON to a quarter. It costs 0.9 us of compaction a message, less with JSON;
memtables half as large and compactions half as often save as much.
(docs/decisions/0019-what-a-message-takes.md has the figures.)

A checkpoint flushes what is in memory and holds the interpreter lock meanwhile (330 ms for 40 MB of rows). A
plain `flush` of a family does not hold it. So that comes first, and the checkpoint has little left to do (1
to 8 ms).
"""

import fcntl
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
)

from .errors import Corrupt, NotOurs, ShardsError, StoreFailed, StoreLocked
from .mark import Mark
from .private import OWN
from .scan import check, scan, scan_at_rest
from .store import ROWS_END, Batch, Table
from .synced import Synced
from .unreadable import REPAIR_BYTES, Unreadable

log = logging.getLogger(__name__)

MEMTABLE_BYTES = 16 << 20
"""Bytes of one table's memtable. Larger ones are slower to insert into."""
MEMTABLES_BYTES = 48 << 20
FILTER_SHARE = 0.01
"""Of MEMTABLE_BYTES, for a Bloom filter of the idempotency keys in memory. Nearly each that is looked up is
new: to find that out in a list of 100,000 takes 2 to 4 us, by the filter 0.4. The message saves 1 us in all,
as its own key is then put into a list that is not in the processor's cache yet."""
LOG_BYTES = 2 * MEMTABLE_BYTES
"""Bytes of logs above which the tables that hold the oldest log are flushed."""
INFO_LOG_BYTES = 1 << 20
"""Bytes of one of the engine's four log files, LOG and LOG.old.*."""
RUNS = 8
"""Flushed files of a table that trigger a compaction."""
ZSTD_LEVEL = 1
_WINDOW_BITS = -14
"""The engine's default; zstd ignores it."""
CACHE_BYTES = 32 << 20
COPY_ROWS = 1_000
_COPY = ".copy"
_BESIDE = "beside"
_ROTTEN = ("Corruption", "Input/output error", "No such file")
"""How the engine's errors name damaged or missing bytes."""
OPEN_FILES = 256
_TRACKING = """[Version]
  rocksdb_version=9.8.4
  options_file_version=1.1
[DBOptions]
  track_and_verify_wals_in_manifest=true
[CFOptions "default"]
[TableOptions/BlockBasedTable "default"]
"""
"""An engine options file with what the binding has no setter for. See synced.py."""
_DROPPED = re.compile(rb"(\d+\.log): dropping \d+ bytes; Corruption")
REFUSAL_BYTES = 64 << 10
"""Bytes at the end of the engine's LOG to search for the reason of a failed opening."""
_OF_THE_BINDING = "(os error "
"""Ending of the binding's own errors; the engine words them differently."""
_WRITTEN = frozenset(("rocksdict-config.json", "LOG", "LOCK"))
"""Files written when a database is opened read-only."""
ROOM_BYTES = 64 << 10
"""A disk with less room is not tried."""


class RocksBatch:
    """A thin wrapper: puts go straight into the engine's batch.

    It holds no column family itself, only the store's containers of them, which are emptied when the store is
    closed: a handle that is still alive would keep the database open.
    """

    def __init__(self, families: dict[Table, object], messages: list[object]) -> None:
        self.raw = WriteBatch(raw_mode=True)
        self._families = families
        self._messages = messages

    def put_message(self, key: bytes, value: bytes) -> None:
        self.raw.put(key, value, self._messages[0])  # type: ignore[arg-type]

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self.raw.put(key, value, self._families[table])  # type: ignore[arg-type]

    def delete(self, table: Table, key: bytes) -> None:
        self.raw.delete(key, self._families[table])  # type: ignore[arg-type]

    def delete_range(self, table: Table, start: bytes, end: bytes) -> None:
        self.raw.delete_range(start, end, self._families[table])  # type: ignore[arg-type]

    @property
    def size(self) -> int:
        return self.raw.size_in_bytes()

    def __len__(self) -> int:
        return len(self.raw)


class RocksStore:
    """An open data directory. Raises StoreLocked, Corrupt or StoreFailed if it cannot be opened."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        for_repair: bool = False,
        memtable_bytes: int = MEMTABLES_BYTES,
        cache_bytes: int = CACHE_BYTES,
        damage: str = "",
    ) -> None:
        """`for_repair`: never compact, and accept an interrupted rewrite. `memtable_bytes`, `cache_bytes`:
        for all tables together. `damage`: found at an earlier opening."""
        self.path = path
        self._memtable_bytes = memtable_bytes
        self._cache_bytes = cache_bytes
        self._cache = Cache(cache_bytes)
        try:
            path.mkdir(mode=OWN, parents=True, exist_ok=True)
        except OSError as error:
            raise NotOurs(f"{path} cannot be created: {error.strerror}") from None
        self._base = _tracking(path)  # once: the disk may be full later
        self._mark = Mark(path / "bound")
        self._synced = Synced(path)
        self.read_only = read_only
        self.damage = damage
        self._for_repair = for_repair
        self._is_reading = False
        """Open read-only, until it can be written again."""
        self._families: dict[Table, Rdict] = {}
        self._handles: dict[Table, object] = {}
        self._absent: frozenset[Table] = frozenset()
        """Tables unknown to the program that wrote the data, which cannot be created while read-only."""
        self._messages: list[object] = []
        self._links: TemporaryDirectory[str] | None = None
        """Links for the engine while the disk is too full even for the files that a read-only open writes."""
        if not read_only and not for_repair and self._synced.is_doubtful():
            # If it is refused, then before its log is used up.
            self._open(read_only=True)
            self.close()
        self._open(read_only=read_only)

    def batch(self) -> RocksBatch:
        return RocksBatch(self._handles, self._messages)

    def write(self, batch: Batch) -> None:
        try:
            self._db.write(cast("RocksBatch", batch).raw)
        except Exception as error:
            raise self._write_refusal(f"write to {self.path}", error) from error

    def flush(self) -> None:
        try:
            change = self._db.latest_sequence_number()
            self._db.flush_wal(True)
        except Exception as error:
            raise self._write_refusal(f"sync of {self.path}", error) from error
        self._synced.note(change)

    def written(self) -> int:
        return 0

    def flush_to(self, written: int) -> None:  # noqa: ARG002 - a sync takes all
        self.flush()

    def get(self, table: Table, key: bytes) -> bytes | None:
        if table in self._absent:
            return None
        family = self._family(table)
        try:
            found: bytes | None = family.get(key)
        except Exception as error:
            raise self._read_refusal(table, f"key {key.hex()}", error) from error
        return found

    def scan(self, table: Table, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        if table in self._absent:
            return iter(())
        through = scan_at_rest if self.read_only else scan
        return through(self._family(table), start, end, partial(self._read_refusal, table))

    def check(self, table: Table, start: bytes, most: int) -> tuple[bytes | None, int]:
        if table in self._absent:
            return None, 0
        return check(self._family(table), start, ROWS_END, most, partial(self._read_refusal, table))

    @property
    def file_bytes(self) -> int:
        try:
            return sum(file.stat().st_size for file in self.path.glob("*.sst"))
        except OSError as error:
            raise StoreFailed(f"{self.path}: {error.strerror}") from error

    def drop_pages(self) -> None:
        if not hasattr(os, "posix_fadvise"):
            return
        for file in self.path.glob("*.sst"):
            with suppress(FileNotFoundError), file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def keys_beside(self, table: Table, start: bytes, end: bytes) -> Iterator[bytes]:
        """Keys from a second database beside this one, of links to its files without the rotten ones."""
        side = self.path / _BESIDE
        shutil.rmtree(side, ignore_errors=True)
        try:
            side.mkdir()
            family = self._family(table)
            if not self.read_only:
                family.flush()
            for held in family.live_files():
                if held["start_key"] < end and held["end_key"] >= start:
                    file = self.path / str(held["name"]).lstrip("/")
                    (side / file.name).hardlink_to(file)
            options = _options(Cache(1 << 20), MEMTABLES_BYTES)
            Rdict.repair(str(side), options)
            names = _families_on_disk(side, options)
            if table.value in names:
                found = Rdict(str(side), options, dict.fromkeys(names, options), AccessType.read_only())
                try:
                    rows = scan_at_rest(
                        found.get_column_family(table.value), start, end, partial(self._read_refusal, table)
                    )
                    yield from (key for key, _ in rows)
                finally:
                    found.close()
        except ShardsError:
            raise
        except Exception as error:
            raise StoreFailed(f"reading the files of {self.path} one by one: {error}") from error
        finally:
            shutil.rmtree(side, ignore_errors=True)

    def compact(self, table: Table, start: bytes, end: bytes) -> None:
        if self._is_damaged:
            return
        self._family(table).compact_range(start, end)

    def unload(self) -> None:
        self._flush_tables()
        self._cache.set_capacity(0)
        self._cache.set_capacity(self._cache_bytes)

    def _flush_tables(self) -> None:
        if self._is_reading:
            raise StoreFailed(f"{self.path} takes no writes now")
        try:
            for family in list(self._families.values()):
                family.flush()
        except Exception as error:
            raise StoreFailed(f"tables of {self.path}: {_words(error)}") from error

    def checkpoint(self, path: Path) -> None:
        try:
            self._flush_tables()
            Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:
            raise StoreFailed(f"checkpoint into {path}: {_words(error)}") from error

    def rewrite(self, table: Table) -> None:
        """Rewrite a table from its readable rows. Durable on return; else raises StoreFailed.

        It refuses if readable rows would be lost because too much around them cannot be read.

        It first makes a copy, which a row at ROWS_END marks when complete, then the table again from the
        copy. If interrupted before the mark, the table is as it was; after it, the store opens only for the
        next repair (`finish_rewrites`).
        """
        side = table.value + _COPY
        if side in Rdict.list_cf(str(self.path), Options(raw_mode=True)):
            self._db.drop_column_family(side)
        self._db.create_column_family(side, self._options())
        unreadable = Unreadable(kept_bytes=REPAIR_BYTES)
        self._copy(unreadable.scan(self, table, b"", ROWS_END), side)
        if any(corrupt.is_cut for corrupt in unreadable):
            self._db.drop_column_family(side)
            raise StoreFailed(
                f"table {table.value} is left as it is: readable rows would be lost, see the log"
            )
        self._copy(iter([(ROWS_END, b"")]), side)
        self._finish(table)

    def finish_rewrites(self) -> None:
        """Continue interrupted rewrites."""
        for table in Table:
            if self._is_whole(table.value + _COPY):
                self._finish(table)

    def _finish(self, table: Table) -> None:
        """Make the table from its complete copy."""
        name, side = table.value, table.value + _COPY
        self._families.pop(table)
        self._handles.pop(table)
        self._messages.clear()
        self._db.drop_column_family(name)
        self._db.create_column_family(name, self._options())
        whole = self._db.get_column_family(side)
        self._copy(scan(whole, b"", ROWS_END, partial(self._read_refusal, table)), name)
        del whole
        self._db.drop_column_family(side)
        self._families[table] = self._db.get_column_family(name)
        self._handles[table] = self._db.get_column_family_handle(name)
        self._messages[:] = [self._handles[Table.MESSAGES]]

    def _copy(self, rows: Iterator[tuple[bytes, bytes]], name: str) -> None:
        handle = self._db.get_column_family_handle(name)
        while some := list(islice(rows, COPY_ROWS)):
            batch = WriteBatch(raw_mode=True)
            for key, value in some:
                batch.put(key, value, handle)
            self._db.write(batch)
        self.flush()

    def _is_whole(self, side: str) -> bool:
        """Whether there is a complete copy of a table."""
        if side not in Rdict.list_cf(str(self.path), Options(raw_mode=True)):
            return False
        return self._db.get_column_family(side).get(ROWS_END) is not None

    def mark(self, bound_ms: int) -> None:
        self._mark.write(bound_ms)

    def marked_ms(self) -> int:
        return self._mark.read()

    def reopen(self) -> None:
        """Reopen; on a full disk, where it cannot be written, open read-only.

        Reads go on meanwhile. Opening holds the interpreter while the log is read, so a writable one is not
        tried without a chance of success.
        """
        if not self._is_reading:
            self._read_on()
        reading = self._db if self._is_reading else None
        self._check_room()
        self._open(read_only=self.read_only)
        self._is_reading = False
        if reading is not None:
            _close(reading)
            self._drop_links()

    def _read_on(self) -> None:
        """Close the writable handle and take a read-only one. If that fails, reads fail until the store is
        open again."""
        writing = self._db
        try:
            self._open(read_only=True)
        except ShardsError:
            self.close()
        else:
            self._is_reading = True
            _close(writing)
            self._synced.settle()

    def _check_room(self) -> None:
        """Check the room: opening writes the log's rows into tables, hardly ever compressed to less than an
        eighth."""
        try:
            disk = os.statvfs(self.path)
            log_bytes = sum(log.stat().st_size for log in self.path.glob("*.log"))
        except OSError as error:
            raise StoreFailed(f"{self.path}: {error.strerror}") from error
        if disk.f_flag & os.ST_RDONLY:
            raise StoreFailed(f"{self.path}: Read-only file system")
        free = disk.f_frsize * (disk.f_bavail if os.geteuid() else disk.f_bfree)
        if free < ROOM_BYTES + log_bytes // 8:
            raise StoreFailed(f"{self.path}: No space left on device: {free} bytes are free")

    def close(self) -> None:
        self._families.clear()
        self._handles.clear()
        self._messages.clear()
        _close(self._db)
        self._synced.settle()
        self._drop_links()

    def _drop_links(self) -> None:
        links, self._links = self._links, None
        if links is not None:
            links.cleanup()

    def _family(self, table: Table) -> Rdict:
        family = self._families.get(table)
        if family is None:
            raise StoreFailed(f"{self.path} is being reopened")
        return family

    def _read_refusal(self, table: Table, where: str, error: Exception) -> ShardsError:
        """The error of a failed read: Corrupt if it will fail again, StoreFailed if it may pass."""
        text = f"table {table.value}, {where}: {_words(error)}"
        # While it is only read, the writable one may have replaced a file.
        if not any(word in text for word in _ROTTEN) or (self._is_reading and _ROTTEN[-1] in text):
            return StoreFailed(text)
        if not self._is_damaged and not self.read_only:
            self._stop_compacting(text)
            with suppress(Exception):
                # This table at once; all others when the store is opened again.
                self._family(table).set_options({"disable_auto_compactions": "true"})
        return Corrupt(text)

    def _write_refusal(self, where: str, error: Exception) -> StoreFailed:
        text = _words(error)
        if not self._is_damaged and any(word in text for word in _ROTTEN):
            self._stop_compacting(text)
        return StoreFailed(f"{where}: {text}")

    def _opened(self, options: Options, names: set[str], *, read_only: bool) -> Rdict:
        keyed = self._options()
        keyed.set_memtable_whole_key_filtering(True)
        keyed.set_memtable_prefix_bloom_ratio(FILTER_SHARE)
        families = {name: keyed if name == Table.DEDUPE.value else options for name in names}
        if not read_only:
            return Rdict(str(self.path), options, families, AccessType.read_write())
        try:
            return Rdict(str(self.path), options, families, AccessType.read_only())
        except Exception as error:
            if _OF_THE_BINDING not in str(error):
                raise
        # Even to read it writes a file of its own, and the engine its log. On a full disk both go into a
        # folder of links to the data.
        self._links = TemporaryDirectory(prefix="fasti-")
        folder = Path(self._links.name)
        for file in self.path.iterdir():
            if file.is_file() and file.name not in _WRITTEN:
                (folder / file.name).symlink_to(file.absolute())
        return Rdict(str(folder), options, families, AccessType.read_only())

    def _checked(self, check: Callable[[], None]) -> None:
        """Run a check; a repair ignores Corrupt."""
        try:
            check()
        except Corrupt as error:
            if not self._for_repair:
                raise
            log.error("%s", str(error))

    @property
    def _is_damaged(self) -> bool:
        return self._for_repair or bool(self.damage)

    def _stop_compacting(self, why: str) -> None:
        self.damage = why
        log.error("%s: damaged, compaction stops until it is repaired: %s", self.path, why)

    def _options(self, base: Options | None = None) -> Options:
        options = _options(self._cache, self._memtable_bytes, base)
        options.set_disable_auto_compactions(self._is_damaged)
        return options

    def _open(self, *, read_only: bool) -> None:
        try:
            self._open_tables(read_only=read_only)
        except ShardsError:
            if read_only:
                self._drop_links()
            raise

    def _open_tables(self, *, read_only: bool) -> None:
        noted = self._synced.read()  # First: a reader beside a running server sees it grow.
        self._checked(lambda: self._synced.check_manifest(noted))
        # A new cache at each opening: old cached blocks would hide damage on the disk.
        self._cache = Cache(self._cache_bytes)
        options = self._options(self._base)
        names = set(_families_on_disk(self.path, options))
        if not read_only:
            self._mark.prepare()
            # Missing families are created at opening, all at once: a sixth of the time of one by one.
            names.update(table.value for table in Table)
        try:
            db = self._opened(options, names, read_only=read_only)
        except Exception as error:
            raise _refusal(self.path, error) from error
        try:
            self._checked(lambda: self._synced.check(noted, db.latest_sequence_number()))
        except Corrupt:
            _close(db)
            raise
        try:
            there = [table for table in Table if table.value in names]
            found = {table: db.get_column_family(table.value) for table in there}
            handles = {table: db.get_column_family_handle(table.value) for table in there}
        except Exception as error:
            raise _refusal(self.path, error) from error
        self._db = db
        self._absent = frozenset(Table).difference(there)
        copied = [name for name in names if name.endswith(_COPY) and self._is_whole(name)]
        if copied and not self._for_repair:
            _close(db)
            raise Corrupt(f"{self.path}: a repair was cut off; run it again")
        self._families.update(found)
        self._handles.update(handles)
        self._messages[:] = [handles[Table.MESSAGES]]


def is_open(path: Path) -> bool:
    """Whether another process has the data directory open for writing.

    Do not call it in a process that has it open: it would give up that process's own lock.
    """
    try:
        lock = os.open(path / "LOCK", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(lock)
    return False


def _tracking(path: Path) -> Options:
    """Options with which the engine tracks its logs, also for reading: without them it crashes on such a
    tracking record. `path`: has room for two small files, if there is no directory for temporary ones. Raises
    StoreFailed."""
    try:
        return _loaded(None)
    except OSError as error:
        try:
            return _loaded(path)
        except OSError:
            raise StoreFailed(f"the directory for temporary files: {error.strerror}") from error


def _loaded(folder: Path | None) -> Options:
    with TemporaryDirectory(prefix="fasti-options-", dir=folder) as name:
        (Path(name) / "OPTIONS-000001").write_text(_TRACKING)
        (Path(name) / "rocksdict-config.json").write_text('{"raw_mode":true,"prefix_extractors":{}}')
        try:
            options, _ = Options.load_latest(name)
        except Exception as error:
            raise StoreFailed(f"options of the engine: {error}") from error
    return options


def _close(db: Rdict) -> None:
    for _ in range(2):
        # A close that fails, on a full disk or for a rotten block, has released nothing; the next close does.
        with suppress(Exception):
            db.close()
            break


def _families_on_disk(path: Path, options: Options) -> list[str]:
    """All column families on disk: opening a database must name each."""
    if not (path / "CURRENT").exists():
        return []
    try:
        return [name for name in Rdict.list_cf(str(path), options) if name != "default"]
    except Exception as error:
        raise _refusal(path, error) from error


def _words(error: Exception) -> str:
    """The engine's text of an error. The binding's own error for a closing handle gets a plain text."""
    is_closing = isinstance(error, DbClosedError) or "borrowed" in str(error)
    return "the store is being reopened" if is_closing else str(error)


def _refusal(path: Path, error: Exception) -> ShardsError:
    text = str(error)
    if "lock" in text.lower():
        return StoreLocked(f"{path} is open in another process: {text}")
    if "Corruption" in text:
        return Corrupt(f"{_damaged(path, text)}: {text}; restore a backup (docs/failures.md)")
    return StoreFailed(f"{path}: {text}")


def _damaged(path: Path, text: str) -> str:
    """The damaged file, or the directory if the text names the file. A text without a name is about a log of
    rows: the engine's LOG says which one. For a read-only opening it may be any of them."""
    if "CURRENT" in text or f"{path}{os.sep}" in text:
        return str(path)
    with suppress(OSError), (path / "LOG").open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - REFUSAL_BYTES))
        if found := _DROPPED.search(file.read()):
            return f"{path / found[1].decode()}"
    return f"{path}{os.sep}{' or '.join(sorted(log.name for log in path.glob('*.log')))}"


def _options(cache: Cache, memtable_bytes: int, base: Options | None = None) -> Options:
    """Options with bounded memory: all column families share one cache and one budget of memtables.

    Index and filter blocks go into the cache too; by default they are outside it and grow with the data.
    """
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_bloom_filter(10, False)
    blocks.set_block_size(16 << 10)
    options = base or Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_write_buffer_size(MEMTABLE_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_db_write_buffer_size(memtable_bytes)
    options.set_max_open_files(OPEN_FILES)
    options.set_max_total_wal_size(LOG_BYTES)
    options.set_level_zero_file_num_compaction_trigger(RUNS)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    options.set_bottommost_compression_options(_WINDOW_BITS, ZSTD_LEVEL, 0, 0, True)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(INFO_LOG_BYTES)
    options.set_block_based_table_factory(blocks)
    return options
