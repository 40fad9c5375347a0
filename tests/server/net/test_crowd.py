"""Which connections are taken, and which make room: the crowd by itself, and behind real listeners."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from server.codec.packets import Connect
from server.net.crowd import BUSY, Bounds, Cause, Crowd, Ranked
from server.net.networks import ConnectRateLimiter
from tests.support.encode import encode
from tests.support.served import SCHEMES, ended, everywhere, serve


class One:
    """A connection that only notes what becomes of it."""

    def __init__(self, crowd: "Crowd[One]", address: str, idle_since_s: float = 0.0) -> None:
        self.address, self.idle_since_s = address, idle_since_s
        self.ended: Cause | str = ""
        self._crowd = crowd

    def check(self, now_s: float, passed_s: float) -> None: ...

    def close(self, cause: Cause) -> None:
        self.ended = self.ended or cause

    def abort(self) -> None:
        self.ended = self.ended or "abort"


def crowd_of(most: int, rate: int = 0) -> Crowd[One]:
    return Crowd(Bounds("limits", most, 0, rate), Counter(), lambda _: None)


def come(crowd: Crowd[One], address: str, *, key: str | None = None, idle_since_s: float = 0.0) -> One | None:
    """A connection, if it is taken. `key`: it shows one; empty: it is let in without."""
    if not crowd.admits(address, 0):
        return None
    one = One(crowd, address, idle_since_s)
    crowd.add(one)
    if key is not None:
        crowd.let_in(one, key)
    return one


def test_strangers_of_the_network_that_has_most_make_room() -> None:
    crowd = crowd_of(10)
    honest = [come(crowd, "10.0.0.9"), come(crowd, "10.0.0.8", key="k")]
    flood = [come(crowd, "10.0.0.1", idle_since_s=n) for n in range(8)]
    assert come(crowd, "10.0.0.1") is None
    for n in range(3):
        assert come(crowd, f"10.0.1.{n}")
    assert [one is not None and one.ended for one in flood] == ["abort"] * 3 + [""] * 5
    assert [one is not None and one.ended for one in honest] == ["", ""]
    assert len(crowd) == 10
    assert crowd.bounded == {"limits.connections": 4}


def test_a_newcomer_that_is_alone_in_its_network_outlives_older_ones() -> None:
    """As many networks as one likes: of those that have one stranger each the oldest goes."""
    crowd = crowd_of(10)
    for n in range(10):
        come(crowd, f"10.1.{n}.1", idle_since_s=n)
    honest = come(crowd, "10.0.0.9", idle_since_s=10)
    for n in range(9):
        assert come(crowd, f"10.2.{n}.1", idle_since_s=11 + n)
    assert honest is not None
    assert not honest.ended


def test_five_idle_addresses_do_not_shut_others_out() -> None:
    crowd = crowd_of(80)
    idle = [come(crowd, f"10.0.0.{n % 4}", key="", idle_since_s=n) for n in range(80)]
    newcomers = [come(crowd, f"10.0.1.{n}", key="") for n in range(20)]
    assert [one is not None for one in newcomers] == [True] * 10 + [False] * 10
    assert sum(one is not None and one.ended is Cause.CROWDED for one in idle) == 10
    # Those that have been told are the first to go, so that no more than one is there beyond the bound.
    assert len(crowd) == 81
    first = newcomers[0]
    assert first is not None
    crowd.discard(first)
    crowd.discard(first)
    assert come(crowd, "10.0.2.1", key="") is not None


def test_a_fleet_behind_one_address_stays() -> None:
    """Not because it is large, and not for strangers that come and come."""
    crowd = crowd_of(80)
    fleet = [come(crowd, "10.0.0.1", key=f"device-{n}") for n in range(78)]
    strangers = [come(crowd, f"10.{n}.0.1", idle_since_s=n) for n in range(500)]
    assert all(strangers)
    assert not any(one is None or one.ended for one in fleet)
    for n in range(500):
        come(crowd, f"10.{n}.0.2", key="")
    assert sum(one is None or bool(one.ended) for one in fleet) <= 10


def test_a_key_above_its_share_makes_room_before_a_network_does() -> None:
    crowd = crowd_of(40)
    greedy = [come(crowd, f"10.0.{n}.1", key="greedy", idle_since_s=30 - n) for n in range(30)]
    others = [come(crowd, "10.1.0.1", key=f"k{n}") for n in range(10)]
    assert come(crowd, "10.2.0.1", key="new") is not None
    assert [one is not None and one.ended for one in greedy] == [""] * 29 + [Cause.CROWDED]
    assert not any(one is None or one.ended for one in others)


def test_one_that_lingers_makes_room_first() -> None:
    crowd = crowd_of(3)
    ending, other, third = (come(crowd, "10.0.0.1") for _ in range(3))
    assert ending is not None
    assert crowd.is_full("10.0.0.1")
    crowd.lingers(ending)
    assert not crowd.is_full("10.0.0.1")
    assert come(crowd, "10.0.0.1") is not None
    assert ending.ended == "abort"
    assert not any(one is None or one.ended for one in (other, third))


def test_one_that_waits_for_its_answer_is_not_idle() -> None:
    crowd = crowd_of(8)
    busy = [come(crowd, "10.0.0.1", idle_since_s=BUSY) for _ in range(7)]
    idle = come(crowd, "10.0.0.1", idle_since_s=5)
    assert come(crowd, "10.0.0.2") is not None
    assert idle is not None
    assert idle.ended == "abort"
    assert come(crowd, "10.0.0.3") is None
    assert not any(one is None or one.ended for one in busy)


def test_a_socket_that_is_gone_counts_no_more_but_what_it_left_does() -> None:
    crowd = crowd_of(16)
    ones = [come(crowd, "10.0.0.1") for _ in range(16)]
    for one in ones[:3]:
        assert one is not None
        crowd.lost_socket(one)
    assert [come(crowd, "10.0.0.1") is not None for _ in range(3)] == [True, True, False]


def test_the_rate_leaves_an_eighth_to_others() -> None:
    rate = ConnectRateLimiter(80)
    assert sum(rate.admits("flood", 1.0) for _ in range(1_000)) == 70
    assert sum(rate.admits(f"other {n}", 1.5) for n in range(28)) == 10
    assert sum(rate.admits("flood", 2.0) for _ in range(30)) == 30
    assert all(rate.admits(f"other {n}", 2.0) for n in range(28))


def test_ranks_are_those_of_counting() -> None:
    chance, ranked, plain = random.Random(1), Ranked[One](), Counter[str]()
    there: list[tuple[str, One]] = []
    crowd = crowd_of(1)
    for _ in range(5_000):
        if there and chance.random() < 0.5:
            name, one = there.pop(chance.randrange(len(there)))
            ranked.discard(name, one)
            plain[name] -= 1
        else:
            there.append((name := chance.choice("abcdefgh"), One(crowd, "")))
            ranked.add(*there[-1])
            plain[name] += 1
        plain += Counter()
        assert (ranked.total, len(ranked)) == (plain.total(), len(plain))
        assert ranked.most == max(plain.values(), default=0)
        assert plain[ranked.largest()] == ranked.most


# -- behind listeners

HALF = {"mqtt": b"\x10\x20", "mqtts": b"\x16\x03", "ws": b"GET /mqtt HTTP/1.1\r\nHost: x\r\n", "wss": b""}


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_half_a_connect_makes_room_for_another_network(tmp_path: Path, scheme: str) -> None:
    """Also before its handshakes are done; then it is gone from the crowd."""
    async with serve(tmp_path / "data", everywhere(connect_rate=0, connections=4)) as served:
        crowd = served.listeners.crowd
        half = [await served.dial(scheme) for _ in range(4)]
        for _, writer in half:
            writer.write(HALF[scheme])
        async with asyncio.timeout(30):
            while len(crowd) < 4:
                await asyncio.sleep(0)
            for n in range(4):
                reader, writer = await served.dial("mqtt", f"127.0.0.{2 + n}")
                writer.write(encode(Connect(5, f"honest {n}"), 5))
                assert (await reader.read(100))[:1] == b"\x20"
            for reader, _ in half:
                await ended(reader)
        assert len(crowd) == 4
        assert {one.address for one in crowd} == {f"127.0.0.{2 + n}" for n in range(4)}


async def test_clients_that_close_and_come_again_at_once_do_not_meet_themselves(tmp_path: Path) -> None:
    count = 60
    async with serve(tmp_path / "data", everywhere(connect_rate=0, connections=count)) as served:

        async def begin() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await served.dial()
            writer.write(encode(Connect(5, ""), 5))
            assert await reader.read(100)
            return reader, writer

        async with asyncio.timeout(60):
            for _ in range(3):
                for _, writer in [await begin() for _ in range(count)]:
                    writer.close()
        assert not served.app.metrics.bounded_mqtt
