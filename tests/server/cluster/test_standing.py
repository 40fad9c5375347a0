"""Who begins a log that does not exist, or that is lost."""

import re
from dataclasses import dataclass

import pytest

from server.cluster.standing import HEAL, INIT, Standing, is_last, standing_of, verdict
from shards.log.chained import open_engine
from shards.replicated import ReplicatedStore
from tests.support.logs import Elapsing
from tests.support.memory_store import MemoryStore
from tests.support.shelf import MemoryEngine, Shelf

A, B, C = (f"http://{name}" for name in "abc")


@dataclass(frozen=True)
class Had:
    """What nodes a, b and c have. None: no answer."""

    a: Standing | None
    b: Standing | None
    c: Standing | None

    def verdicts(self) -> dict[str, tuple[bool, str]]:
        said = {A: self.a, B: self.b, C: self.c}
        return {mine.node: verdict(mine, said) for mine in said.values() if mine is not None}


def lost(node: str, seq: int = 0, **more: object) -> Standing:
    said = {"digest": f"{seq:032x}", "epoch": 1, "timeline": "12ab", "has_rows": True} if seq else {}
    return Standing(node, seq, is_lost=True, **{**said, **more})  # type: ignore[arg-type]


NOTHING = [lost(node) for node in "abc"]


@pytest.mark.parametrize(
    ("had", "begins", "why"),
    [
        (Had(*NOTHING), "abc", ""),
        (Had(lost("a"), lost("b"), None), "", f"all of cluster.peers answer, {C} do not; {INIT}"),
        (Had(lost("a"), lost("b", has_rows=True), lost("c")), "b", "waits for b, whose timeline begins"),
        (
            Had(lost("a", has_rows=True), lost("b", has_rows=True), lost("c")),
            "",
            "a and b have each a timeline of their own",
        ),
        (Had(lost("a", 990), lost("b", 1000), lost("c")), "b", "waits for b, which has the most of it"),
        (Had(lost("a", 1000), lost("b", 1000), lost("c", 990)), "ab", "waits for a"),
        (Had(lost("a", 1000), lost("b", 1000), None), "", f"all of cluster.peers answer, {C} do not; {HEAL}"),
        (Had(lost("a", 1000), Standing("b", 990), lost("c")), "", "waits for b, which has not found"),
        (Had(lost("a", 1000), lost("b", 990, timeline="cd34"), lost("c")), "", "different timelines"),
        (Had(lost("a", 1000), lost("b", 1000, digest="00"), lost("c")), "", "record 1,000 of a and b"),
        (Had(lost("a", 1000, digest=""), lost("b"), lost("c")), "", "record 1,000 of a cannot be compared"),
        (Had(lost("a", 1000), lost("a", 1000), lost("c")), "", "two of cluster.peers answer as the same"),
        (Had(lost("a", 1000), lost("b", 995, epoch=991), lost("c")), "", "record 1,000 of a and b cannot be"),
        (
            Had(lost("a", 990, heard=1000), lost("b", 980), lost("c")),
            "",
            f"had record 1,000, .* is 990: {HEAL}",
        ),
        (
            Had(lost("a", log="x"), lost("b", log="y"), lost("c")),
            "",
            "not the same on all nodes: x on a, y on b$",
        ),
        (Had(lost("a", log="x"), lost("b", log="x"), lost("c")), "abc", ""),
        (Had(lost("a", heard=7), lost("b"), lost("c")), "", f"a node had record 7, .* is 0: {INIT}"),
    ],
)
def test_who_begins(had: Had, begins: str, why: str) -> None:
    """Never anybody while another node may have more."""
    found = had.verdicts()
    assert "".join(node for node, (does, _) in found.items() if does) == begins
    assert all(re.search(why, said) for does, said in found.values() if not does)
    assert all(not said for does, said in found.values() if does)


def test_without_peers_a_person_decides() -> None:
    for mine, who in ((lost("a"), INIT), (lost("a", 7), HEAL)):
        assert verdict(mine, {}) == (False, f"no peers are named that could have the timeline: {who}")


def test_a_node_of_the_same_name_does_not_stand_for_another() -> None:
    """It is not among the peers, and has an older copy of the other's data."""
    said = {A: lost("a", 1000), B: lost("b", 980), C: lost("c")}
    assert not verdict(lost("a", 995), said).begins
    assert not verdict(lost("a", 1000), {**said, A: Standing("a", 1000, leads=True)}).begins


def test_alone_among_its_peers_it_begins() -> None:
    """Its own address is all that `cluster.peers` has."""
    assert verdict(lost("a"), {A: lost("a")}).begins


@pytest.mark.parametrize(
    ("b", "c", "expected"),
    [
        *((lost("b", 1000), lost("c", 990), True), (lost("b", 1000), lost("c", 1001), False)),
        (lost("b", 1000, heard=1001), lost("c", 990), False),
        *((lost("b", 1000, leads=True), lost("c", 990), False), (lost("b", 1000), lost("b", 990), False)),
        *((lost("b", 1000), lost("c"), False), (lost("b", 1000), None, False)),
    ],
)
def test_whether_a_node_has_the_last_record(b: Standing, c: Standing | None, *, expected: bool) -> None:
    """One that has not opened its store yet says that it has none."""
    mine = lost("a", 1000)
    assert is_last(mine, {A: mine, B: b, C: c}) == expected
    assert not is_last(mine, {})


def test_what_a_store_has() -> None:
    below = MemoryStore()
    assert standing_of("a", below) == Standing("a")
    store = ReplicatedStore(below, open_engine(MemoryEngine(Shelf()), Elapsing(), 1.0))
    store.lead("a", "http://a")
    told = standing_of("a", below)
    assert (told.seal, told.timeline) == (store.applied, store.timeline)
    assert told.has_rows
