"""A valid key gets in, whoever shows wrong ones: also right after a restart, when nothing is remembered.

Simulated: a check takes CHECK_S of one of THREADS threads, clients try again as clients do.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

import pytest

from server.auth.checking import THREADS
from server.auth.keyring import Keyring
from server.auth.rights import Principal
from tests.support.keys import Clock, KeysFile, ring

CHECK_S = 0.025
HERE = "10.0.0.1"


class World:
    """Clients of one server that has just started, in simulated time."""

    def __init__(self, path: Path, names: Iterable[str], *, is_old: bool) -> None:
        """`is_old`: lines as `keys add` wrote them before, with argon2id."""
        self.clock = Clock()
        file = KeysFile(path)
        self.keys = {name: file.add(name, is_old=is_old) for name in names}
        self.keyring: Keyring = ring(file.path, self.clock, self._offload)
        self.checks = 0
        self.came: dict[str, float] = {}
        """Name -> seconds from its first try until it was let in."""
        self.failed = 0
        """Tries with a valid key that were refused."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._free_s = [0.0] * THREADS

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        heappush(self._events, (at_s, next(self._number), call))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.clock.mono_s, _, call = heappop(self._events)
            call()

    def attack(
        self, every_s: float, name: str, key: Callable[[int], str], where: Callable[[int], str]
    ) -> None:
        """Shows `name` and `key(n)` from `where(n)` again and again."""

        def attempt(number: int) -> None:
            self.keyring.check(name, key(number).encode(), where(number), lambda answer: None)
            self.at((number + 1) * every_s, lambda: attempt(number + 1))

        self.at(0.0, lambda: attempt(0))

    def honest(self, name: str, first_s: float, again_s: float, where: str = HERE) -> None:
        """Comes with its key, and again as long as it is refused."""

        def answered(answer: object) -> None:
            if isinstance(answer, Principal):
                self.came.setdefault(name, self.clock.mono_s - first_s)
            else:
                self.failed += 1
                self.at(self.clock.mono_s + again_s, attempt)

        def attempt() -> None:
            self.keyring.check(name, self.keys[name].encode(), where, answered)

        self.at(first_s, attempt)

    def _offload(self, work: Callable[[], bool], done: Callable[[bool | None], None]) -> None:
        thread = self._free_s.index(min(self._free_s))
        end_s = self._free_s[thread] = max(self.clock.mono_s, self._free_s[thread]) + CHECK_S
        self.checks += 1
        self.at(end_s, lambda: done(work()))


NAMES = [f"meter-{number}" for number in range(20)]
LINES = pytest.mark.parametrize("is_old", [False, True], ids=["sha256", "argon2"])


@LINES
def test_a_device_with_a_revoked_key_keeps_nobody_out_after_a_restart(tmp_path: Path, is_old: bool) -> None:
    """It tries every second, from the address that all have. Before: 5 of 20 were still out after 150 s."""
    world = World(tmp_path / "keys.toml", NAMES, is_old=is_old)
    world.attack(1.0, "old", lambda number: f"fasti_old_{'0' * 64}", lambda number: HERE)
    for number, name in enumerate(NAMES):
        world.honest(name, 0.5 + number, 5.0)
    world.run(150.0)
    assert len(world.came) == len(NAMES)
    assert world.failed == 0
    assert max(world.came.values()) <= (1.01 * CHECK_S if is_old else 0.0)


@LINES
def test_wrong_keys_every_100_ms_make_no_valid_attempt_fail(tmp_path: Path, is_old: bool) -> None:
    """Another one each time, from the address that all have. Before: 448 valid tries failed, for 112 s."""
    world = World(tmp_path / "keys.toml", NAMES[:4], is_old=is_old)
    world.attack(0.1, "nobody", lambda number: f"fasti_nobody_{number:064x}", lambda number: HERE)
    for name in world.keys:
        world.honest(name, 12.17, 1.0)
    world.run(162.0)
    assert (len(world.came), world.failed) == (4, 0)
    assert max(world.came.values()) <= (5 * CHECK_S if is_old else 0.0)


@pytest.mark.long
@LINES
def test_wrong_keys_from_many_networks_delay_a_valid_one_by_turns_only(tmp_path: Path, is_old: bool) -> None:
    """400 a second, which is five times what the threads can check, each second from other networks."""
    world = World(tmp_path / "keys.toml", NAMES[:4], is_old=is_old)
    world.attack(
        0.0025,
        "meter-0",
        lambda number: f"fasti_meter-0_{number:064x}",
        lambda number: f"10.1.{number // 40 // 200 % 250}.{number // 40 % 200}",
    )
    for name in world.keys:
        world.honest(name, 12.0, 1.0, f"10.2.0.{name[-1]}")
    world.run(60.0)
    assert (len(world.came), world.failed) == (4, 0)
    assert max(world.came.values()) <= (1.0 if is_old else 0.0)
