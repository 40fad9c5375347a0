"""What people write and hand in: keys, passwords, rules, settings, filters; exports that are taken back."""

import atexit
import shutil
import tempfile
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from unittest.mock import Mock

from server.auth.keys_file import KeysFileError, StoredKey, read_keys, revoke_key, rotate_key
from server.auth.mosquitto import read_acl, read_passwords
from server.auth.rights import Principal, Rights
from server.http.routes.export import Reading
from server.http.selection import query_over
from server.http.values.bodies import FieldError, RequestError
from server.http.values.drafts import draft_of
from server.http.values.message_body import ParsedMessage
from server.settings.config import ConfigError
from server.settings.reading import load, table
from shards.fields import Record
from shards.record import decode
from tests.support.reading import parse_each, parse_one
from timeline.filters import (
    FilterError,
    TopicError,
    Trie,
    check_filter,
    check_topic,
    covers,
    matcher,
    matches,
    parse_share,
)
from timeline.position import MessageId, before

from .fuzzer import Target
from .targets import BASE64, BODY_WORDS, LIMITS, LOCAL, NOW_MS, ONE

# -- files


@cache
def _folder() -> Path:
    """In RAM if there is such a place: one file is written again for each input."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="fasti-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _file(data: bytes) -> Path:
    path = _folder() / "file"
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def keys(data: bytes) -> None:
    """Read or refused; of what was read one key is rotated and revoked, and all others stay as they were."""
    path = _file(data)
    try:
        found = read_keys(path)
        live = [key for key in found if key.revoked is None]
        if live:
            with suppress(KeysFileError):
                rotate_key(path, live[0].name, timedelta(days=1))
                rotated = [key for key in read_keys(path) if key.revoked is None]
                assert rotated[0].former_hash == live[0].hash != rotated[0].hash
                assert [_said(key) for key in rotated[1:]] == [_said(key) for key in live[1:]]
            revoke_key(path, live[0].name)
    except KeysFileError as error:
        str(error)
        return
    again = [key for key in read_keys(path) if key.revoked is None]
    assert [_said(key) for key in again] == [_said(key) for key in live[1:]]


def _said(key: StoredKey) -> tuple[object, ...]:
    return key.name, key.hash, key.grant, key.created


def passwords(data: bytes) -> None:
    try:
        users = read_passwords(_file(data))
    except KeysFileError as error:
        str(error)
        return
    for stored in users.values():
        kind, *parts = stored[1:].split("$")
        assert kind == "6" or int(parts[0]) <= 10_000_000, "a check that takes minutes"


def rules(data: bytes) -> None:
    """An ACL that was read gives an answer to every question; a denial comes before all that allows."""
    try:
        acl = read_acl(_file(data))
    except KeysFileError as error:
        str(error)
        return
    for user in ("", "bob"):
        grant = acl.grant(user)
        for client in ("", "c", "a/b"):
            rights = Rights(Principal(user, grant, lambda: 0.0), client)
            for topic in (b"a/b", b"$SYS/x", b"bob/secret", b"meters/bob/c/1"):
                assert rights.may_see(topic) == (rights.may_receive(topic) or rights.may_publish(topic))
                if topic.decode() in acl.of(user).filters["deny"]:
                    assert not rights.may_see(topic)
            rights.may_subscribe("a/#")


def settings(data: bytes) -> None:
    """The file, and, the lines behind a NUL, the environment."""
    text, _, rest = data.partition(b"\0")
    lines = rest.decode("utf-8", "replace").split("\n")
    environ = {name: value for name, _, value in (line.partition("=") for line in lines)}
    try:
        config, origins = load(_file(text), environ, {})
    except ConfigError as error:
        str(error)
        return
    table(config, origins)


# -- filters


def filters(data: bytes) -> None:
    """A topic and filters, a line each: every way to match says what the specification says."""
    topic_bytes, *others = data.split(b"\n")[:6]
    texts = []
    for raw in others:
        text = raw.decode("utf-8", "surrogateescape")
        with suppress(FilterError):
            parse_share(text)
        with suppress(FilterError):
            check_filter(text)
            texts.append(text)
    try:
        check_topic(topic_bytes)
    except TopicError as error:
        str(error)
        return
    topic = topic_bytes.decode()
    trie: Trie[int, str] = Trie()
    for number, text in enumerate(texts):
        trie.add(text, number, text)
    wanted = {number: text for number, text in enumerate(texts) if _fits(text.split("/"), topic.split("/"))}
    assert {number for number, text in enumerate(texts) if matches(text, topic)} == wanted.keys()
    assert {number for number, text in enumerate(texts) if matcher(text)(topic)} == wanted.keys()
    assert dict(trie.match(topic)) == wanted
    for wide in texts:
        for narrow in wanted.values():
            if covers(wide, narrow) and not topic.startswith("$"):
                assert matches(wide, topic), (wide, narrow)
    for number, text in enumerate(texts):
        trie.discard(text, number)
    assert not trie.match(topic)
    assert not len(trie)


def _fits(wanted: list[str], levels: list[str], *, is_first: bool = True) -> bool:
    """As the specification says it, section 4.7."""
    if is_first and levels[0].startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted == ["#"]:
        return True
    if not wanted or not levels:
        return not wanted and not levels
    return wanted[0] in ("+", levels[0]) and _fits(wanted[1:], levels[1:], is_first=False)


# -- an export, taken back


def export(data: bytes) -> None:
    """What is taken comes out as a line which `:batch` takes for the same message."""
    try:
        message = parse_one(data, NOW_MS, LIMITS)
    except RequestError:
        return
    stored, due_ms = _stored(message)
    timeline = Mock()
    timeline.id_at.return_value = MessageId(7 << 64)
    reading = Reading(timeline, query_over(None, None, None), lambda: None, with_ids=True)
    line = reading._line(before(due_ms), 0, stored)
    (back,) = parse_each(line, "application/x-ndjson", NOW_MS, LIMITS, 1, keep_ids=True)
    assert not isinstance(back, FieldError), f"{back.field}: {back}"
    second, again_ms = _stored(back)
    assert again_ms == due_ms
    assert _told(decode(second)) == _told(decode(stored))


def _stored(message: ParsedMessage) -> tuple[bytes, int]:
    draft = draft_of(message, NOW_MS)
    return draft.value, draft.due_ms


def _told(record: Record) -> tuple[object, ...]:
    """What an export keeps."""
    return (
        *(record.topic, record.payload, record.encoding, record.qos, record.retain, record.drop_late),
        *(record.expires_ms, record.properties, record.zone),
    )


HASH = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$RdescudvJCsgt3ub+b3EJQ"
KEYS = f"""# people
[[key]]
name = "meter-7"
hash = "{HASH}"
scopes = ["schedule", "read"]
publish = ["meters/%u/#"]
deliver = []
rate = 100
created = 2026-11-22T05:00:00Z

[[ key ]]   # an old one
"name" = 'x'
hash = "{HASH}"
scopes = ["admin"]
revoked = 2026-11-22T05:00:00+02:00
""".encode()
TWO = KEYS + f'[[key]]\nname="y"\nhash="""{HASH}"""\nscopes=[\n"read"]\nsubscribe=["a/+",\n"#"]'.encode()
ROTATED = KEYS.replace(
    b"scopes", b'former_hash = "$sha256$' + b"0b" * 32 + b'"\nformer_until = 2026-11-22T05:00:00Z\nscopes', 1
).replace(HASH.encode(), b"$sha256$" + b"0a" * 32, 1)
TOML_WORDS = (
    *(b"[[key]]\n", b"[key]\n", b"[", b"]", b'"', b"'", b'"""', b"\\", b"\n", b"#", b"= ", b".", b"{", b"}"),
    *(b"name = ", b"revoked = 2026-01-01", b"1979-05-27T07:32:00Z", b"-1", b"1e9", b"0x", b"true", b"inf"),
    *(b"[" * 100, b"{a=" * 100, b"9" * 50, b"hash", b"%c", b"\\u0000", b"\\ud800", b"\0", b"\xff", b"\r"),
    *(b"9" * 5_000, b"a." * 300),
)
SALTED = b"c29tZXNhbHQ=$" + b"A" * 86 + b"=="
SETTINGS = (Path(__file__).parents[2] / "config.toml").read_bytes()
SECTIONS = tuple(b"\n[" + part.rstrip() for part in SETTINGS.split(b"\n[")[1:])

TARGETS = (
    Target("keys", keys, (KEYS, TWO, ROTATED, b""), TOML_WORDS, steps=10_000, steps_per_byte=400),
    Target(
        "passwords",
        passwords,
        (b"bob:$7$101$" + SALTED + b"\n# x\n\nann:$6$" + SALTED,),
        (b":", b"$", b"$7$", b"$6$", b"\n", b"0" * 9, b"9" * 9, b"9" * 5_000, b"=", b"A" * 4, b"\xff"),
    ),
    Target(
        "rules",
        rules,
        (
            b"topic read $SYS/#\nuser bob\ntopic readwrite a/#\ntopic deny bob/secret\n"
            b"pattern write meters/%u/%c/#",
        ),
        (
            *(b"\n", b"user ", b"topic ", b"pattern ", b"deny ", b"read ", b"write ", b"%u", b"%%", b"#"),
            *(b"+", b"/"),
        ),
        steps=10_000,
        steps_per_byte=400,
    ),
    Target(
        "settings",
        settings,
        (
            *SECTIONS,
            b"\0FASTI__LIMITS__MAX_DELAY=30d\nFASTI__MQTT__LISTEN=127.0.0.1:1,ws://[::1]:2\nFASTI__HTTP__ORIGINS=a",
        ),
        (
            *TOML_WORDS,
            *(b"FASTI__", b"15m", b"P1DT1H", b"64KiB", b"ws://", b"[::1]:1", b"\0FASTI__", b"=", b","),
        ),
        steps=60_000,
        steps_per_byte=1_000,
    ),
    Target(
        "filters",
        filters,
        (
            b"a/b/c\na/+/c\na/#\n#\n+/b/c\na/b/c",
            b"$SYS/x\n#\n$SYS/#\n$share/g/a\n+/x",
            b"/\n/\n+/+\n/#\n+\n//",
        ),
        (b"/", b"+", b"#", b"$", b"$share/", b"\n", b"//", b"\xc3\xa9", b"\0", b"a/a/a/a/a/a"),
        steps_per_byte=500,
    ),
    Target("export", export, (ONE, LOCAL, BASE64), BODY_WORDS, steps=4_000),
)
