"""Who takes part takes turns; who is not there is told of."""

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from tests.bench.peers import Kind
from tests.bench.race import Entry, Sample, peer, race
from tests.bench.results import TINY, Env


def env_of(folder: Path) -> Env:
    return Env(folder, replace(TINY, runs=3))


async def test_rounds_are_taken_in_turns_and_rows_are_medians(tmp_path: Path) -> None:
    turns: list[str] = []

    def entry(name: str, values: list[float], *, is_floor: bool = False) -> Entry:
        async def round_(number: int) -> Sample:
            turns.append(f"{name}{number}")
            return Sample(values[number], {"rss": values[number] * 2})

        return Entry(name, round_, "synced", is_floor)

    entries = [entry("a", [3, 9, 1]), entry("b", [6, 5, 7]), entry("c", [1, 1, 1], is_floor=True)]
    results = await race(env_of(tmp_path), "drain", "msg/s", entries, also=[("rss", "MiB")])
    assert turns == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]
    assert [(one.name, one.baseline, one.ratio, one.less, one.is_floor) for one in results] == [
        ("drain", "b", 0.5, False, False),
        ("drain", "c", 3.0, False, True),
        ("drain rss", "b", 0.5, True, False),
        ("drain rss", "c", 3.0, True, True),
    ]
    assert results[0].more == {"rss": 6, "their_rss": 12}


async def test_one_alone_has_no_ratio(tmp_path: Path) -> None:
    async def round_(_: int) -> Sample:
        return Sample(1.0)

    results = await race(env_of(tmp_path), "drain", "msg/s", [Entry("a", round_)])
    assert [(one.value, one.ratio) for one in results] == [(1.0, None)]


def test_a_peer_that_is_not_installed_is_noted(tmp_path: Path) -> None:
    @contextmanager
    def missing(folder: Path):  # type: ignore[no-untyped-def]
        yield None

    env = env_of(tmp_path)
    with ExitStack() as stack:
        assert peer(env, stack, Kind("Redis", "", missing)) is None
    assert env.seen.missing == {"Redis"}
