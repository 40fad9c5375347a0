"""The table source: every message with its state, and filters that read less and lose nothing."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from shards.commit import Caps
from shards.read import Reader, Row
from spark.pushdown import Range, Wanted, accepted, narrowed, wanted_of
from spark.snapshot import opened_snapshot
from spark.storage import storage_at
from spark.table import FastiReader, FastiSource, PushingReader, PushingSource, parts, register
from timeline.position import Position
from timeline.slices import DAY_MS, Shard, Slice

from .archives import Archived
from .archives import message as row_of
from .stores import FAR, NOW, Timeline, record

CAPS = Caps(messages=200, bytes=1 << 20, pending=1 << 40, structure_above=50)


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Timeline]:
    one = Timeline(tmp_path_factory.mktemp("table") / "data", caps=CAPS)
    at = NOW + DAY_MS
    ids = one.put(
        *(record(at + 60_000 * n, f"p{n}", f"orders/{n % 50}/paid") for n in range(300)),
        *(record(FAR + 1_000 * n, f"f{n}", f"devices/{n % 40}/temp") for n in range(1_200)),
        *(record(FAR + 1_000 * n, f"a{n}", f"alarm/{n % 3}") for n in range(300)),
        record(at + 5, "short", "orders/1/paid", expires_ms=10),
    )
    for message in ids[10:1_700:100]:
        one.cancel(message)
    for message in ids[20:1_700:100]:
        one.retry(message, FAR + 2 * DAY_MS)
    for message in ids[15:1_700:100]:
        one.move(message, FAR + 3 * DAY_MS)
    one.dispatch(at + 100 * 60_000, late_ms=50)
    one.put(record(at, "late", "orders/7/paid"))
    one.dispatch(at + 120 * 60_000)
    yield one
    one.close()


@pytest.fixture(scope="module")
def uri(timeline: Timeline, tmp_path_factory: pytest.TempPathFactory) -> str:
    return timeline.checkpoint(tmp_path_factory.mktemp("backup") / "cp")


@pytest.fixture(scope="module")
def rows(spark: SparkSession, uri: str) -> DataFrame:
    register(spark)
    return spark.read.format("fasti").load(uri)


def test_every_message_is_a_row(rows: DataFrame, timeline: Timeline) -> None:
    found = {row["id"]: row for row in rows.collect()}
    expected = timeline.messages()
    assert found.keys() == expected.keys()
    assert rows.count() == len(expected)
    for name, stored in expected.items():
        row = found[name]
        assert row["topic"] == stored.topic.decode()
        assert row["due"].timestamp() * 1000 == stored.due_ms
        assert row["payload"] == (None if stored.stub else stored.payload)
        assert row["slice"] <= row["at"]
    states = {row["state"] for row in found.values()}
    assert states == {"pending", "dispatched", "cancelled", "expired"}
    horizon = timeline.opened.horizon.position >> 48
    for row in found.values():
        if row["state"] in ("pending", "dispatched"):
            assert (row["at"].timestamp() * 1000 > horizon) == (row["state"] == "pending")


def instant(at_ms: int) -> str:
    return f"timestamp '{at(at_ms).isoformat()}'"


def at(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def read(reader: FastiReader) -> list[dict[str, Any]]:
    """What a reader gives to Spark, without Spark."""
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def reader_of(uri: str, filters: Sequence[Filter] = (), **options: str) -> FastiReader:
    """As Spark makes one."""
    source = (PushingSource if filters else FastiSource)({"path": uri, **options})
    reader = source.reader(StructType())
    if isinstance(reader, PushingReader):
        assert list(reader.pushFilters(list(filters))) == [one for one in filters if not accepted(one)[1]]
    return reader


@pytest.fixture(scope="module")
def everything(uri: str) -> list[dict[str, Any]]:
    return read(reader_of(uri))


Rows = list[dict[str, Any]]
HOLDS = Callable[[dict[str, Any]], bool]
FILTERS: list[tuple[list[Filter], HOLDS]] = [
    ([EqualTo(("state",), "pending")], lambda row: row["state"] == "pending"),
    (
        [In(("state",), ("cancelled", "expired"))],
        lambda row: row["state"] in ("cancelled", "expired"),
    ),
    ([EqualTo(("topic",), "alarm/1")], lambda row: row["topic"] == "alarm/1"),
    (
        [In(("topic",), ("alarm/2", "orders/7/paid")), EqualTo(("state",), "pending")],
        lambda row: row["topic"] in ("alarm/2", "orders/7/paid") and row["state"] == "pending",
    ),
    ([StringStartsWith(("topic",), "devices/3")], lambda row: row["topic"].startswith("devices/3")),
    (
        [StringStartsWith(("topic",), "orders/"), LessThan(("due",), at(NOW + DAY_MS + 60_000 * 50))],
        lambda row: row["topic"].startswith("orders/") and row["due"] < at(NOW + DAY_MS + 60_000 * 50),
    ),
    (
        [GreaterThanOrEqual(("due",), at(FAR)), LessThanOrEqual(("due",), at(FAR + 10_000))],
        lambda row: at(FAR) <= row["due"] <= at(FAR + 10_000),
    ),
    (
        [GreaterThan(("at",), at(FAR + 300_000)), EqualTo(("topic",), "alarm/0")],
        lambda row: row["at"] > at(FAR + 300_000) and row["topic"] == "alarm/0",
    ),
    ([EqualTo(("slice",), at(FAR + 200 * DAY_MS))], lambda _: False),
    ([Not(EqualTo(("qos",), 0))], lambda _: True),
]


@pytest.mark.parametrize(("filters", "holds"), FILTERS)
def test_a_filter_that_is_pushed_down_loses_nothing(
    uri: str, everything: Rows, filters: list[Filter], holds: HOLDS
) -> None:
    """Spark does not look again at what it was told is exact."""
    given = read(reader_of(uri, filters))
    expected = sorted(row["id"] for row in everything if holds(row))
    if all(accepted(one)[1] for one in filters):
        assert sorted(row["id"] for row in given) == expected
    else:
        assert sorted(row["id"] for row in given if holds(row)) == expected


def test_a_where_is_pushed_down(spark: SparkSession, rows: DataFrame, uri: str) -> None:
    """Read with and without, each from a `load` of its own."""
    condition = (
        f"topic like 'devices/%' and due between {instant(FAR)} and {instant(FAR + 100_000)}"
        f" and state in ('pending', 'expired') and slice >= {instant(NOW)}"
    )
    expected = sorted(row["id"] for row in rows.where(condition).select("id").collect())
    register(spark, pushdown=True)
    pushed = spark.read.format("fasti").load(uri).where(condition)
    plan = spark._jvm.PythonSQLUtils.explainString(pushed._jdf.queryExecution(), "formatted")
    (line,) = [line for line in plan.splitlines() if line.startswith("PushedFilters: ")]
    assert all(f"({name}," in line for name in ("topic", "due", "slice"))
    assert sorted(row["id"] for row in pushed.collect()) == expected
    assert sent(pushed) == len(expected) > 50
    register(spark)


def sent(frame: DataFrame) -> int:
    """How many rows the source has given to Spark."""
    leaf = frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0)
    return leaf.metrics().apply("numOutputRows").value()


@pytest.mark.parametrize(
    ("options", "holds"),
    [
        ({"state": "pending"}, lambda row: row["state"] == "pending"),
        ({"state": "cancelled, expired"}, lambda row: row["state"] in ("cancelled", "expired")),
        (
            {"topic": "orders/+/paid"},
            lambda row: row["topic"].startswith("orders/") and row["topic"].endswith("/paid"),
        ),
        (
            {"topic": "alarm/#", "due_from": str(FAR + 9_000)},
            lambda row: row["topic"].startswith("alarm/") and row["due"] >= at(FAR + 9_000),
        ),
        ({"due_to": at(FAR + 5_000).isoformat()}, lambda row: row["due"] < at(FAR + 5_000)),
        ({"slice": "5"}, lambda _: False),
    ],
)
def test_options_read_what_they_say_and_no_more(
    uri: str, everything: Rows, options: dict[str, str], holds: HOLDS
) -> None:
    expected = sorted(row["id"] for row in everything if holds(row))
    assert sorted(row["id"] for row in read(reader_of(uri, **options))) == expected


def test_options_through_spark(spark: SparkSession, uri: str) -> None:
    options = {"topic": "alarm/#", "due_from": str(FAR + 9_000), "state": "pending"}
    found = spark.read.format("fasti").options(**options).load(uri)
    expected = sorted(row["id"] for row in read(reader_of(uri, **options)))
    assert sorted(row["id"] for row in found.collect()) == expected
    assert sent(found) == len(expected) > 250
    # As often as one likes, and in one query with itself.
    assert found.union(found).count() == 2 * len(expected)


def test_only_the_columns_that_are_asked_for_are_sent(
    spark: SparkSession, uri: str, everything: Rows
) -> None:
    options = {"columns": "due, id", "state": "pending", "topic": "alarm/1"}
    found = spark.read.format("fasti").options(**options).load(uri)
    assert found.columns == ["due", "id"]
    mine = [row for row in everything if (row["state"], row["topic"]) == ("pending", "alarm/1")]
    assert sorted(row["id"] for row in found.collect()) == sorted(row["id"] for row in mine)
    sent = read(reader_of(uri, **options))
    assert len(sent) == len(mine)
    assert all([*row] == ["due", "id"] for row in sent)


@pytest.mark.parametrize("options", [{}, {"state": "pending"}])
def test_a_count_by_slice_reads_no_rows(
    uri: str, everything: Rows, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a shard has no stubs, and all of it counts."""
    scanned: list[Shard] = []
    run = Reader.run

    def spied(self: Reader, piece: Slice, shard: Shard, start: Position, end: Position) -> Iterator[Row]:
        scanned.append(shard)
        return run(self, piece, shard, start, end)

    monkeypatch.setattr(Reader, "run", spied)
    found = read(reader_of(uri, columns="shard,slice", **options))
    some = [row for row in everything if row["state"] == options.get("state", row["state"])]
    assert by_shard(found) == by_shard(some)
    assert scanned
    assert len([shard for shard in scanned if shard.live == shard.count]) <= len(options)
    scanned.clear()
    assert len(read(reader_of(uri, columns="slice", topic="alarm/1"))) == 100
    assert len([shard for shard in scanned if shard.live == shard.count]) > 1


def by_shard(rows: Rows) -> Counter[tuple[Any, Any]]:
    return Counter((row["slice"], row["shard"]) for row in rows)


def test_a_table_can_be_used_again_and_with_itself(spark: SparkSession, rows: DataFrame) -> None:
    count = rows.count()
    one, two = rows.where("topic = 'alarm/1'"), rows.where("topic = 'alarm/2'")
    ones, twos = one.count(), two.count()
    assert 0 < ones < count
    assert one.union(two).count() == ones + twos
    assert rows.union(one).count() == count + ones
    assert rows.count() == count


def test_a_table_can_be_joined_with_itself(spark: SparkSession, rows: DataFrame, uri: str) -> None:
    """Two filters over one view in one query."""
    rows.createOrReplaceTempView("both")
    query = (
        "select x.topic as one, y.topic as two, count(*) as pairs from both x join both y using (state)"
        " where x.topic = 'alarm/1' and y.topic = 'alarm/2' group by all"
    )
    (right,) = spark.sql(query).collect()
    assert (right["one"], right["two"]) == ("alarm/1", "alarm/2")
    register(spark, pushdown=True)
    spark.read.format("fasti").load(uri).createOrReplaceTempView("both")
    found = spark.sql(query).collect()
    register(spark)
    assert found != [right], "Spark has been mended: pushdown may be the default"


def test_spark_still_mixes_up_what_it_pushed_down(spark: SparkSession, uri: str) -> None:
    """Why filters of `where` are not pushed down by themselves. When this fails, Spark has been mended."""
    register(spark, pushdown=True)
    table = spark.read.format("fasti").load(uri)
    count = table.count()
    fewer = table.where("topic = 'alarm/1'").count()
    assert table.count() == fewer < count
    register(spark)


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("topic", "a/#/b", "'#' must be the last level"),
        ("state", "gone", "is not one or several of"),
        ("due_from", "tomorrow", "neither RFC 3339"),
        ("due_to", "2026-12-01T00:00", "no offset"),
        ("columns", "id,,due", "must name one or several columns"),
        ("columns", "id,due,id", "each once"),
        ("table", "message", "is not one of messages, deliveries, ends"),
        ("archive", "http://x/y", "option archive: must be a directory, or a URL with one of"),
        ("node", "-1", "is not a number"),
        ("stat", "pending", "option stat: is not known; there are archive, columns, due_from, due_to"),
    ],
)
def test_an_option_that_cannot_be_read_is_refused(option: str, value: str, word: str) -> None:
    with pytest.raises(ValueError, match=re.escape(word)):
        wanted_of({"path": "/backup", option: value})


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"path": ""}, "the directory is missing"),
        ({"table": "ends", "archive": "/a"}, "option path: is for the table messages, not for ends"),
        (
            {"path": "", "table": "ends", "archive": "/a", "state": "expired"},
            "option state: is for the table messages",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, str], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        wanted_of({name: value for name, value in {"path": "/b", **options}.items() if value})


@pytest.mark.parametrize(
    ("filters", "most"),
    [
        ([], 10_000),
        ([EqualTo(("topic",), "alarm/1")], 1_500),
        ([StringStartsWith(("topic",), "alarm/")], 1_700),
        ([GreaterThanOrEqual(("due",), at(FAR))], 1_900),
        ([LessThan(("due",), at(NOW + DAY_MS + 60_000))], 400),
        ([EqualTo(("state",), "pending"), LessThan(("at",), at(FAR - DAY_MS))], 400),
        ([In(("slice",), (at(5),))], 0),
    ],
)
def test_filters_read_less(timeline: Timeline, tmp_path: Path, filters: list[Filter], most: int) -> None:
    uri = timeline.checkpoint(tmp_path / "cp")
    made = parts(Wanted(uri, "", predicate=narrowed(filters)))
    with opened_snapshot(uri) as snapshot:
        directory = snapshot.reader.directory
        pieces = [(directory.get(run.start_ms), run) for part in made for run in part.runs if run.shards]
        read = sum(piece.shards[number].count for piece, run in pieces for number in run.shards)
    assert read <= most
    if not filters:
        assert read == sum(piece.count for piece in timeline.opened.directory)


def test_an_upper_bound_on_due_does_not_lose_what_came_late() -> None:
    wanted = narrowed([LessThan(("due",), at(1_000))])
    assert wanted.at_range(5_000) == Range(high=5_000)
    assert wanted.at_range(500) == Range(high=999)
    assert narrowed([GreaterThanOrEqual(("due",), at(7_000))]).at_range(5_000).low == 7_000


def test_held_messages_are_pending(spark: SparkSession, tmp_path: Path) -> None:
    one = Timeline(tmp_path / "data")
    one.wall_ms -= 60_000
    (held,) = one.put(record(NOW - 10_000, "held"))
    uri = one.checkpoint(tmp_path / "cp")
    one.close()
    register(spark)
    (row,) = spark.read.format("fasti").load(uri).where("state = 'pending'").collect()
    assert (row["id"], row["slice"], row["shard"], row["at"]) == (f"{held:032x}", None, None, None)


def test_errors_are_one_line(spark: SparkSession, timeline: Timeline, uri: str, tmp_path: Path) -> None:
    """With Spark's line of the SQL state behind it; no traceback of its workers."""
    register(spark)

    def reading(path: str = "", **options: str) -> None:
        table = spark.read.format("fasti").options(**options)
        (table.load(path) if path else table.load()).count()

    broken = Archived(storage_at(str(tmp_path / "broken")))
    (file,) = broken.append([row_of("a" * 32, NOW)]).files
    (tmp_path / "broken" / file.path).write_bytes(b"PAR1 no more")
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: reading(archive=str(tmp_path / "broken")), f"{file.path} cannot be read"),
        (lambda: reading(str(tmp_path)), "no fasti data directory"),
        (lambda: reading(str(timeline.path)), "take a backup first"),
        (lambda: reading(), "directory is missing"),
        (lambda: reading(uri, columns="id,idd"), "'idd' is not one of id, topic"),
        (lambda: reading(uri, stat="x"), "option stat: is not known"),
        (lambda: reading(archive=str(tmp_path)), "is no archive"),
        (lambda: reading(archive="ftp://x"), "must be a directory, or a URL"),
        (lambda: spark.readStream.format("fasti.archive").load(), "option path: is missing"),
    ]
    for attempt, word in cases:
        with pytest.raises(Exception, match=word) as caught:
            attempt()
        lines = [line for line in str(caught.value).splitlines() if line.strip()]
        assert len(lines) <= 2, lines
        assert word in "".join(lines)


def test_a_stopped_server_s_directory_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    one = Timeline(tmp_path / "data")
    one.put(record(FAR, "x"))
    one.close()
    register(spark)
    assert spark.read.format("fasti").load(str(tmp_path / "data")).count() == 1
