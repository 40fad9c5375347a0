"""`limits.memory`: what it is where nobody says, and that its parts never come to more."""

from pathlib import Path

import pytest

from server.settings.config import Config
from server.settings.memory import (
    MEMORY_MIN,
    MIB,
    PARTS,
    SHARES,
    Memory,
    automatic,
    bounds_of,
    part_lines,
    sizes,
)
from server.settings.reading import divided

GIB = 1 << 30


def test_the_parts_never_come_to_more_than_there_is() -> None:
    for total in range(MEMORY_MIN, 16 * GIB, 7 * MIB):
        assert sum(size for _, size in sizes(total)) <= total


def test_a_bound_is_within_its_part_and_never_nothing() -> None:
    for total in (MEMORY_MIN, GIB, 16 * GIB):
        bounds = bounds_of(total)
        for part, size in sizes(total):
            for name, unit in part.bounds.items():
                assert 0 < bounds[name] * unit.each <= size, name
    assert sum(part.share for part in PARTS) <= SHARES


def test_more_memory_never_makes_a_bound_smaller() -> None:
    before = bounds_of(MEMORY_MIN)
    for total in range(MEMORY_MIN, 8 * GIB, 64 * MIB):
        after = bounds_of(total)
        assert all(after[name] >= bound for name, bound in before.items())
        before = after


def test_every_bound_is_an_attribute_that_the_whole_machine_leaves_as_it_is() -> None:
    config = divided(Config(), Memory(1 << 40, "pinned"))
    assert config.limits.memory == Memory(1 << 40, "pinned")
    for name in bounds_of(GIB):
        section, _, attribute = name.partition(".")
        assert getattr(getattr(config, section), attribute) == getattr(getattr(Config(), section), attribute)


@pytest.mark.parametrize(
    ("files", "machine", "expected"),
    [
        ({}, 4 * GIB, Memory(GIB, "auto: a quarter of 4 GiB")),
        ({}, GIB // 2, Memory(MEMORY_MIN, "auto: the least, there are 0.5 GiB")),
        ({"memory.max": "max\n"}, 4 * GIB, Memory(GIB, "auto: a quarter of 4 GiB")),
        ({"memory.max": f"{GIB}\n"}, 4 * GIB, Memory(GIB // 2, "auto: half of the cgroup's 1 GiB")),
        (
            {"memory/memory.limit_in_bytes": f"{GIB}"},
            4 * GIB,
            Memory(GIB // 2, "auto: half of the cgroup's 1 GiB"),
        ),
        (
            {"memory/memory.limit_in_bytes": f"{2**63 - 4_096}"},
            4 * GIB,
            Memory(GIB, "auto: a quarter of 4 GiB"),
        ),
        ({"memory.max": "garbage"}, 4 * GIB, Memory(GIB, "auto: a quarter of 4 GiB")),
    ],
)
def test_auto_is_a_share_of_what_there_is(
    tmp_path: Path, files: dict[str, str], machine: int, expected: Memory
) -> None:
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert automatic(tmp_path, machine) == expected


def test_the_parts_are_told_with_their_sum() -> None:
    lines = part_lines(Memory(GIB, "auto: a quarter of 4 GiB"))
    assert [line.partition("  ")[0] for line in lines] == [*(part.name for part in PARTS), "in all"]
    assert lines[-1].endswith("of 1,024 MiB (auto: a quarter of 4 GiB)")
