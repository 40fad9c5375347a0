"""What the log promises, held against every engine. The promises are the theory of shards/log/chained.py."""

import hashlib
import itertools
import random
import threading
import time
from collections.abc import Callable

import pytest

from shards.log.chained import ChainedLog, open_engine
from shards.log.engine import Origin, Taken
from shards.log.errors import (
    Damaged,
    Doubtful,
    Fenced,
    LogDown,
    NoLog,
    OtherClusterKey,
    Trimmed,
    Unchained,
    Unfit,
    UnknownVersion,
)
from shards.log.record import (
    DIGEST_BYTES,
    PART_BYTES,
    VERSION,
    Seal,
    claim_of,
    frame_of,
    opened,
)
from tests.support.logs import Elapsing, Lost
from tests.support.shelf import MemoryEngine, Shelf

from .conftest import DEADLINE_S, JetStreamPlace, Place

LOSSES = (Lost.REQUEST, Lost.ANSWER, Lost.LATE)


def filled(log: ChainedLog, count: int, seq: int = 1) -> int:
    """Claimed at `seq`, then records up to `count` in all; gives the epoch."""
    epoch = log.claim(seq, "a", "http://a")
    for one in range(seq + 1, count + 1):
        log.append(one, epoch, b"data %d" % one)
    return epoch


def begun(place: Place, count: int) -> tuple[ChainedLog, int]:
    """A log with so many records, and the epoch of who writes it."""
    log = place.open()
    return log, filled(log, count)


def followed(place: Place) -> tuple[ChainedLog, ChainedLog, int]:
    """Two records; who writes, who has read them, and the epoch of the former."""
    (ours, epoch), theirs = begun(place, 2), place.open()
    assert seqs(theirs) == [1, 2]
    return ours, theirs, epoch


def seal_of(log: ChainedLog, seq: int) -> Seal:
    """That of a record that is there."""
    seal = log.seal_at(seq)
    assert seal is not None
    return seal


def seqs(log: ChainedLog, after: int = 0) -> list[int]:
    return [seq for seq, _, _ in log.read(after)]


def epoch_at(log: ChainedLog, seq: int) -> int | None:
    seal = log.seal_at(seq)
    return None if seal is None else seal.epoch


def test_an_empty_log(place: Place) -> None:
    log = place.open()
    assert log.bounds() == (1, 0)
    assert list(log.read(0)) == []
    assert log.seal_at(0) is None
    assert log.seal_at(1) is None
    log.trim(5)
    assert log.bounds() == (1, 0)


def test_what_is_appended_is_read(place: Place) -> None:
    log = place.open()
    assert log.claim(1, "a", "http://a") == 1
    log.append(2, 1, b"")
    log.append(3, 1, b"\x00\xff" * 500)
    for reader in (log, place.open()):
        (seq, epoch, said), *others = reader.read(0)
        assert (seq, epoch) == (1, 1)
        assert (claim_of(said).node, claim_of(said).url) == ("a", "http://a")
        assert others == [(2, 1, b""), (3, 1, b"\x00\xff" * 500)]
        assert list(reader.read(2)) == others[1:]
        assert list(reader.read(3)) == []
        assert reader.bounds() == (1, 3)
        assert [epoch_at(reader, seq) for seq in range(1, 5)] == [1, 1, 1, None]


def test_another_takes_over(place: Place) -> None:
    ours, theirs = place.open(), place.open()
    assert filled(ours, 3) == 1
    assert seqs(theirs) == [1, 2, 3]
    assert theirs.claim(4, "b", "http://b") == 4
    theirs.append(5, 4, b"of b")
    assert [(seq, epoch) for seq, epoch, _ in ours.read(3)] == [(4, 4), (5, 4)]
    assert epoch_at(ours, 5) == 4


def test_an_old_epoch_is_fenced(place: Place) -> None:
    ours, theirs = place.open(), place.open()
    filled(ours, 3)
    theirs.claim(4, "b", "http://b")
    with pytest.raises(Fenced):
        ours.append(4, 1, b"late")
    theirs.append(5, 4, b"of b")
    for seq in (4, 5):
        with pytest.raises(Fenced):
            ours.append(seq, 1, b"late")
    with pytest.raises(Fenced):
        ours.append(6, 1, b"it would fit")
    assert seqs(ours) == [1, 2, 3, 4, 5]
    with pytest.raises(Fenced):
        ours.append(6, 1, b"it would fit, and it has read on")
    assert [epoch for _, epoch, _ in theirs.read(0)] == [1, 1, 1, 4, 4]


def test_of_two_claims_for_a_place_one_wins(place: Place) -> None:
    ours, theirs = place.open(), place.open()
    filled(ours, 2)
    assert theirs.claim(3, "b", "http://b") == 3
    with pytest.raises(Fenced):
        ours.claim(3, "a", "http://a")
    with pytest.raises(Fenced):
        place.open().claim(3, "b", "http://b")  # of the same name, and not the same
    assert ours.claim(4, "a", "http://a") == 4
    with pytest.raises(Fenced):
        theirs.append(4, 3, b"")


def test_of_many_claims_at_once_one_wins(place: Place) -> None:
    filled(place.open(), 2)
    logs = [place.open() for _ in range(4)]
    start, won = threading.Barrier(len(logs)), []

    def run(index: int) -> None:
        start.wait()
        try:
            logs[index].claim(3, f"node {index}", "")
        except Fenced:
            return
        won.append(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(logs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    ((_, _, said),) = place.open().read(2)
    assert claim_of(said).node == f"node {won[0]}"


# -- outcomes that are not known


@pytest.mark.parametrize(
    "losses", [*((one,) for one in LOSSES), (Lost.LATE, Lost.ANSWER), (Lost.ANSWER, Lost.REQUEST)]
)
def test_an_append_whose_answer_was_lost_is_there_once(place: Place, losses: tuple[Lost, ...]) -> None:
    log, network = place.faulty()
    epoch = filled(log, 2)
    network.plan.extend(losses)
    log.append(3, epoch, b"third")
    assert not network.plan
    log.append(4, epoch, b"fourth")
    assert list(place.open().read(2)) == [(3, epoch, b"third"), (4, epoch, b"fourth")]


def test_a_claim_whose_answer_was_lost_fences(place: Place) -> None:
    ours, (theirs, network) = place.open(), place.faulty()
    filled(ours, 2)
    assert seqs(theirs) == [1, 2]
    network.plan.append(Lost.ANSWER)
    assert theirs.claim(3, "b", "http://b") == 3
    with pytest.raises(Fenced):
        ours.append(3, 1, b"late")
    theirs.append(4, 3, b"of b")
    assert [epoch for _, epoch, _ in ours.read(0)] == [1, 1, 3, 3]


def test_a_claim_that_nobody_knows_of_fences(place: Place) -> None:
    """It was granted; who asked has given up before it could know."""
    ours, (theirs, network) = place.open(), place.faulty()
    filled(ours, 2)
    assert seqs(theirs) == [1, 2]
    network.plan.extend([Lost.ANSWER, *[Lost.REQUEST] * 500])
    with pytest.raises(LogDown):
        theirs.claim(3, "b", "http://b")
    network.plan.clear()
    with pytest.raises(Fenced):
        ours.append(3, 1, b"late")
    assert seqs(ours) == [1, 2, 3]
    assert ours.claim(4, "a", "http://a") == 4


def test_what_was_written_is_ours_though_another_has_claimed_since(place: Place) -> None:
    (ours, network), theirs = place.faulty(), place.open()
    epoch = filled(ours, 2)
    network.plan.append(Lost.ANSWER)
    network.between = lambda: theirs.claim(4, "b", "http://b") and None
    ours.append(3, epoch, b"third")
    with pytest.raises(Fenced):
        ours.append(4, epoch, b"fourth")
    assert [(seq, at) for seq, at, _ in ours.read(2)] == [(3, epoch), (4, 4)]


@pytest.mark.parametrize("loss", [Lost.REQUEST, Lost.LATE])
def test_what_was_not_written_is_fenced_by_who_came_first(place: Place, loss: Lost) -> None:
    (ours, network), theirs = place.faulty(), place.open()
    epoch = filled(ours, 2)
    network.plan.append(loss)
    network.between = lambda: theirs.claim(3, "b", "http://b") and None
    with pytest.raises(Fenced):
        ours.append(3, epoch, b"third")
    network.arrive()
    assert [(seq, at) for seq, at, _ in theirs.read(1)] == [(2, epoch), (3, 3)]


@pytest.mark.parametrize("loss", LOSSES)
def test_after_the_deadline_the_same_bytes_may_be_tried_again(place: Place, loss: Lost) -> None:
    log, network = place.faulty()
    epoch = filled(log, 2)
    network.plan.append(loss)
    network.between = lambda: setattr(network, "is_cut", True)
    with pytest.raises(LogDown):
        log.append(3, epoch, b"third")
    network.is_cut = False
    if loss is not Lost.REQUEST:
        network.arrive()
        with pytest.raises(Fenced):
            log.append(3, epoch, b"other bytes")
    log.append(3, epoch, b"third")
    log.append(3, epoch, b"third")
    log.append(4, epoch, b"fourth")
    assert list(log.read(2)) == [(3, epoch, b"third"), (4, epoch, b"fourth")]


def test_who_is_cut_off_is_told_by_the_deadline_and_goes_on_after(place: Place) -> None:
    log, network = place.faulty()
    epoch = filled(log, 2)
    network.is_cut = True
    for call in (
        lambda: log.append(3, epoch, b""),
        lambda: log.claim(3, "a", ""),
        lambda: log.seal_at(1),
        lambda: log.bounds(),
        lambda: list(log.read(0)),
        lambda: log.trim(1),
    ):
        began = place.clock.monotonic()
        with pytest.raises(LogDown, match="planted"):
            call()
        assert DEADLINE_S - 1 < place.clock.monotonic() - began < DEADLINE_S + 1
    network.is_cut = False
    log.append(3, epoch, b"")
    assert seqs(log) == [1, 2, 3]


# -- what is not there, or not as it was


def test_a_trimmed_log(place: Place) -> None:
    log, epoch = begun(place, 9)
    log.trim(5)
    for one in (log, place.open()):
        assert one.bounds() == (6, 9)
        assert [epoch_at(one, seq) for seq in (5, 6)] == [None, epoch]
        assert seqs(one, 5) == [6, 7, 8, 9]
        assert seqs(one, 6) == [7, 8, 9]
        for after in (0, 1, 4):
            with pytest.raises(Trimmed):
                next(one.read(after))
    log.trim(3)
    assert log.bounds() == (6, 9)
    with pytest.raises(Trimmed):
        place.open().claim(5, "b", "http://b")


def test_the_last_record_is_never_trimmed(place: Place) -> None:
    log, epoch = begun(place, 4)
    log.trim(4)
    assert log.bounds() == (4, 4)
    log.trim(100)
    assert log.bounds() == (4, 4)
    place.open().append(5, epoch, b"chained")
    assert seqs(place.open(), 3) == [4, 5]
    assert place.open().claim(6, "b", "http://b") == 6


def test_a_log_that_is_trimmed_while_it_is_read(place: Place) -> None:
    log, reader = place.open(), place.open()
    filled(log, 30)
    read = reader.read(0)
    assert next(read)[0] == 1
    log.trim(25)
    with pytest.raises(Trimmed):
        list(read)


def test_what_comes_while_it_is_read_is_read(place: Place) -> None:
    log, reader = place.open(), place.open()
    epoch = filled(log, 3)
    read = reader.read(0)
    assert next(read)[0] == 1
    log.append(4, epoch, b"")
    assert [seq for seq, _, _ in read] == [2, 3, 4]
    log.append(5, epoch, b"")
    assert seqs(reader, 4) == [5]


def test_a_gap_is_damage(place: Place) -> None:
    if isinstance(place, JetStreamPlace):
        place.losing()
    log, (reader, network) = place.open(), place.faulty()
    epoch = filled(log, 6)
    place.lose(4)
    network.is_vain = True
    read = reader.read(0)
    assert [next(read)[0] for _ in range(3)] == [1, 2, 3]
    with pytest.raises(Damaged, match="record 4"):
        next(read)
    with pytest.raises(Damaged, match="record 4"):
        list(log.read(3, 0.0))  # whose time is over before it is sure
    with pytest.raises(Damaged, match="record 4"):
        seqs(reader, 4)  # whether 5 follows what was there as 4 cannot be told
    assert seqs(reader, 5) == [6]
    log.append(7, epoch, b"")


def test_a_log_that_ends_before_what_was_read_is_damage(place: Place) -> None:
    log, network = place.faulty()
    filled(log, 3)
    network.is_vain = True
    for one in (log, place.open()):
        for for_s in (None, 0.0):
            with pytest.raises(Damaged, match="ends at 3"):
                list(one.read(5, for_s))
    with pytest.raises(Damaged, match="ends at 3"):
        log.claim(7, "a", "http://a")


def test_a_flipped_bit_is_damage(place: Place) -> None:
    log, engine = place.open(), place.engine()
    epoch = filled(log, 2)
    before = opened(engine.fetch(2, 1, 5)[0], 2).seal
    frame = bytearray(frame_of(3, epoch, before, b"third" * 100))
    frame[200] ^= 4
    engine.put(3, bytes(frame), 5)
    engine.close()
    for reader in (log, place.open()):
        read = reader.read(0)
        assert [next(read)[0] for _ in range(2)] == [1, 2]
        with pytest.raises(Damaged, match="record 3"):
            next(read)
        with pytest.raises(Damaged):
            reader.seal_at(3)
    with pytest.raises(Damaged):
        place.open().claim(4, "a", "http://a")


def test_what_was_not_written_after_the_one_before_it_is_damage(place: Place) -> None:
    log, engine = place.open(), place.engine()
    epoch = filled(log, 3)
    other = opened(engine.fetch(3, 1, 5)[0], 3).seal._replace(digest=b"0" * 16)
    engine.put(4, frame_of(4, epoch, other, b"of another log"), 5)
    last = opened(engine.fetch(4, 1, 5)[0], 4).seal
    engine.put(5, frame_of(5, 2, last, b"of an epoch that is not"), 5)
    engine.close()
    for after in (0, 3):
        with pytest.raises(Damaged, match="record 4"):
            list(place.open().read(after))
    with pytest.raises(Damaged, match="record 5"):
        list(place.open().read(4))


def test_a_record_that_is_there_once_more_is_a_stray(place: Place) -> None:
    log, engine = place.open(), place.engine()
    epoch = filled(log, 2)
    place.put(3, engine.fetch(2, 1, 5)[0])
    engine.close()
    assert seqs(place.open()) == [1, 2]
    log.append(3, epoch, b"")
    assert seqs(place.open()) == [1, 2, 4]


def test_a_record_of_a_later_version_is_said_to_be_one(place: Place) -> None:
    log, engine = place.open(), place.engine()
    filled(log, 1)
    body = bytes((VERSION + 1,)) + b"whatever they say then, and their digest at the end"
    engine.put(2, body + hashlib.sha256(body).digest()[:DIGEST_BYTES], 5)
    engine.close()
    with pytest.raises(UnknownVersion, match=f"has version {VERSION + 1}"):
        list(log.read(0))


# -- strays: what is no record of this timeline


def test_the_state_is_the_bounds_with_the_server_s_clock(place: Place) -> None:
    log, _ = begun(place, 3)
    state = log.state()
    assert (state.first, state.last) == log.bounds() == (1, 3)
    if place.name != "memory":
        assert abs(state.wall_ms - time.time() * 1000) < 60_000
    log.limit(64 << 20)


def test_a_stray_is_passed_over_by_all(place: Place) -> None:
    ours, theirs, epoch = followed(place)
    place.put(3, b"hello")
    assert seqs(theirs, 2) == []
    assert theirs.strays == (1, 3, 3)
    ours.append(3, epoch, b"fourth")
    assert (ours.at.seq, ours.strays) == (4, (1, 3, 3))
    place.put(5, b"")
    place.put(6, bytes(100))
    assert list(theirs.read(2)) == [(4, epoch, b"fourth")]
    assert theirs.claim(5, "b", "") == 7
    with pytest.raises(Fenced):
        ours.append(5, epoch, b"late")
    theirs.append(8, 7, b"of b")
    for reader in (ours, theirs, place.open()):
        assert [(seq, at) for seq, at, _ in reader.read(0)] == [(1, 1), (2, 1), (4, 1), (7, 7), (8, 7)]
    ours.trim(4)
    assert seqs(place.open(), 4) == [7, 8]
    reader = place.open()
    reader.stand(theirs.seal_at(7))
    assert seqs(reader, 7) == [8]


def test_a_stray_does_not_hide_what_is_missing(place: Place) -> None:
    """The next record is chained to what was there; so it was no stray."""
    ours, theirs = place.open(), place.open()
    epoch = filled(ours, 3)
    last = ours.at
    other = frame_of(4, epoch, last, b"fourth")
    place.put(4, b"rotten beyond recognition")
    place.put(5, frame_of(5, epoch, opened(other, 4).seal, b"fifth"))
    read = place.open().read(2)
    assert next(read)[0] == 3
    with pytest.raises(Unchained, match="record 5"):
        next(read)
    with pytest.raises(Fenced):
        ours.append(4, epoch, b"fourth")
    with pytest.raises(Damaged):
        seqs(theirs)


def test_what_names_its_place_is_no_stray(place: Place) -> None:
    """One who writes passes over nothing that may be a record."""
    log, epoch = begun(place, 2)
    rotten = bytearray(frame_of(3, epoch, log.at, b"third" * 100))
    rotten[60:500] = bytes(440)
    place.put(3, bytes(rotten))
    for write in (lambda: log.append(3, epoch, b""), lambda: place.open().claim(3, "b", "")):
        with pytest.raises(Fenced, match="checksum"):
            write()
    with pytest.raises(Damaged):
        seqs(place.open())


# -- ahead: sent before those in front of it are known to be there


def sent(log: ChainedLog, seq: int, epoch: int, *datas: bytes) -> None:
    for data in datas:
        assert log.send(seq, epoch, data)


def test_what_is_sent_ahead_is_read_in_its_order(place: Place) -> None:
    log, epoch = begun(place, 2)
    sent(log, 3, epoch, b"third", b"fourth", b"fifth")
    for seq in (3, 4):
        assert log.settle()
        assert log.at.seq == seq
    sent(log, 5, epoch, b"sixth")
    assert log.settle()
    assert log.settle()
    log.append(7, epoch, b"seventh")
    sent(log, 8, epoch, b"eighth")
    assert log.settle()
    wanted = [b"third", b"fourth", b"fifth", b"sixth", b"seventh", b"eighth"]
    for reader in (log, place.open()):
        assert [data for _, _, data in reader.read(2)] == wanted


@pytest.mark.parametrize("losses", [*itertools.product((None, *LOSSES), repeat=3)])
def test_answers_of_what_was_sent_ahead_are_lost(place: Place, losses: tuple[Lost | None, ...]) -> None:
    """Whatever is lost of which, all of them are there once, in their order."""
    if not isinstance(place.clock, Elapsing) and len({*losses}) > 2:
        pytest.skip("on the engine in RAM")
    log, network = place.faulty()
    epoch = filled(log, 2)
    network.plan.extend(losses)
    sent(log, 3, epoch, b"third", b"fourth", b"fifth")
    for _ in range(3):
        assert log.settle()
    network.arrive()
    log.append(6, epoch, b"sixth")
    wanted = [(3, epoch, b"third"), (4, epoch, b"fourth"), (5, epoch, b"fifth"), (6, epoch, b"sixth")]
    assert list(place.open().read(2)) == wanted


def test_a_refusal_fails_all_behind_it(place: Place) -> None:
    """Another node's claim takes the place of the first; the engine may take the second behind it."""
    ours, theirs, epoch = followed(place)
    assert theirs.claim(3, "b", "") == 3
    sent(ours, 3, epoch, b"third", b"fourth", b"fifth")
    with pytest.raises(Fenced):
        ours.settle()
    last = theirs.bounds()[1]
    theirs.append(4, 3, b"of b")
    assert theirs.at.seq == last + 1
    for reader in (ours, theirs, place.open()):
        assert [(at, data) for _, at, data in reader.read(3)] == [(3, b"of b")]
    assert theirs.strays.many == 0
    assert place.open().claim(last + 2, "a", "") == last + 2


def test_a_purge_that_leaves_a_void_record_first(place: Place) -> None:
    """Who has the record before it goes on with the one behind."""
    ours, theirs, epoch = followed(place)
    assert theirs.claim(3, "b", "") == 3
    claimed = theirs.at
    sent(ours, 3, epoch, b"third", b"fourth", b"fifth")
    with pytest.raises(Fenced):
        ours.settle()
    theirs.append(4, 3, b"of b")
    theirs.trim(4)
    reader, behind = place.open(), place.open()
    reader.stand(claimed)
    assert list(reader.read(3)) == [(theirs.at.seq, 3, b"of b")]
    behind.stand(claimed._replace(digest=b"of another log  "))
    with pytest.raises((Trimmed, Unchained)):
        seqs(behind, 3)


def test_what_does_not_fit_any_more_is_not_taken_for_sent() -> None:
    """A stray came between, and the engine takes less than before as the rest is sent again."""
    shelf = Shelf()
    engine = MemoryEngine(shelf, largest=10_000)
    log = open_engine(engine, Elapsing(), 2.0)
    epoch, datas = filled(log, 2), (b"third", bytes(5_000), b"fifth")
    MemoryEngine(shelf).put(3, b"hello", 1)
    sent(log, 3, epoch, *datas)
    engine._largest = 1_000
    with pytest.raises(Unfit, match="1,000 bytes"):
        log.settle()
    for data in datas[1:]:
        log.append(log.at.seq + 1, epoch, data)
    assert [data for _, _, data in log.read(2)] == [*datas]


def test_a_stray_comes_between(place: Place) -> None:
    """What was sent behind the refused one is void, and all of it is written again."""
    log, reader = place.open(), place.open()
    epoch = filled(log, 2)
    place.put(3, b"hello")
    sent(log, 3, epoch, b"third", b"fourth", b"fifth")
    assert list(reader.read(2)) == []
    for _ in range(3):
        assert log.settle()
    assert [data for _, _, data in reader.read(2)] == [b"third", b"fourth", b"fifth"]
    assert [data for _, _, data in place.open().read(2)] == [b"third", b"fourth", b"fifth"]
    assert reader.strays == (1, 3, 3)
    assert place.open().claim(log.at.seq + 1, "b", "") == log.at.seq + 1


def test_whose_predecessor_nobody_can_recognise_is_not_claimed_behind(place: Place) -> None:
    """A record of ours may have stood there: whoever did not write it cannot know."""
    log, epoch = begun(place, 2)
    third = frame_of(3, epoch, log.at, b"third")
    fourth = frame_of(4, epoch, opened(third, 3).seal, b"fourth", is_ahead=True)
    place.put(3, b"rotten beyond recognition")
    place.put(4, fourth)
    for one in (log, place.open()):
        assert list(one.read(2)) == []
        with pytest.raises(Damaged, match="recognises"):
            one.claim(3, "b", "")
    place.put(5, frame_of(5, epoch, opened(fourth, 4).seal, b"fifth"))
    with pytest.raises(Unchained, match="record 5"):
        list(place.open().read(2))


def test_what_no_node_has_is_claimed_behind(place: Place) -> None:
    """Nodes have been asked: nobody has what was sent for the place of the stray."""
    log, other, behind = place.open(), place.open(), place.open()
    epoch = filled(log, 2)
    place.put(3, b"hello")
    sent(log, 3, epoch, b"third", b"fourth", b"fifth")
    assert seqs(other) == seqs(behind) == [1, 2]
    last = other.bounds()[1]
    if last > 3:
        assert other.is_doubtful
        with pytest.raises(Doubtful):
            other.claim(3, "b", "")
    other.stand(other.at, is_last=True)
    assert other.claim(3, "b", "") == last + 1
    other.append(last + 2, last + 1, b"of b")
    with pytest.raises(Fenced):
        log.settle()
    for reader in (behind, place.open()):
        assert seqs(reader, 2) == [last + 1, last + 2]


def test_what_is_sent_ahead_comes_late_behind_a_claim(place: Place) -> None:
    (ours, network), theirs = place.faulty(deadline_s=1), place.open()
    epoch = filled(ours, 2)
    assert seqs(theirs) == [1, 2]
    network.is_slow = True
    network.plan.extend((Lost.REQUEST, Lost.LATE, Lost.LATE, *[Lost.REQUEST] * 50))
    sent(ours, 3, epoch, b"third", b"fourth", b"fifth")
    with pytest.raises(LogDown):
        ours.settle()
    assert theirs.claim(3, "b", "") == 3
    network.arrive()
    theirs.append(4, 3, b"of b")
    for reader in (theirs, place.open()):
        assert [(at, data) for _, at, data in reader.read(3)] == [(3, b"of b")]


def test_a_claim_forgets_what_was_sent(place: Place) -> None:
    """Who claims has given it up: its answers belong to nothing that is sent later."""
    log, epoch = begun(place, 2)
    sent(log, 3, epoch, b"third", b"fourth", b"fifth")
    assert log.settle()
    read = [seq for seq, _, _ in log.read(3)]
    claimed = log.claim(3 + len(read) + 1, "a", "")
    sent(log, claimed + 1, claimed, b"of the new epoch", b"and behind it")
    assert log.settle()
    assert log.settle()
    assert [data for _, _, data in place.open().read(claimed)] == [b"of the new epoch", b"and behind it"]


def test_no_parts_are_sent_ahead() -> None:
    log = open_engine(MemoryEngine(Shelf()), Elapsing(), 2.0)
    assert log.claim(1, "a", "") == 1
    sent(log, 2, 1, b"second", b"third")
    assert not log.send(2, 1, bytes(PART_BYTES + 1)), "parts are waited for one by one"
    assert log.settle()
    assert log.settle()
    assert [data for _, _, data in log.read(1)] == [b"second", b"third"]


# -- the cluster's key


def test_who_has_another_key_does_not_read_and_lead(place: Place) -> None:
    ours, alien = place.open(keys=("ours",)), place.open(keys=("theirs",))
    filled(ours, 3)
    for _ in range(2):
        with pytest.raises(OtherClusterKey, match="another cluster"):
            next(alien.read(0))
    claim = ours.seal_at(1)
    ((_, _, said),) = itertools.islice(ours.read(0), 1)
    ours.check_cluster_key(said, claim)
    with pytest.raises(OtherClusterKey):
        alien.check_cluster_key(said, claim)


def test_a_claim_of_a_node_whose_key_was_changed_too_early_is_not_passed_over(place: Place) -> None:
    """It is one of ours, and what it has acknowledged is kept until both keys are known."""
    ours, early = place.open(keys=("old",)), place.open(keys=("new", "old"))
    epoch = filled(ours, 2)
    assert seqs(early) == [1, 2]
    assert early.claim(3, "b", "") == 3
    early.append(4, 3, b"acknowledged")
    with pytest.raises(OtherClusterKey):
        seqs(ours, 2)
    for write in (lambda: ours.append(3, epoch, b""), lambda: ours.claim(3, "a", "")):
        with pytest.raises(Fenced, match="another cluster"):
            write()
    assert list(place.open(keys=("old", "new")).read(3)) == [(4, 3, b"acknowledged")]


def test_a_key_is_changed_while_both_are_known(place: Place) -> None:
    old = place.open(keys=("old",))
    epoch = filled(old, 2)
    both = place.open(keys=("new", "old"))
    assert seqs(both) == [1, 2]
    old.append(3, epoch, b"")
    assert seqs(both, 2) == [3]
    assert both.claim(4, "b", "") == 4
    assert seqs(place.open(keys=("old", "new"))) == [1, 2, 3, 4]
    new = place.open(keys=("new",))
    new.stand(both.at)
    both.append(5, 4, b"")
    assert seqs(new, 4) == [5]


# -- size


SIZES = (PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, 16 << 20)


def test_a_large_group_is_in_parts(place: Place) -> None:
    """Each of a size that any engine takes; who reads gets it as a whole."""
    log = place.open()
    epoch, seq, wanted = filled(log, 1), 1, []
    for size in SIZES:
        data = random.Random(size).randbytes(size)
        log.append(seq + 1, epoch, data)
        seq += -(-size // PART_BYTES)
        assert log.at.seq == log.reached == seq
        wanted.append((seq, epoch, data))
    log.append(seq + 1, epoch, b"small")
    reader = place.open()
    assert list(reader.read(1)) == [*wanted, (seq + 1, epoch, b"small")]
    assert [one for one, _, _ in place.open().read(wanted[0][0])] == [
        *(one for one, _, _ in wanted[1:]),
        seq + 1,
    ]
    engine = place.engine()
    engine.connect(5)
    assert max(len(engine.fetch(one, 1, 5)[0]) for one in range(1, seq + 1)) <= 1 << 20
    engine.close()


def test_half_a_group_is_dropped_by_the_next_claim(place: Place) -> None:
    (ours, network), theirs = place.faulty(), place.open()
    epoch = filled(ours, 2)
    data = bytes(3 * PART_BYTES)
    network.plan.extend((None, None, *[Lost.REQUEST] * 500))
    with pytest.raises(LogDown):
        ours.append(3, epoch, data)
    assert seqs(theirs) == [1, 2]
    assert (theirs.at.seq, theirs.reached) == (2, 4), "it has heard that somebody leads"
    assert theirs.claim(3, "b", "") == 5
    theirs.append(6, 5, b"of b")
    network.plan.clear()
    with pytest.raises(Fenced):
        ours.append(3, epoch, data)
    for reader in (ours, theirs, place.open()):
        assert seqs(reader) == [1, 2, 5, 6]
    assert seqs(place.open(), 5) == [6]


def test_a_group_is_ended_by_who_began_it(place: Place) -> None:
    """The same bytes again, after an outcome that was not known: parts that are there are found."""
    log, network = place.faulty()
    epoch = filled(log, 2)
    data = random.Random(3).randbytes(3 * PART_BYTES)
    network.plan.extend((None, Lost.ANSWER))
    network.between = lambda: setattr(network, "is_cut", True)
    with pytest.raises(LogDown):
        log.append(3, epoch, data)
    network.is_cut = False
    log.append(3, epoch, data)
    assert list(place.open().read(2)) == [(5, epoch, data)]


def test_a_part_that_comes_late_completes_its_group(place: Place) -> None:
    """To who has given it up, and reads on, it is one group as well."""
    log, network = place.faulty()
    epoch = filled(log, 2)
    data = random.Random(4).randbytes(3 * PART_BYTES)
    network.is_slow = True
    network.plan.extend((None, None, Lost.LATE, *[Lost.REQUEST] * 500))
    with pytest.raises(LogDown):
        log.append(3, epoch, data)
    network.plan.clear()
    assert list(log.read(2)) == []
    network.arrive()
    for reader in (log, place.open()):
        assert list(reader.read(2)) == [(5, epoch, data)]


def test_each_part_proves_that_its_writer_leads(place: Place) -> None:
    log, epoch = begun(place, 1)
    reached = []

    def through(put: Callable[[], None]) -> None:
        put()
        reached.append(log.reached)

    log.append(2, epoch, bytes(2 * PART_BYTES + 1), through)
    assert reached == [2, 3, 4]


def test_a_group_is_cut_to_what_the_engine_takes() -> None:
    log = open_engine(MemoryEngine(Shelf(), largest=1_000), Elapsing(), 2.0)
    assert log.claim(1, "a", "") == 1
    log.append(2, 1, bytes(10_000))
    assert log.at.seq == 12
    assert [len(data) for _, _, data in log.read(1)] == [10_000]


def test_many_records_are_read_in_their_order(place: Place) -> None:
    log = place.open()
    epoch = log.claim(1, "a", "http://a")
    sizes = random.Random(2).choices((0, 10, 3_000, 100_000), k=80)
    for seq, size in enumerate(sizes, 2):
        log.append(seq, epoch, bytes(size))
    assert [(seq, len(data)) for seq, _, data in place.open().read(1)] == list(enumerate(sizes, 2))


# -- all of it


def test_whatever_is_lost_what_was_acknowledged_is_there(place: Place) -> None:
    """Two nodes lead in turns, over bad networks: what was acknowledged is there, nothing else is."""
    simulated = isinstance(place.clock, Elapsing)
    for seed in range(200 if simulated else 1):
        if simulated:
            place = type(place)()
        walk(place, seed, 60)


def walk(place: Place, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    nodes = [Node(place, name) for name in ("a", "b")]
    acked: dict[int, tuple[int, bytes]] = {}
    tried: set[tuple[int, int, bytes]] = set()
    for step in range(steps):
        node = chance.choice(nodes)
        node.network.plan.extend(
            chance.choice((None, None, None, *LOSSES)) for _ in range(chance.randrange(3))
        )
        node.network.is_cut = chance.random() < 0.05
        node.step(b"%d" % step, acked, tried)
    for node in nodes:
        node.network.arrive()
    there = {seq: (epoch, data) for seq, epoch, data in place.open().read(0)}
    assert {seq: there.get(seq) for seq in acked} == acked, f"seed {seed}"
    for seq, (epoch, data) in there.items():
        assert seq == epoch or (seq, epoch, data) in tried, f"seed {seed}"


def test_a_lost_log_is_begun_anew_behind_what_a_store_has(place: Place) -> None:
    """The places go on; who has the record before goes on, and who lacks it needs a copy."""
    log, _ = begun(place, 5)
    last, before = seal_of(log, 5), seal_of(log, 4)
    place.delete()
    with pytest.raises(NoLog):
        log.bounds()
    log.begin(last, Origin("12ab"))
    assert log.bounds() == (6, 6)
    other, behind = place.open(), place.open()
    assert other.origin == Origin("12ab")
    other.stand(last)
    (seq, epoch, data) = next(other.read(5))
    assert (seq, epoch) == (6, 6)
    claim = claim_of(data)
    assert (claim.node, claim.url, claim.timeline) == ("", "", "12ab")
    assert other.claim(7, "b", "http://b") == 7
    behind.stand(before)
    with pytest.raises(Trimmed):
        seqs(behind, 4)


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_log_goes_on_far_beyond_the_last_record(place: Place, *, is_lost: bool) -> None:
    log, beyond = place.open(), 1_000_000_000
    filled(log, 5)
    last = seal_of(log, 5)
    if is_lost:
        place.delete()
    log.begin(last, Origin("12ab"), 0 if is_lost else 5, beyond)
    assert log.bounds() == (beyond + 1, beyond + 1)
    other = place.open()
    other.stand(last)
    assert seqs(other, 5) == [beyond + 1]
    epoch = other.claim(beyond + 2, "b", "http://b")
    other.append(beyond + 3, epoch, b"x")
    other.trim(beyond + 2)
    assert place.open().bounds() == (beyond + 3, beyond + 3)


def test_who_has_what_was_given_up_is_told(place: Place) -> None:
    """And who has less than the record behind which the log goes on takes a copy."""
    log, beyond = place.open(), 1_000_000_000
    filled(log, 5)
    seals = [seal_of(log, seq) for seq in range(2, 6)]
    log.begin(seals[1], Origin("12ab"), 5, beyond)
    other = seals[1]._replace(digest=b"of another branch")
    for seal in (seals[0], other, *seals[2:]):
        one, error = place.open(), Trimmed if seal is seals[0] else Unchained
        one.stand(seal)
        with pytest.raises(error):
            seqs(one, seal.seq)


def test_who_decides_too_late_does_not_begin_the_log_again(place: Place) -> None:
    """Two nodes have the same, and each may begin: what the faster one has acknowledged meanwhile stays."""
    log, _ = begun(place, 5)
    last = seal_of(log, 5)
    place.delete()
    log.begin(last, Origin("12ab"))
    assert log.claim(7, "a", "http://a") == 7
    log.append(8, 7, b"acked")
    late = place.open()
    with pytest.raises(Fenced):
        late.begin(last, Origin("12ab"))
    late.stand(last)
    assert seqs(late, 5) == [6, 7, 8]


def test_a_log_is_emptied_to_go_on_behind_an_earlier_record(place: Place) -> None:
    """An old backup counts from now on: who has its last record goes on behind what was dropped."""
    log, _ = begun(place, 5)
    early, last = seal_of(log, 3), seal_of(log, 5)
    log.begin(early, Origin("12ab"), 5)
    assert log.bounds() == (6, 6)
    restored, forgotten = place.open(), place.open()
    restored.stand(early)
    assert seqs(restored, 3) == [6]
    assert restored.claim(7, "a", "http://a") == 7
    restored.stand(early)
    assert seqs(restored, 3) == [6, 7]
    forgotten.stand(last)
    with pytest.raises(Unchained):
        seqs(forgotten, 5)


def test_who_lacks_trimmed_records_does_not_go_on(place: Place) -> None:
    log, _ = begun(place, 5)
    early = seal_of(log, 2)
    log.trim(3)
    other = place.open()
    other.stand(early)
    with pytest.raises(Trimmed):
        seqs(other, 2)


def test_a_log_with_other_records_is_not_begun(place: Place) -> None:
    begun(place, 3)
    engine = place.engine()
    engine.connect(5)
    with pytest.raises(Taken):
        engine.make(2, Origin(), 5)
    assert seqs(place.open()) == [1, 2, 3]


class Node:
    """Leads, appends, and after an error reads and claims."""

    def __init__(self, place: Place, name: str) -> None:
        self.log, self.network = place.faulty()
        self._name = name
        self._epoch: int | None = None
        self._seq = 0

    def step(
        self, data: bytes, acked: dict[int, tuple[int, bytes]], tried: set[tuple[int, int, bytes]]
    ) -> None:
        try:
            if self._epoch is None:
                for seq, _, _ in self.log.read(self._seq):
                    self._seq = seq
                self._epoch = self.log.claim(self._seq + 1, self._name, "")
            else:
                tried.add((self._seq + 1, self._epoch, data))
                self.log.append(self._seq + 1, self._epoch, data)
                acked[self._seq + 1] = self._epoch, data
            self._seq += 1
        except (Fenced, LogDown):
            self._epoch = None
