"""A key that is rotated: its name has two keys for a time, then one, and all else stays as it is."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from server.__main__ import main
from server.auth import checking
from server.auth.keyring import Keyring, Refusal, Why
from server.auth.keys_file import KeysFileError, StoredKey, add_key, read_keys, revoke_key, rotate_key
from server.auth.last_use import noted, read_last_use, write_last_use
from server.auth.rights import Grant, Principal
from server.codec.packets import Connack, Connect, Disconnect
from server.settings.times import format_ms
from tests.support.http import http
from tests.support.keys import NOW_MS, Clock, KeysFile, argon2_hash, ring, shown
from tests.support.mqtt import dial
from tests.support.server import serving

WRONG = Refusal(Why.WRONG)
DAY_MS = 86_400_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


@pytest.fixture
def file(path: Path) -> KeysFile:
    return KeysFile(path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lets_in(path: Path, *keys: str) -> list[bool]:
    """Which of these keys a server that starts now lets in; its clock is the machine's."""
    clock = Clock()
    clock.now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    keyring = ring(path, clock)
    return [isinstance(shown(keyring, "a", key), Principal) for key in keys]


def pass_ms(keyring: Keyring, clock: Clock, ms: int) -> int:
    """Time passes, and the server looks. How often rights were reviewed."""
    reviews: list[None] = []
    clock.now_ms += ms
    asyncio.run(keyring.end_former(lambda: reviews.append(None)))
    return len(reviews)


# -- the file


def test_a_rotated_key_keeps_all_but_its_hash(path: Path) -> None:
    grant = Grant(rate=7, groups=9, client_ids=("a-*",))
    old = add_key(path, "b", Grant())
    a = add_key(path, "a", grant)
    path.write_text(path.read_text().replace('hash = "', "hash='").replace('"\nscopes', "' # ours\nscopes"))
    before = read_keys(path)
    fresh, was = rotate_key(path, "a", timedelta(days=1))
    other, key = read_keys(path)
    assert (was, other) == (before[1], before[0])
    assert (key.name, key.grant, key.created, key.revoked) == ("a", grant, was.created, None)
    assert key.former_hash == was.hash != key.hash
    assert key.former_until is not None
    assert timedelta(hours=23) < key.former_until - datetime.now(UTC) <= timedelta(days=1)
    assert path.read_text().count("# ours\n") == 2
    assert fresh not in path.read_text()
    assert lets_in(path, a, fresh, old) == [True, True, False]


def test_only_two_keys_of_a_name_are_valid(path: Path) -> None:
    first = add_key(path, "a", Grant())
    second, _ = rotate_key(path, "a", timedelta(days=1))
    third, was = rotate_key(path, "a", timedelta(hours=1))
    assert was.former_until is not None
    assert lets_in(path, first, second, third) == [False, True, True]
    fourth, _ = rotate_key(path, "a", timedelta(0))
    assert lets_in(path, first, second, third, fourth) == [False, False, False, True]
    assert "former" not in path.read_text()
    fifth, _ = rotate_key(path, "a", timedelta(microseconds=1))
    assert lets_in(path, fourth, fifth) == [False, True]


def test_a_revoked_name_ends_with_both_and_a_new_one_begins_alone(path: Path) -> None:
    first = add_key(path, "a", Grant())
    second, _ = rotate_key(path, "a", timedelta(days=1))
    revoke_key(path, "a")
    assert lets_in(path, first, second) == [False, False]
    with pytest.raises(KeysFileError, match="has no key a"):
        rotate_key(path, "a", timedelta(days=1))
    third = add_key(path, "a", Grant())
    fourth, _ = rotate_key(path, "a", timedelta(days=1))
    assert lets_in(path, first, second, third, fourth) == [False, False, True, True]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("hash = ", '"\\u0068ash" = '),
        ("hash = ", "hash =\\\n"),
        ("[[key]]\n", "key = [{\n"),
        ("scopes", 'former_hash = """\nfirst"""\nformer_until = 2026-11-22T05:00:00Z\nscopes'),
    ],
)
def test_a_key_that_cannot_be_found_in_the_text_is_not_rotated(path: Path, before: str, after: str) -> None:
    add_key(path, "a", Grant())
    text = path.read_text().replace(before, after)
    path.write_text(text)
    with pytest.raises(KeysFileError):
        rotate_key(path, "a", timedelta(days=1))
    assert path.read_text() == text


def test_the_command_line(path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = ["--file", str(path), "--data", str(tmp_path)]
    first = add_key(path, "a", Grant(groups=3))
    (stored,) = read_keys(path)
    assert main(["keys", "rotate", "a", *where]) == 0
    told = capsys.readouterr()
    second = told.out.strip()
    assert told.err == (
        "The key is shown only once; the file contains its hash. The former key ends in 1d.\n"
    )
    assert lets_in(path, first, second) == [True, True]
    (key,) = read_keys(path)
    write_last_use(tmp_path, {"a": NOW_MS, noted("a", stored.hash): NOW_MS, noted("a", key.hash): 0})
    assert main(["keys", "ls", *where]) == 0
    head, now, former = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in (head, now, former)] == [
        ["NAME", "SCOPES", "GROUPS"],
        ["a", "admin", "3"],
        ["a", "former", "key"],
    ]
    assert now.split()[-2:] == ["-", "all"]
    assert key.former_until is not None
    until = key.former_until.strftime("%Y-%m-%d %H:%M")
    assert former.split("2026-11-21 08:00")[1].strip() == f"valid until {until}"
    assert main(["keys", "rotate", "a", "--overlap", "2h", *where]) == 0
    told = capsys.readouterr()
    third = told.out.strip()
    assert f"ends in 2h. The one before it, valid until {until}, has ended." in told.err
    assert lets_in(path, first, second, third) == [False, True, True]
    assert main(["keys", "revoke", "a", *where]) == 0
    capsys.readouterr()
    assert main(["keys", "ls", *where]) == 0
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert " revoked 20" in line
    for wrong, why in (
        ("soon", "'soon' is not"),
        ("-1", "a delay must not be negative"),
        (f"{10**14}w", "is too long"),
    ):
        assert main(["keys", "rotate", "a", "--overlap", wrong, *where]) == 2
        assert f"overlap: {why}" in capsys.readouterr().err
    assert main(["keys", "rotate", "b", *where]) == 2
    assert "has no key b" in capsys.readouterr().err


# -- a server


@pytest.mark.parametrize("is_old", [False, True], ids=["sha256", "argon2"])
def test_the_former_key_ends_by_the_clock(file: KeysFile, clock: Clock, is_old: bool) -> None:
    a = file.add("a", is_old=is_old, rate=5, groups=3)
    keyring = ring(file.path, clock)
    before = shown(keyring, "a", a)
    assert isinstance(before, Principal)
    fresh = file.rotate("a", NOW_MS + DAY_MS)
    keyring.take(keyring.read())
    now = shown(keyring, "a", fresh)
    assert isinstance(now, Principal)
    assert shown(keyring, "a", a) is before is not now
    assert keyring.recall("a", a.encode()) is before
    assert (before.grant, before.rate_limiter) == (now.grant, now.rate_limiter)
    assert keyring.rights_of("a", "").principal is now
    assert pass_ms(keyring, clock, DAY_MS - 1) == 0
    assert shown(keyring, "a", a) is before
    clock.now_ms += 1  # refused at that time, whenever the server looks
    assert keyring.recall("a", a.encode()) is None
    assert shown(keyring, "a", a) == WRONG
    assert [pass_ms(keyring, clock, 0), pass_ms(keyring, clock, DAY_MS)] == [1, 0]
    assert (before.is_live, now.is_live) == (False, True)
    assert not before.grant.scopes
    assert shown(keyring, "a", fresh) is now
    assert now.rate_limiter.take(5) == 0.0
    assert now.rate_limiter.take() > 0.0
    assert not keyring.is_revoked("a")
    assert keyring.quota_of(b"a").messages == 0
    assert keyring.bound_of("a", "groups") == 3
    clock.now_ms = NOW_MS  # set back: what has ended stays so
    assert shown(keyring, "a", a, "10.0.0.3") == WRONG
    keyring.take(keyring.read())  # unless the file says otherwise
    again = shown(keyring, "a", a)
    assert isinstance(again, Principal)
    assert (again.is_live, again.grant, again is before) == (True, now.grant, False)


def test_the_rules_of_a_name_hold_for_both_and_its_rate_is_one(file: KeysFile, clock: Clock) -> None:
    a = file.add("a", rate=10)
    keyring = ring(file.path, clock)
    shown(keyring, "a", a)
    fresh = file.rotate("a", NOW_MS + DAY_MS)
    file.change("a", "rate = 10", "rate = 4")
    keyring.take(keyring.read())
    both = [shown(keyring, "a", key) for key in (a, fresh)]
    assert all(isinstance(one, Principal) for one in both)
    former, now = (one for one in both if isinstance(one, Principal))
    assert former.rate_limiter.take(4) == 0.0
    assert now.rate_limiter.take() > 0.0
    file.change("a", '["schedule", "read"]', '["read"]')
    keyring.take(keyring.read())
    assert [one.has("schedule") for one in (former, now)] == [False, False]
    file.revoke("a")
    keyring.take(keyring.read())
    assert [one.is_live for one in (former, now)] == [False, False]
    assert keyring.is_revoked("a")


def test_two_hashes_that_take_time_are_checked_in_one_turn(file: KeysFile, clock: Clock) -> None:
    waiting: list[Callable[[], None]] = []

    def later(work: checking.Work, done: checking.Found) -> None:
        waiting.append(lambda: done(work()))

    file.add("a", is_old=True, former_hash=argon2_hash("old").join('""'), former_until=format_ms(NOW_MS + 5))
    keyring = ring(file.path, clock, later)
    answers: list[Principal | Refusal] = []

    def check(key: str, network: str = "x") -> Principal | Refusal:
        keyring.check("a", key.encode(), network, answers.append)
        while waiting:
            waiting.pop()()
        return answers.pop()

    assert check("wrong") == WRONG
    former = check("old")
    assert isinstance(former, Principal)
    assert former is not keyring.rights_of("a", "").principal
    keyring.check("a", b"wrong", "x", answers.append)
    assert (answers.pop(), waiting) == (WRONG, [])
    keyring.check("a", b"old", "x", answers.append)
    assert (answers.pop(), waiting) == (former, [])
    keyring.take(keyring.read())
    keyring._right.clear()
    keyring.check("a", b"old", "x", answers.append)
    clock.now_ms += 5  # it ends while it is checked
    waiting.pop()()
    assert answers.pop() == WRONG
    assert not keyring._right


def test_a_former_key_that_has_ended_before_the_start_is_wrong(file: KeysFile, clock: Clock) -> None:
    a = file.add("a")
    fresh = file.rotate("a", NOW_MS)
    keyring = ring(file.path, clock)
    assert shown(keyring, "a", a) == WRONG
    assert isinstance(shown(keyring, "a", fresh), Principal)
    file.change("a", "former_until = 2026", "former_until = 0001")
    keyring.take(keyring.read())
    assert shown(keyring, "a", a) == WRONG


def test_the_last_use_of_each_is_noted(file: KeysFile, clock: Clock, tmp_path: Path) -> None:
    def stored() -> StoredKey:
        return read_keys(file.path)[0]

    a = file.add("a")
    keyring = ring(file.path, clock)
    shown(keyring, "a", a)
    write_last_use(tmp_path, keyring.used())
    file.rotate("a", NOW_MS + DAY_MS)
    first, second = stored().former_hash, stored().hash
    assert first is not None
    keyring.take(keyring.read())
    both = {noted("a", first): NOW_MS, noted("a", second): 0}
    assert keyring.used() == {"a": NOW_MS, **both}
    write_last_use(tmp_path, keyring.used())
    keyring = ring(file.path, clock)  # a restart
    write_last_use(tmp_path, keyring.used())
    assert read_last_use(tmp_path) == {"a": NOW_MS, **both}
    clock.now_ms += 5
    shown(keyring, "a", a)
    assert keyring.used() == {"a": NOW_MS + 5, noted("a", first): NOW_MS + 5, noted("a", second): 0}
    assert pass_ms(keyring, clock, DAY_MS) == 1
    keyring.take(keyring.read())  # what has ended is still known
    write_last_use(tmp_path, keyring.used())
    assert read_last_use(tmp_path) == {"a": NOW_MS + 5, noted("a", first): NOW_MS + 5, noted("a", second): 0}
    file.rotate("a", NOW_MS + 3 * DAY_MS)
    keyring.take(keyring.read())
    write_last_use(tmp_path, keyring.used())
    assert read_last_use(tmp_path).keys() == {"a", noted("a", second), noted("a", stored().hash)}


@pytest.mark.process
async def test_a_process_whose_key_is_rotated(file: KeysFile, tmp_path: Path) -> None:
    """Both are let in, over both doors, until the simulated clock shows the end."""
    a, ops = file.add("a"), file.add("ops", "admin")
    fresh = file.rotate("a", NOW_MS + DAY_MS)
    begin = ("--clock", "simulated", "--clock-start", format_ms(NOW_MS))
    settings = {"auth.keys_file": file.path}
    async with serving(tmp_path / "data", *begin, settings=settings) as server, http(server.url) as calls:
        peers = {}
        for key in (a, fresh):
            await calls.call("GET", "/v1/messages", status=200, Authorization=f"Bearer {key}")
            peers[key] = await dial(server.mqtt)
            peers[key].send(Connect(5, key[-5:], username="a", password=key.encode()))
            assert (await peers[key].take(Connack)).reason == 0
        mine = {"topic": "t", "payload": "x", "deliver_in": "3d"}
        made = await calls.call("POST", "/v1/messages", mine, status=201, Authorization=f"Bearer {a}")
        await calls.call("POST", "/v1/clock:advance", {"by": "P1D"}, Authorization=f"Bearer {ops}")
        assert (await peers[a].take(Disconnect)).reason == 0x87
        await calls.call("GET", "/v1/messages", status=401, Authorization=f"Bearer {a}")
        at = f"/v1/messages/{made.body['id']}"
        await calls.call("GET", at, status=200, Authorization=f"Bearer {fresh}")
        await calls.call("DELETE", at, status=204, Authorization=f"Bearer {fresh}")
        peers[fresh].send(Disconnect(5))
        assert await asyncio.to_thread(server.stop) == 0
        assert "is no longer valid" in server.output
        assert "Traceback" not in server.output, server.output
    assert len(read_last_use(tmp_path / "data")) == 4
