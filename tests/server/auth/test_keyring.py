"""Who shows a key: checked once, remembered, refused in constant cost, read again when the file changes."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from server.auth.backoff import ENTRIES_MAX, FREE, HOLD_S_MAX, Backoff
from server.auth.checking import NAME_WAITING, THREADS, WAITING_MAX, Threads
from server.auth.keyring import OWN_NAME, REMEMBERED, WRONG_REMEMBERED, Keyring, Refusal, Why
from server.auth.keys_file import KeysFileError
from server.auth.last_use import read_last_use, write_last_use
from server.auth.rights import Principal
from server.net.networks import network_of
from tests.support.keys import NOW_MS, Clock, KeysFile, ring, shown

WRONG = Refusal(Why.WRONG)
PASSWORD_HASH = (
    "$6$i9Jt32tYegzNkwSK$QS3iPoD+vTH+XaoCByGUtFnBsf37+/hyXreCViGyZOCagOg0+IhiRNI2g+"
    "GnZf6IPzOU20d7aadUf9uCIILAQA=="
)
"""Of the password x."""


class Checks:
    """An `Offload` that runs its work on request."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], bool], Callable[[bool | None], None]]] = []
        self.count = 0

    def __call__(self, work: Callable[[], bool], done: Callable[[bool | None], None]) -> None:
        self.waiting.append((work, done))
        self.count += 1

    def run(self) -> None:
        while self.waiting:
            work, done = self.waiting.pop(0)
            done(work())


@pytest.fixture
def file(tmp_path: Path) -> KeysFile:
    return KeysFile(tmp_path / "keys.toml")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def checks() -> Checks:
    return Checks()


class Door:
    """A keyring with an old key, whose checks are run on request, and what it answers."""

    def __init__(self, path: Path) -> None:
        self.file = KeysFile(path)
        self.checks = Checks()
        self.a = self.file.add("a", is_old=True)
        self.keyring = ring(self.file.path, Clock(), self.checks)
        self.answers: list[Principal | Refusal] = []

    def check(self, name: str, key: bytes, host: str = "x") -> None:
        self.keyring.check(name, key, host, self.answers.append)


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path / "keys.toml")


def again(keyring: Keyring) -> None:
    keyring.take(keyring.read())


def named(answer: Principal | Refusal | None) -> str:
    assert isinstance(answer, Principal), answer
    return answer.name


def test_a_right_key_is_let_in_and_a_wrong_one_is_not(file: KeysFile, clock: Clock) -> None:
    a, b = file.add("a"), file.add("b")
    keyring = ring(file.path, clock)
    assert named(shown(keyring, "a", a)) == "a"
    assert shown(keyring, "a", b) == WRONG
    assert shown(keyring, "b", a) == WRONG
    assert shown(keyring, "c", a) == WRONG
    assert shown(keyring, "", "") == WRONG
    assert shown(keyring, "a", "x" * 2_000, "other") == WRONG
    assert keyring.refused == 5
    assert keyring.has_api_keys
    assert not keyring.is_open


def test_who_was_right_is_not_checked_again(door: Door) -> None:
    key = door.a.encode()
    assert door.keyring.recall("a", key) is None
    for _ in range(3):
        door.check("a", key)
    door.checks.run()
    assert [named(answer) for answer in door.answers] == ["a"] * 3
    assert named(door.keyring.recall("a", key)) == "a"
    door.check("a", key)
    assert (len(door.answers), door.checks.count) == (4, 1)


def test_an_unknown_name_costs_the_check_that_a_wrong_key_costs(door: Door) -> None:
    for name in ("a", "nobody", ""):
        door.check(name, b"fasti_x_y")
    assert door.answers == []
    door.checks.run()
    assert (door.checks.count, door.answers) == (3, [WRONG] * 3)


def test_an_unknown_name_is_not_let_in_with_the_key_that_it_is_checked_against(
    file: KeysFile, clock: Clock
) -> None:
    a = file.add("a")
    keyring = ring(file.path, clock)
    assert shown(keyring, "nobody", a) == WRONG
    assert keyring.recall("nobody", a.encode()) is None


def test_no_more_are_checked_at_a_time_than_there_may_be(door: Door) -> None:
    for number in range(WAITING_MAX):
        door.keyring.check("a", b"%d" % number, f"10.0.{number}", lambda answer: None)
    door.check("a", door.a.encode())
    assert door.answers == [Refusal(Why.BUSY, 1.0)]
    door.checks.run()
    door.check("a", door.a.encode())
    door.checks.run()
    assert named(door.answers[-1]) == "a"


def test_who_sends_many_wrong_keys_at_once_has_no_more_guesses(door: Door) -> None:
    keyring = door.keyring
    for number in range(WAITING_MAX - 1):
        door.check("a", b"%d" % number, "guesser")
    right: list[Principal | Refusal] = []
    keyring.check("a", door.a.encode(), "somebody", right.append)
    door.checks.run()
    assert door.checks.count <= FREE + THREADS + 1
    assert [answer.why for answer in door.answers if isinstance(answer, Refusal)].count(Why.HELD) >= 200
    assert named(right[0]) == "a"
    assert shown(keyring, "a", "x", "guesser") == Refusal(Why.HELD, keyring._backoff.wait_s("guesser", "a"))


def test_what_is_remembered_is_bounded(file: KeysFile, clock: Clock) -> None:
    a = file.add("a", is_old=True)
    keyring = ring(file.path, clock)
    keyring._right = {b"%d" % number: ("a", "") for number in range(REMEMBERED)}
    shown(keyring, "a", a)
    assert len(keyring._right) == REMEMBERED
    assert named(keyring.recall("a", a.encode())) == "a"


def test_a_check_that_fails_lets_nobody_in(file: KeysFile, clock: Clock) -> None:
    a = file.add("a", is_old=True)
    keyring = ring(file.path, clock, lambda work, done: done(None))
    assert shown(keyring, "a", a) == Refusal(Why.BUSY, 1.0)
    assert keyring.recall("a", a.encode()) is None


def test_a_key_that_is_revoked_while_it_is_checked_is_not_let_in(door: Door) -> None:
    door.check("a", door.a.encode())
    door.file.revoke("a")
    again(door.keyring)
    door.checks.run()
    assert door.answers == [WRONG]


def test_when_the_file_changes_keys_come_go_and_change(file: KeysFile, clock: Clock) -> None:
    a, b, c = file.add("a"), file.add("b"), file.add("c")
    keyring = ring(file.path, clock)
    first, second, third = (shown(keyring, name, key) for name, key in (("a", a), ("b", b), ("c", c)))
    assert isinstance(first, Principal)
    assert isinstance(second, Principal)
    assert isinstance(third, Principal)
    file.revoke("a")
    file.change("b", '["schedule", "read"]', '["read"]')
    fresh = file.add("c")
    again(keyring)
    assert (first.is_live, second.is_live, third.is_live) == (False, True, False)
    assert not second.has("schedule")
    assert keyring.recall("a", a.encode()) is None
    assert shown(keyring, "a", a) == WRONG
    assert shown(keyring, "c", c) == WRONG
    assert keyring.recall("b", b.encode()) is second
    assert named(shown(keyring, "c", fresh)) == "c"
    assert keyring.rights_of("b", "x").principal is second
    assert keyring.rights_of("a", "x").is_live is False
    assert keyring.rights_of("", "x").principal is keyring.anonymous


def test_a_bad_file_leaves_everything_as_it_was(file: KeysFile, clock: Clock) -> None:
    a = file.add("a")
    keyring = ring(file.path, clock)
    file.write("[[key]]\nname = 3\n")
    with pytest.raises(KeysFileError, match=":2: name: must be a string"):
        keyring.read()
    assert named(shown(keyring, "a", a)) == "a"
    file.path.unlink()
    with pytest.raises(KeysFileError, match="cannot be read"):
        keyring.read()
    with pytest.raises(KeysFileError):
        ring(file.path, clock)


def test_the_server_has_a_key_of_its_own(file: KeysFile, clock: Clock) -> None:
    file.add("a")
    keyring = ring(file.path, clock)
    own = shown(keyring, OWN_NAME, keyring.own_key())
    assert isinstance(own, Principal)
    assert own.has("admin")
    assert shown(keyring, OWN_NAME, keyring.own_key()[:-1] + "x") == WRONG
    assert ring(file.path, clock).own_key() != keyring.own_key()
    assert ring(None, clock).own_key() == ""
    file.add(OWN_NAME)
    with pytest.raises(KeysFileError, match="is the server itself"):
        keyring.read()


def test_a_name_with_wrong_keys_waits_in_that_network(file: KeysFile, clock: Clock) -> None:
    a = file.add("a", is_old=True)
    b = file.add("b", is_old=True)
    keyring = ring(file.path, clock)
    shown(keyring, "a", a)
    for number in range(FREE + 1):
        assert shown(keyring, "a", f"wrong {number}") == WRONG
    assert shown(keyring, "a", "wrong again") == Refusal(Why.HELD, 1.0)
    assert named(shown(keyring, "a", a)) == "a"  # known, and nobody has guessed it
    assert named(shown(keyring, "b", b)) == "b"
    assert shown(keyring, "a", "wrong again", "10.0.0.2") == WRONG
    clock.mono_s = 1.0
    assert shown(keyring, "a", "wrong for good") == WRONG
    assert shown(keyring, "a", "wrong for good") == Refusal(Why.HELD, 2.0)


@pytest.mark.parametrize("is_old", [False, True], ids=["sha256", "argon2"])
def test_a_valid_key_is_not_held_back_by_wrong_ones_of_its_name(
    file: KeysFile, clock: Clock, is_old: bool
) -> None:
    """Nobody guesses 256 bits. A wrong one of that form is told to wait all the same."""
    a = file.add("a", is_old=is_old)
    keyring = ring(file.path, clock)
    for number in range(FREE + 1):
        assert shown(keyring, "a", f"fasti_a_{number:064x}") == WRONG
    assert shown(keyring, "a", f"fasti_a_{99:064x}") == Refusal(Why.HELD, 1.0)
    assert keyring.refused == FREE + 1
    assert named(shown(keyring, "a", a)) == "a"


def test_a_right_password_waits_while_its_name_is_held_back(
    tmp_path: Path, file: KeysFile, clock: Clock
) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text(f"user:{PASSWORD_HASH}\n")
    passwords.chmod(0o600)
    file.add("a")
    keyring = ring(file.path, clock, password_file=str(passwords))
    assert named(shown(keyring, "user", "x")) == "user"
    for number in range(FREE + 1):
        shown(keyring, "user", f"wrong {number}")
    assert shown(keyring, "user", "x") == Refusal(Why.HELD, 1.0)
    assert named(shown(keyring, "user", "x", "10.0.0.2")) == "user"
    clock.mono_s = 1.0
    assert named(shown(keyring, "user", "x")) == "user"


def test_a_key_of_256_bits_is_checked_at_once(file: KeysFile, clock: Clock, checks: Checks) -> None:
    a = file.add("a")
    keyring = ring(file.path, clock, checks)
    assert named(keyring.recall("a", a.encode())) == "a"
    assert keyring.recall("a", a.encode() + b"0") is None
    assert shown(keyring, "a", f"fasti_a_{0:064x}") == WRONG
    assert shown(keyring, "nobody", a) == WRONG
    assert checks.count == 0


def test_the_same_wrong_key_is_checked_once_until_the_file_changes(door: Door) -> None:
    for _ in range(3):
        door.check("a", b"wrong")
        door.checks.run()
    assert (door.answers, door.checks.count) == ([WRONG] * 3, 1)
    again(door.keyring)
    door.check("a", b"wrong")
    door.checks.run()
    assert door.checks.count == 2
    door.keyring._wrong = {b"%d" % number: "a" for number in range(WRONG_REMEMBERED)}
    door.check("a", b"other")
    door.checks.run()
    assert len(door.keyring._wrong) == WRONG_REMEMBERED


def test_checks_take_turns_by_network(door: Door) -> None:
    """However many one network has waiting, and each of its names may have a few only."""
    flood = door.answers
    for number in range(1_000):
        name = f"name-{number // NAME_WAITING}"
        door.check(name, f"fasti_{name}_{number:064x}".encode(), "10.0.0.1")
    assert flood == [Refusal(Why.BUSY, 1.0)] * (1_000 - WAITING_MAX * 7 // 8)
    door.check("name-0", b"one more", "10.0.0.1")
    assert flood[-1] == Refusal(Why.HELD, 1.0)
    answers: list[Principal | Refusal] = []
    door.keyring.check("a", door.a.encode(), "10.0.0.2", answers.append)
    for done in range(THREADS + 2):
        assert (answers == []) or done > THREADS
        work, answered = door.checks.waiting.pop(0)
        answered(work())
    assert named(answers[0]) == "a"


def test_the_wait_doubles_up_to_a_bound_and_is_forgotten() -> None:
    clock = Clock()
    backoff = Backoff(clock.mono)
    waits = []
    for _ in range(FREE + 10):
        backoff.failed("x", "a")
        waits.append(backoff.wait_s("x", "a"))
        clock.mono_s += waits[-1]
    assert (waits[: FREE + 3], waits[-1]) == ([0.0] * FREE + [1.0, 2.0, 4.0], HOLD_S_MAX)
    clock.mono_s += 601
    backoff.failed("x", "a")
    assert backoff.wait_s("x", "a") == 0.0


def test_what_waits_is_bounded_and_ipv6_counts_by_its_network() -> None:
    backoff = Backoff(Clock().mono)
    for number in range(ENTRIES_MAX + 5):
        backoff.failed(f"host{number}", "x" * 60_000)
    assert (len(backoff), {name for _, name in backoff._known}) == (ENTRIES_MAX, {""})
    assert (
        network_of("2001:db8:1:2:3::4") == network_of("2001:db8:1:2:ffff::") != network_of("2001:db8:1:3::")
    )
    assert network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert network_of("?:?") == "?:?"


def test_when_a_key_was_used_is_known_and_written(file: KeysFile, clock: Clock, tmp_path: Path) -> None:
    a = file.add("a")
    file.add("b")
    keyring = ring(file.path, clock)
    assert keyring.used() == {}
    shown(keyring, "a", a)
    clock.now_ms += 5
    keyring.recall("a", a.encode())
    assert keyring.used() == {"a": NOW_MS + 5}
    write_last_use(tmp_path, {"z": 3, "a": NOW_MS + 9})
    write_last_use(tmp_path, keyring.used())
    assert read_last_use(tmp_path) == {"z": 3, "a": NOW_MS + 9}
    (tmp_path / "keys-used.json").write_text('{"a": 5, "b": null, "c": "soon"}')
    write_last_use(tmp_path, {"d": 7})
    assert read_last_use(tmp_path) == {"a": 5, "d": 7}
    (tmp_path / "keys-used.json").write_text("[")
    assert read_last_use(tmp_path) == {}


async def test_checks_are_done_in_threads_and_answered_on_the_loop(file: KeysFile, clock: Clock) -> None:
    a = file.add("a", is_old=True)
    threads = Threads()
    keyring = ring(file.path, clock, threads)
    answered: asyncio.Future[Principal | Refusal] = asyncio.get_running_loop().create_future()
    where: list[int] = []

    def done(answer: Principal | Refusal) -> None:
        where.append(threading.get_ident())
        answered.set_result(answer)

    keyring.check("a", a.encode(), "x", done)
    assert not answered.done()
    assert named(await answered) == "a"
    assert where == [threading.get_ident()]
    threads.stop()


@pytest.mark.parametrize("cut", [0, 40])
def test_a_key_in_the_place_of_a_name_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    file = KeysFile(tmp_path / "keys.toml")
    key = file.add("meter")
    keyring = ring(file.path, Clock())
    for name in (key[: len(key) - cut], f"fasti_{key[-64:]}", key.replace("meter", "me ter")):
        assert shown(keyring, name, "wrong", "10.0.0.9") == Refusal(Why.WRONG)
    assert len(caplog.messages) == 3
    assert "meter" in caplog.messages[0]
    assert not any(key[-64:][:8] in line for line in caplog.messages)
