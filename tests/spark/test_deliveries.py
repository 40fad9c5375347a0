"""How deliveries ended, as Arrow tables."""

import pytest

from server.codec import wire
from shards.ended import MINUTE_MS, ended_between
from shards.tables import EndRow
from spark import deliveries as module
from spark.deliveries import DELIVERIES, ENDS, deliveries, ends
from tests.support.rig import START_MS, Rig, config
from timeline.position import END, START, MessageId, Position, id_text, message_id

TEXT, FOREVER_MS = "$share/g/t", 1 << 47


def told() -> tuple[Rig, MessageId]:
    """Of three messages one is done, one was moved and is done, one is dead a minute later. Also the id of
    the second one."""
    rig = Rig(config(archive="/var/archive", max_in_flight=1))
    peer = rig.lasting("w", receive_maximum=1).subscribed(TEXT, qos=1, user_properties=(("keep", "all"),))
    sender = rig.connected("p")
    sender.publish1("t", "1")
    sender.publish1("$delayed/60/t", "2")
    ((later, shard, _),) = list(rig.core.reader.read(START, END))[1:]
    name = message_id(later, shard, 0)
    rig.decide(lambda commit: commit.move(name, rig.clock.now_ms + 1_000))
    for wait_ms in (500, 1_500, MINUTE_MS):
        rig.pass_ms(wait_ms)
        (job,) = peer.publishes()
        if wait_ms < MINUTE_MS:
            peer.ack(wire.PUBACK, job.packet_id)
            sender.publish1("t", "3") if wait_ms > 1_000 else None
        else:
            peer.nack(job, "never", "no paper")
    rig.finish()
    return rig, name


def test_each_end_is_a_row_with_the_id_of_its_message() -> None:
    rig, moved = told()
    (table,) = deliveries(rig.store, START_MS, FOREVER_MS)
    assert table.schema == DELIVERIES
    table.validate(full=True)
    rows = table.to_pylist()
    assert [(row["end"], row["by"], row["reason"], row["attempts"]) for row in rows] == [
        ("done", "w", None, 1),
        ("done", "w", None, 1),
        ("dead", "w", "no paper", 1),
    ]
    assert {(row["place"], row["kind"], row["incarnation"]) for row in rows} == {
        ("g", "group", rig.group(TEXT).incarnation)
    }
    assert rows[1]["id"] == id_text(moved)
    assert [row["id"][:12] + row["id"][20:] == row["root"] for row in rows] == [True, False, True]
    assert [row["number"] for row in rows] == sorted({row["number"] for row in rows})
    assert 59 < rows[2]["seconds"] < 61
    (first, *_), ended = rows, [row["ended_at"] for row in rows]
    assert ended == sorted(ended)
    cut_ms = round(first["ended_at"].timestamp() * 1_000) + 1
    before, after = (list(deliveries(rig.store, *span)) for span in ((0, cut_ms), (cut_ms, FOREVER_MS)))
    assert before[0].to_pylist() + after[0].to_pylist() == rows


def test_counts_are_by_place_minute_and_end() -> None:
    rig, _ = told()
    (table,) = ends(rig.store, START_MS, FOREVER_MS)
    assert table.schema == ENDS
    minutes = [round(row["minute"].timestamp() * 1_000) - START_MS for row in table.to_pylist()]
    assert [(row["place"], row["end"], row["count"]) for row in table.to_pylist()] == [
        ("g", "done", 2),
        ("g", "dead", 1),
    ]
    assert minutes == [0, MINUTE_MS]
    assert list(ends(rig.store, START_MS + 2 * MINUTE_MS, FOREVER_MS)) == []


def test_a_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 2)
    rig, _ = told()
    assert [len(table) for table in deliveries(rig.store, 0, FOREVER_MS)] == [2, 1]
    assert [len(table) for table in ends(rig.store, 0, FOREVER_MS)] == [2]


def test_what_was_not_stored_has_no_id_and_what_is_gone_that_of_its_place() -> None:
    rig, _ = told()
    (one, *_) = ended_between(rig.store, 0, FOREVER_MS)
    id_of = module._ids(rig.store)
    assert id_of(one._replace(row=EndRow("g", "group", 1, "done"))) is None
    gone = one._replace(root=Position(5 << 48 | 7), row=EndRow("g", "group", 1, "done", shard=2))
    assert id_of(gone) == f"{5:012x}{2:04x}{0:04x}{7:012x}"
