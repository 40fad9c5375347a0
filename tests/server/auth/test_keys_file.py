"""The keys file: what is written is read, what is wrong is told by line and field."""

import stat
from pathlib import Path

import pytest

from server.__main__ import main
from server.auth import commands
from server.auth.hashes import digest_in, is_of
from server.auth.keys_file import KeysFileError, add_key, read_keys, revoke_key, split_key
from server.auth.last_use import write_last_use
from server.auth.rights import ADMIN, BOUNDS, EVERY_SCOPE, READ, SCHEDULE, Grant, Rules
from tests.support.keys import Clock, KeysFile, ring

HASH = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$KW266AuAfNzqrUSudBtQbxTbCVkmexg7EY+bJCKbx8s"
GOOD = f'[[key]]\nname = "a"\nhash = "{HASH}"\nscopes = ["read"]\n'
UNTIL = "former_until = 2026-11-22T05:00:00Z\n"
FORMER = f'former_hash = "$sha256${"0a" * 32}"\n'
OTHER = f'\n[[key]]\nname = "b"\nhash = "$sha256${"0a" * 32}"\nscopes = ["read"]\n'
OTHER_ROTATED = OTHER.replace("0a", "0b") + FORMER + UNTIL
REVOKED = "revoked = 2026-11-22T05:00:00Z\n"


def is_right(stored: str, key: str) -> bool:
    digest = digest_in(stored)
    assert digest is not None
    return is_of(digest, key.encode())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_what_is_added_is_read_and_its_key_is_right(path: Path) -> None:
    grant = Grant(
        frozenset((SCHEDULE, READ)),
        publish=Rules(("meters/%u/#", "a/ü\x7f\u2028b")),
        deliver=Rules(()),
        rate=7,
        groups=9,
        connections=3,
        client_ids=("meter-*", 'a"b'),
    )
    key = add_key(path, "meter-7", grant)
    add_key(path, "ops", Grant())
    first, second = read_keys(path)
    assert (first.name, first.grant, first.revoked) == ("meter-7", grant, None)
    assert second.grant == Grant(EVERY_SCOPE)
    assert first.hash.startswith("$sha256$")
    assert is_right(first.hash, key)
    assert not is_right(first.hash, key[:-1])
    assert not is_right(second.hash, key)
    assert key not in path.read_text()
    assert key.rpartition("_")[2] not in path.read_text()
    assert split_key(key) == ("meter-7", key.rpartition("_")[2])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in path.parent.iterdir()] == ["keys.toml"]


def test_remarks_and_what_stands_around_a_key_stay_when_it_is_revoked(path: Path) -> None:
    add_key(path, "a", Grant())
    path.write_text("# ours\n" + path.read_text() + "# of bob\n")
    add_key(path, "b", Grant())
    revoke_key(path, "a")
    text = path.read_text()
    assert text.startswith("# ours\n[[key]]\nrevoked = ")
    assert "# of bob\n" in text
    assert [(key.name, key.revoked is None) for key in read_keys(path)] == [("a", False), ("b", True)]
    with pytest.raises(KeysFileError, match="has no key a"):
        revoke_key(path, "a")
    add_key(path, "a", Grant())
    assert [key.name for key in read_keys(path) if key.revoked is None] == ["b", "a"]


def test_a_name_is_given_once(path: Path) -> None:
    add_key(path, "a", Grant())
    before = path.read_text()
    with pytest.raises(KeysFileError, match="already has a key a"):
        add_key(path, "a", Grant())
    with pytest.raises(KeysFileError, match="1 to 128"):
        add_key(path, "a b", Grant())
    assert path.read_text() == before


def test_a_link_to_the_file_stays_one(path: Path) -> None:
    link = path.with_name("link.toml")
    link.symlink_to(path.name)
    add_key(path, "a", Grant())
    add_key(link, "b", Grant())
    assert link.is_symlink()
    assert [key.name for key in read_keys(path)] == ["a", "b"]


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o644, 0o777])
def test_a_file_that_others_can_read_is_refused(path: Path, mode: int) -> None:
    with pytest.raises(KeysFileError, match="chmod 600"):
        read_keys(written(path, GOOD, mode))
    assert read_keys(written(path, GOOD, 0o640))


@pytest.mark.parametrize(
    ("text", "line", "field", "detail"),
    [
        (f"{GOOD}\n[[key]]\nname = \n", 7, "", "is not TOML"),
        (f"{GOOD}\n[[key]", 6, "", "is not TOML"),
        ("a = " + "[" * 5_000, 1, "", "is not TOML"),
        ("a = " + "9" * 5_000, 1, "", "is not TOML"),
        (f"other = 1\n{GOOD}", 1, "other", "must be a [[key]]"),
        ("key = 3\n", 1, "key", "[[key]]"),
        (f"{GOOD}{GOOD}", 5, "name", "line 1 too"),
        (f"{GOOD}color = 3\n", 5, "color", "unknown field"),
        (GOOD.replace('"a"', "3"), 2, "name", "must be a string"),
        (GOOD.replace('"a"', '"a b"'), 2, "name", "1 to 128"),
        (GOOD.replace(HASH, "secret"), 3, "hash", "is neither a $sha256$ nor an argon2id hash"),
        (GOOD.replace("argon2id", "argon2i"), 3, "hash", "must be argon2id"),
        (GOOD.replace(HASH, "$sha256$" + "0A" * 32), 3, "hash", "64 lower-case hex digits"),
        (GOOD.replace(HASH, "$sha256$00"), 3, "hash", "64 lower-case hex digits"),
        (GOOD.replace("m=8", "m=99999999"), 3, "hash", "asks for more"),
        (GOOD.replace('["read"]', '"read"'), 4, "scopes", "a list"),
        (GOOD.replace('["read"]', "[]"), 4, "scopes", "must name one"),
        (GOOD.replace('["read"]', '["write"]'), 4, "scopes", "not 'write'"),
        (f'{GOOD}publish = ["a/#/b"]\n', 5, "publish", "last level"),
        (f"{GOOD}deliver = [1]\n", 5, "deliver", "a list"),
        (f"{GOOD}rate = -1\n", 5, "rate", "whole number"),
        *((f"{GOOD}{bound.name} = {bound.most + 1}\n", 5, bound.name, "whole number") for bound in BOUNDS),
        (f"{GOOD}client_ids = []\n", 5, "client_ids", "1 to 100 patterns"),
        (f'{GOOD}client_ids = [""]\n', 5, "client_ids", "1 to 1024 characters"),
        (f'{GOOD}client_ids = "a"\n', 5, "client_ids", "a list"),
        (f"{GOOD}rate = true\n", 5, "rate", "whole number"),
        (f"{GOOD}pending = -1\n", 5, "pending", "whole number of messages"),
        (f"{GOOD}pending = 1.5\n", 5, "pending", "whole number of messages"),
        (f'{GOOD}created = "today"\n', 5, "created", "a time"),
        (f"{GOOD}revoked = 2026-11-22\n", 5, "revoked", "a time"),
        (f"{GOOD}created = 0001-01-01T00:00:00+01:00\n", 5, "created", "a time"),
        (f"{GOOD}{UNTIL}", 1, "former_hash", "is missing"),
        (f"{GOOD}{FORMER}former_until = 9999-12-31T23:59:59-01:00\n", 6, "former_until", "a time"),
        (f"{GOOD}{FORMER}", 1, "former_until", "is missing"),
        (f"{GOOD}{UNTIL}former_hash = 3\n", 6, "former_hash", "must be a string"),
        (f"{GOOD}{UNTIL}{FORMER.replace('$sha256$', '')}", 6, "former_hash", "is neither"),
        (f"{GOOD}{FORMER}former_until = 2026-11-22\n", 6, "former_until", "a time with an offset"),
        (f'{GOOD}{FORMER}former_until = "1d"\n', 6, "former_until", "a time with an offset"),
        (f'{GOOD}{UNTIL}former_hash = "{HASH}"\n', 6, "former_hash", "must differ from all other hashes"),
        (f"{GOOD}{FORMER}{UNTIL}{OTHER}", 5, "former_hash", "must differ from all other hashes"),
        (f"{GOOD}{FORMER}{UNTIL}{OTHER}{REVOKED}", 5, "former_hash", "must differ from all other hashes"),
        (f"{GOOD}{FORMER}{UNTIL}{OTHER_ROTATED}", 5, "former_hash", "must differ from all other hashes"),
        (f'{GOOD}\n[[key]]\nhash = "{HASH}"\n', 6, "name", "is missing"),
        (f'{GOOD}\n[[key]]\nname = "b"\nhash = "{HASH}"\n', 6, "scopes", "is missing"),
    ],
)
def test_what_is_wrong_is_told_by_line_and_field(
    path: Path, text: str, line: int, field: str, detail: str
) -> None:
    with pytest.raises(KeysFileError) as raised:
        read_keys(written(path, text))
    error = raised.value
    assert (error.line, error.field) == (line, field)
    assert detail in str(error)
    assert str(error).startswith(f"{path}:{line}:")
    assert HASH not in str(error)


def test_a_file_that_is_not_there_or_not_text_is_told(path: Path) -> None:
    with pytest.raises(KeysFileError, match="cannot be read: No such file"):
        read_keys(path)
    path.write_bytes(GOOD.encode() + b"\n# \xff")
    path.chmod(0o600)
    with pytest.raises(KeysFileError, match=":6: is not UTF-8"):
        read_keys(path)


def test_a_key_that_cannot_be_found_in_the_text_is_not_revoked_elsewhere(path: Path) -> None:
    inline = f'key = [\n{{name = "a", hash = "{HASH}", scopes = ["read"]}},\n]\n'
    written(path, inline)
    with pytest.raises(KeysFileError):
        revoke_key(path, "a")
    assert path.read_text() == inline


def test_the_command_line(path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = ["--file", str(path), "--data", str(tmp_path)]
    few = ["--pending", "70", "--groups", "3", *where]
    assert main(["keys", "add", "ci", "--scope", "schedule", "--publish", "ci/#", "--rate", "5", *few]) == 0
    key = capsys.readouterr().out.strip()
    assert is_right(read_keys(path)[0].hash, key)
    assert main(["keys", "add", "ops", "--scope", "admin", *where]) == 0
    write_last_use(tmp_path, {"ci": 1_795_248_000_000})
    capsys.readouterr()
    elsewhere = ["--file", str(path), "--data", str(tmp_path / "elsewhere")]
    assert main(["keys", "ls", *elsewhere]) == 0
    told = capsys.readouterr()
    assert [" unknown " in line for line in told.out.splitlines()] == [False, True, True]
    assert "keys-used.json cannot be read: name the directory with --data" in told.err
    assert main(["keys", "ls", *where]) == 0
    told = capsys.readouterr()
    assert ([" - " in line for line in told.out.splitlines()[1:]], told.err) == ([False, True], "")
    assert main(["keys", "revoke", "ops", *where]) == 0
    assert "ops is revoked. Its messages are withheld" in capsys.readouterr().out
    assert main(["keys", "ls", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:5] == ["ci", "schedule", "5", "70", "3"]
    assert "2026-11-21 08:00" in lines[1]
    assert lines[1].endswith("publish=ci/#")
    assert lines[2].startswith("ops")
    assert " revoked 20" in lines[2]
    assert main(["keys", "revoke", "nobody", *where]) == 2
    assert "has no key nobody" in capsys.readouterr().err
    assert main(["keys", "add", "b", "--scope", "write", *where]) == 2
    assert main(["keys", "add", "b", "--scope", "read", "--deliver", "a#", *where]) == 2
    assert main(["keys", "add", "b", "--scope", "read", "--rate", "-1", *where]) == 2
    assert main(["keys", "add", "b", "--scope", "read", "--pending", "-1", *where]) == 2
    assert main(["keys", "add", "b", "--scope", "read", "--groups", "-1", *where]) == 2
    assert len(read_keys(path)) == 2
    assert main(["keys", "ls"]) == 2
    assert "--file" in capsys.readouterr().err


def test_of_several_wrong_options_the_scopes_and_filters_are_told_first(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add = ["keys", "add", "b", "--file", str(path)]
    ids, rate, scope, publish = (
        ["--client-ids", ""],
        ["--rate", "-1"],
        ["--scope", "write"],
        ["--publish", "a#"],
    )
    assert main([*add, *ids, *rate, *publish, *scope]) == 2
    assert "write" in capsys.readouterr().err
    assert main([*add, *ids, *rate, *publish, "--scope", "read"]) == 2
    assert "a#" in capsys.readouterr().err
    assert main([*add, *ids, *rate, "--scope", "read"]) == 2
    assert "rate" in capsys.readouterr().err
    assert main([*add, *ids, "--scope", "read"]) == 2
    assert "client_ids" in capsys.readouterr().err


def test_every_bound_of_a_key_is_added_and_listed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [f"--{bound.name.replace('_', '-')}" for bound in BOUNDS]
    options = [text for number, flag in enumerate(flags, 3) for text in (flag, str(number))]
    ids = ["--client-ids", "a-*", "--client-ids", "b"]
    assert main(["keys", "add", "k", "--scope", "read", "--file", str(path), *options, *ids]) == 0
    (key,) = read_keys(path)
    assert [getattr(key.grant, bound.name) for bound in BOUNDS] == list(range(3, 3 + len(BOUNDS)))
    assert key.grant.client_ids == ("a-*", "b")
    capsys.readouterr()
    assert main(["keys", "ls", "--file", str(path)]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[2:-4] == [bound.name.upper() for bound in BOUNDS]
    assert line.split()[2 : 2 + len(BOUNDS)] == [str(number) for number in range(3, 3 + len(BOUNDS))]
    assert line.endswith("all client_ids=a-*,b")
    for bad in (["--sessions", "-1"], ["--client-ids", ""]):
        assert main(["keys", "add", "l", "--scope", "read", "--file", str(path), *bad]) == 2


def test_admin_has_the_other_scopes_in_it(path: Path) -> None:
    commands.add(path, "a", scopes=["admin"], filters={"subscribe": []}, bounds={})
    (key,) = read_keys(path)
    assert key.grant.scopes == {ADMIN, READ, SCHEDULE}
    assert key.grant.subscribe == Rules(())
    assert 'scopes = ["admin"]' in path.read_text()


@pytest.mark.parametrize(
    ("lines", "deliver"),
    [
        ("", None),
        ('publish = ["a/#"]\n', None),
        ('subscribe = ["a/#", "dev/%c/#"]\n', ("a/#", "dev/%c/#")),
        ("subscribe = []\n", ()),
        ('subscribe = ["a/#"]\ndeliver = ["#", "$SYS/#"]\n', ("#", "$SYS/#")),
        ('subscribe = ["a/#"]\ndeliver = []\n', ()),
        ('deliver = ["b"]\n', ("b",)),
    ],
)
def test_what_a_key_is_sent_is_what_it_may_subscribe_to_unless_the_file_says(
    path: Path, lines: str, deliver: tuple[str, ...] | None, caplog: pytest.LogCaptureFixture
) -> None:
    (key,) = read_keys(written(path, GOOD + lines))
    assert key.grant.deliver == Rules(deliver)
    assert key.lacks_deliver is ("subscribe" in lines and "deliver" not in lines)
    ring(path, Clock())
    told = [record.getMessage() for record in caplog.records]
    is_told = (
        f"key a: {path}:1: deliver is omitted, so the key receives only what subscribe says: write deliver"
    )
    assert told == [is_told] * key.lacks_deliver


def test_each_key_that_lacks_deliver_is_told_until_it_is_written(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = KeysFile(path)
    file.add("one", subscribe=["a/#"])
    file.add("two", subscribe=["b/#"])
    file.add("sends", "schedule", subscribe=["b/#"])
    file.add("gone", subscribe=["b/#"])
    file.revoke("gone")
    keyring = ring(path, Clock())
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["key one", "key two"]
    caplog.clear()
    file.change("one", "subscribe", 'deliver = ["#"]\nsubscribe')
    keyring.take(keyring.read())
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["key two"]


def test_keys_add_writes_what_the_key_is_sent_and_keys_ls_shows_it(
    path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def listed(name: str, *options: str) -> str:
        assert main(["keys", "add", name, "--file", str(path), *options]) == 0
        capsys.readouterr()
        assert main(["keys", "ls", "--file", str(path)]) == 0
        return capsys.readouterr().out.splitlines()[-1].split("unknown")[1].strip()

    both, orders = ("--scope", "read", "--scope", "schedule"), ("--subscribe", "orders/#")
    shop = listed("shop", *both, "--publish", "orders/#", *orders)
    assert shop == "publish=orders/# subscribe=orders/# deliver=orders/#"
    assert listed("sees", *both, *orders) == "publish=all subscribe=orders/# deliver=orders/#"
    assert listed("ops", "--scope", "admin", *orders) == "publish=all subscribe=orders/# deliver=orders/#"
    assert listed("own", "--scope", "read", *orders, "--deliver", "#") == "subscribe=orders/# deliver=#"
    assert listed("any", "--scope", "read", "--deliver", "a") == "subscribe=all deliver=a"
    assert listed("all", "--scope", "read") == "all"
    assert [key.lacks_deliver for key in read_keys(path)] == [False] * 6
    ring(path, Clock())
    assert not caplog.records
    by_hand = written(path, GOOD + 'subscribe = ["x/#"]\n')
    assert main(["keys", "ls", "--file", str(by_hand)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("subscribe=x/# deliver=x/#")
