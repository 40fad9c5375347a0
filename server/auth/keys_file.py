"""The keys file: TOML, a `[[key]]` for each key, never the key itself.

    [[key]]
    name = "meter-7"
    hash = "$sha256$97c81adf..."
    scopes = ["schedule"]
    publish = ["meters/%u/#"]
    rate = 100
    pending = 10000
    groups = 100
    client_ids = ["meter-*"]
    created = 2026-11-22T05:00:00Z

Without `publish` or `subscribe` every topic is allowed; an empty list allows none. Without `deliver` the key
receives what `subscribe` says. Entries can be edited by hand, or by `keys add`, `rotate` and `revoke`. These
write a new file beside it and rename it: a server that reads meanwhile sees the old or the new one. A revoked
key stays in the file, with the time; a new key can have its name.

A key contains its name, `fasti_{name}_{secret}`, so that one check finds it. The secret has 256 random bits,
which cannot be guessed in any number of tries. So one SHA-256 of the whole key is enough (hashes.py). An
entry may have an argon2id hash: of a password, or of an older version's key.

`keys rotate` gives an entry a new hash, and keeps the old one as `former_hash` until `former_until`. Older
versions refuse a file with these fields.

A reader of the file learns all names, and a writer can become anybody: a file that others can read, or that
the group can write, is refused.
"""

import fcntl
import json
import os
import re
import secrets
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from shards.sectors import sync_path
from timeline.filters import check_filter

from .hashes import BadHash, argon2id, digest_in, hashed
from .rights import ADMIN, BOUNDS, EVERY, EVERY_SCOPE, READ, SCHEDULE, SCOPES, Bound, Grant, Rules

PREFIX = "fasti_"
NAME = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
_MADE = re.compile(rb"fasti_[A-Za-z0-9._-]{1,128}_[0-9a-f]{64}")
MODE_REFUSED = 0o027
FILE_BYTES_MAX = 64 << 20
CLIENT_IDS_MAX, CLIENT_ID_MAX = 100, 1_024
"""Maximum patterns of a key, and maximum characters of one."""
_HEADER = re.compile(r"\s*\[\[\s*key\s*\]\]")
RULES = ("publish", "subscribe", "deliver")
_NUMBERS = tuple(bound.name for bound in BOUNDS)
Read = TypeVar("Read")
_WRITTEN = ("former_hash", "former_until", "revoked")
_FIELDS = ("name", "hash", "scopes", *RULES, *_NUMBERS, "client_ids", "created", *_WRITTEN)


class KeysFileError(ValueError):
    """An unusable file of keys, passwords or rules. `line` from 1; 0: the file itself."""

    def __init__(self, path: Path, line: int, detail: str, field: str = "") -> None:
        where = f"{path}:{line}" if line else str(path)
        super().__init__(f"{where}: {field}: {detail}" if field else f"{where}: {detail}")
        self.path = path
        self.line = line
        self.field = field
        self.detail = detail


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key of the file."""

    name: str
    hash: str
    grant: Grant
    created: datetime | None
    revoked: datetime | None
    line: int
    """Its first line."""
    lacks_deliver: bool = False
    """Whether it receives what `subscribe` says because `deliver` is omitted."""
    former_hash: str | None = None
    former_until: datetime | None = None
    """The hash before a rotation, and when it ends."""


def split_key(key: str) -> tuple[str, str] | None:
    """Name and secret of a key; None if it has another format."""
    name, _, secret = key.removeprefix(PREFIX).rpartition("_")
    return (name, secret) if key.startswith(PREFIX) and NAME.fullmatch(name) and secret else None


def name_in(key: bytes) -> str:
    """The name in a key; empty if it has another format."""
    return (split_key(key.decode(errors="replace")) or ("", ""))[0]


def is_made(key: bytes) -> bool:
    """Whether a key has the format of the server's own: with 256 bits, so it is no guess."""
    return _MADE.fullmatch(key) is not None


def new_key(name: str) -> str:
    """A new, unused key."""
    return f"{PREFIX}{name}_{secrets.token_hex(32)}"


def secured_text(path: Path, refused: int = MODE_REFUSED) -> str:
    """The text of a file that no unauthorized user can read. Raises KeysFileError."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if mode & refused:
                raise KeysFileError(path, 0, f"has mode {mode:04o}, others can read or change it: chmod 600")
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KeysFileError(path, 0, f"cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise KeysFileError(path, 0, f"has more than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise KeysFileError(path, data.count(b"\n", 0, error.start) + 1, "is not UTF-8") from None


def read_keys(path: Path) -> list[StoredKey]:
    """All keys of the file, including revoked ones. Raises KeysFileError with line and field."""
    return _parsed(path, secured_text(path))


def add_key(path: Path, name: str, grant: Grant) -> str:
    """Append a key, creating the file if needed. Returns the key, which is stored nowhere.

    Raises KeysFileError.
    """
    if not NAME.fullmatch(name):
        raise KeysFileError(path, 0, "needs 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'", "name")
    key = new_key(name)
    with _locked(path) as real:
        text = secured_text(real) if real.exists() else ""
        for known in _parsed(real, text):
            if known.name == name and known.revoked is None:
                raise KeysFileError(real, known.line, f"already has a key {name}", "name")
        block = _block(name, hashed(key), grant)
        _replace(real, f"{text}\n{block}" if text.strip() else block)
    return key


def revoke_key(path: Path, name: str) -> None:
    """Mark the key of that name as revoked, now. Raises KeysFileError."""
    now = _now()
    _change(path, name, lambda key: replace(key, revoked=now))


def rotate_key(path: Path, name: str, overlap: timedelta) -> tuple[str, StoredKey]:
    """Replace the key of that name; it stays valid for `overlap`, and a former one ends at once. Returns the
    new key, which is stored nowhere, and the entry as it was. Raises KeysFileError."""
    text, until = new_key(name), _now() + overlap if overlap else None

    def rotated(key: StoredKey) -> StoredKey:
        former_hash = key.hash if until else None
        return replace(key, hash=hashed(text), former_hash=former_hash, former_until=until)

    return text, _change(path, name, rotated)


def _change(path: Path, name: str, change: Callable[[StoredKey], StoredKey]) -> StoredKey:
    """Change `hash` and _WRITTEN of the valid key of that name, and nothing else in the file. Returns the
    entry as it was. Raises KeysFileError."""
    with _locked(path) as real:
        text = secured_text(real)
        keys, lines, places = _parsed(real, text), text.split("\n"), _Places(text)
        index = next((i for i, key in enumerate(keys) if key.name == name and key.revoked is None), None)
        if index is None:
            raise KeysFileError(real, 0, f"has no key {name}")
        was, keys[index] = keys[index], change(keys[index])
        at = places.field(index, "hash") - 1
        lines[at] = lines[at].replace(was.hash, keys[index].hash)
        gone = {places.field(index, field) for field in _WRITTEN} - {was.line}
        lines = [line for number, line in enumerate(lines, 1) if number not in gone]
        values = {field: getattr(keys[index], field) for field in _WRITTEN}
        lines[was.line : was.line] = [f"{field} = {_toml(value)}" for field, value in values.items() if value]
        changed = "\n".join(lines)
        found = [replace(key, line=0) for key in _parsed(real, changed)]
        if found != [replace(key, line=0) for key in keys]:
            raise KeysFileError(real, was.line, "cannot be changed here: change it by hand")
        _replace(real, changed)
    return was


def _parsed(path: Path, text: str) -> list[StoredKey]:
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not TOML; a number of 5,000 digits; 1,000 brackets
        line = re.search(r"at line (\d+)", str(error))
        raise KeysFileError(
            path, int(line[1]) if line else text.count("\n") + 1, f"is not TOML: {error}"
        ) from None
    places = _Places(text)
    for name in tree:
        if name != "key":
            raise KeysFileError(path, places.of_word(name), "must be a [[key]] table", name)
    tables = tree.get("key", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise KeysFileError(path, 1, "must be written as [[key]]", "key")
    keys = [_Reading(path, places, index, table).key() for index, table in enumerate(tables)]
    live: dict[str, int] = {}
    for key in keys:
        if key.revoked is None:
            if key.name in live:
                raise KeysFileError(path, key.line, f"{key.name} stands at line {live[key.name]} too", "name")
            live[key.name] = key.line
    count = Counter(stored for key in keys for stored in (key.hash, key.former_hash))
    for index, key in enumerate(keys):
        if key.former_hash is not None and count[key.former_hash] > 1:
            at = places.field(index, "former_hash")
            raise KeysFileError(path, at, "must differ from all other hashes", "former_hash")
    return keys


class _Places:
    """Line numbers of keys and fields, for errors: found by the look of the lines."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._headers = [number for number, line in enumerate(self._lines, 1) if _HEADER.match(line)]

    def header(self, index: int) -> int:
        """The line of the key `index`; 1 if unknown."""
        return self._headers[index] if index < len(self._headers) else 1

    def field(self, index: int, field: str) -> int:
        """The line of a key's field; the key's line if it has none."""
        first = self.header(index)
        end = self._headers[index + 1] - 1 if index + 1 < len(self._headers) else len(self._lines)
        return self.of_word(field, first, end) or first

    def of_word(self, word: str, first: int = 0, end: int | None = None) -> int:
        starts = re.compile(rf"\s*\[*\s*[\"']?{re.escape(word)}\b")
        lines = enumerate(self._lines[first:end], first + 1)
        return next((number for number, line in lines if starts.match(line)), 0)


class _Reading:
    """One table of the file being read."""

    def __init__(self, path: Path, places: _Places, index: int, table: dict[str, Any]) -> None:
        self._path = path
        self._places = places
        self._index = index
        self._table = table

    def key(self) -> StoredKey:
        for field in self._table:
            if field not in _FIELDS:
                raise self._fault(field, f"unknown field; known are {', '.join(_FIELDS)}")
        name = self._text("name")
        if not NAME.fullmatch(name):
            raise self._fault("name", "needs 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'")
        hash_text, former_hash, former_until = self._hash("hash"), None, self._time("former_until")
        if "former_hash" in self._table or former_until is not None:
            former_hash = self._hash("former_hash")
            if former_until is None:
                raise self._fault("former_until", "is missing")
        lacks_deliver = "subscribe" in self._table and "deliver" not in self._table
        grant = Grant(
            self._read("scopes", scopes_of, None),
            self._read("publish", rules_of, EVERY),
            self._read("subscribe", rules_of, EVERY),
            self._read("subscribe" if lacks_deliver else "deliver", rules_of, EVERY),
            client_ids=self._read("client_ids", client_ids_of, ()),
            **{bound.name: self._number(bound) for bound in BOUNDS},
        )
        line = self._places.header(self._index)
        lacks_deliver = lacks_deliver and READ in grant.scopes
        times = self._time("created"), self._time("revoked")
        return StoredKey(name, hash_text, grant, *times, line, lacks_deliver, former_hash, former_until)

    def _hash(self, field: str) -> str:
        hash_text = self._text(field)
        try:
            if digest_in(hash_text) is None:
                argon2id(hash_text)
        except BadHash as error:
            raise self._fault(field, str(error)) from None
        return hash_text

    def _text(self, field: str) -> str:
        value = self._table.get(field)
        if not isinstance(value, str):
            raise self._fault(field, "must be a string" if field in self._table else "is missing")
        return value

    def _read(self, field: str, of: Callable[[list[str]], Read], without: Read | None) -> Read:
        """What `of` makes of a field's strings. `without`: if it is missing; None: it must not be."""
        if field not in self._table:
            if without is None:
                raise self._fault(field, "is missing")
            return without
        value = self._table[field]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._fault(field, "must be a list of strings")
        try:
            return of(value)
        except ValueError as error:
            raise self._fault(field, str(error)) from None

    def _number(self, bound: Bound) -> int:
        value = self._table.get(bound.name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= bound.most:
            raise self._fault(
                bound.name, f"must be a whole number of {bound.of_what}, from 0 to {bound.most}"
            )
        return value

    def _time(self, field: str) -> datetime | None:
        value = self._table.get(field)
        if value is None:
            return None
        if isinstance(value, datetime) and value.tzinfo is not None:
            with suppress(OverflowError):  # it has no UTC: the year 1 or 9999
                return value.astimezone(UTC)
        raise self._fault(field, "must be a time with an offset, such as 2026-11-22T05:00:00Z")

    def _fault(self, field: str, detail: str) -> KeysFileError:
        return KeysFileError(self._path, self._places.field(self._index, field), detail, field)


def scopes_of(names: list[str]) -> frozenset[str]:
    """The scopes of these names; admin has the others in it. Raises ValueError."""
    for name in names:
        if name not in SCOPES:
            raise ValueError(f"there are {', '.join(SCOPES)}, not {name[:40]!r}")
    if not names:
        raise ValueError(f"must name one of {', '.join(SCOPES)}")
    return EVERY_SCOPE if ADMIN in names else frozenset(names)


def rules_of(filters: list[str]) -> Rules:
    """The rules of these filters. Raises TopicError."""
    for text in filters:
        check_filter(text)
    return Rules(tuple(filters))


def client_ids_of(patterns: list[str]) -> tuple[str, ...]:
    """Patterns of client ids. Raises ValueError."""
    if not 0 < len(patterns) <= CLIENT_IDS_MAX:
        raise ValueError(f"must have 1 to {CLIENT_IDS_MAX} patterns, not {len(patterns)}")
    for pattern in patterns:
        if not 0 < len(pattern) <= CLIENT_ID_MAX:
            raise ValueError(f"a pattern must have 1 to {CLIENT_ID_MAX} characters")
    return tuple(patterns)


def _block(name: str, hash_text: str, grant: Grant) -> str:
    scopes = [ADMIN] if ADMIN in grant.scopes else [one for one in (SCHEDULE, READ) if one in grant.scopes]
    lines = ["[[key]]", f"name = {_toml(name)}", f"hash = {_toml(hash_text)}", f"scopes = {_toml(scopes)}"]
    for field in RULES:
        rules: Rules = getattr(grant, field)
        if rules.allow is not None:
            lines.append(f"{field} = {_toml(list(rules.allow))}")
    lines += [f"{field} = {getattr(grant, field)}" for field in _NUMBERS if getattr(grant, field)]
    if grant.client_ids:
        lines.append(f"client_ids = {_toml(list(grant.client_ids))}")
    lines.append(f"created = {_toml(_now())}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """Text and lists of texts in TOML: as in JSON, except DEL; and times."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _now() -> datetime:
    """In whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Context with the real path behind links, in which nobody else adds or revokes. Raises KeysFileError."""
    real = path.resolve()
    try:
        folder = os.open(real.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise KeysFileError(path, 0, f"its directory cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield real
    finally:
        os.close(folder)


def _replace(path: Path, text: str) -> None:
    """Write the text beside the file, sync, rename; keeps the owner. Raises KeysFileError."""
    _parsed(path, text)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                _keep_owner(path, file.fileno())
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        sync_path(path.parent)
    except OSError as error:
        raise KeysFileError(path, 0, f"cannot be written: {error.strerror}") from None


def _keep_owner(path: Path, handle: int) -> None:
    """Keep the file's owner: the server may run as another user and must read it."""
    try:
        was = path.stat()
    except FileNotFoundError:
        return
    with suppress(PermissionError):
        os.fchown(handle, was.st_uid, was.st_gid)
        os.fchmod(handle, was.st_mode & 0o777 & ~MODE_REFUSED)
