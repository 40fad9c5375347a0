"""The blocks of docs/spark.md below "Three questions" are a notebook: they run as they stand, in order.

Before them a small timeline runs through four days, on a clock that is moved: a message each hour to each of
two topics, one of them worked on by a group that keeps what is done.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from shards.archives import MESSAGES
from spark.__main__ import main
from spark.archived import table_schema
from spark.deliveries import DELIVERIES, ENDS
from tests.support.server import ROOT

from .served import Served, served

PAGE = (ROOT / "docs" / "spark.md").read_text("utf-8")
CELLS = re.findall(
    r"^```(python|sql)\n(.*?)^```$",
    PAGE.partition("## Three questions")[2].partition("\n## ")[0],
    re.DOTALL | re.MULTILINE,
)
BEFORE = timedelta(days=2)
AHEAD = timedelta(days=8)
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def answers(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[list[Row]]]:
    """What each query gives. The server's clock ends tomorrow, so yesterday is over whatever the time is."""
    folder = tmp_path_factory.mktemp("notebook")
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first, end = midnight - BEFORE, midnight + 2 * timedelta(days=1)
    settings = {"slices.archive": str(folder / "archive"), "slices.retention": "30d"}
    clock = ("--clock", "simulated", "--clock-start", first.isoformat())
    with served(folder / "data", *clock, settings=settings) as server:
        lived(server, first, end)
        assert main(["archive", "--server", server.url, "--wait"]) == 0
        backup = server.remote.call("POST", "/v1/backups", {"dir": "monday"})["dir"]
    found = []
    names: dict[str, Any] = {}
    for language, text in CELLS:
        if language == "python":
            here = text.replace("/var/fasti/archive", str(folder / "archive"))
            exec(here.replace("/backups/monday", backup), names)
        else:
            frame: DataFrame = spark.sql(text)
            found.append(frame.collect())
    yield found
    for view in ("messages", "deliveries", "ends"):
        spark.catalog.dropTempView(view)


def lived(server: Served, first: datetime, end: datetime) -> None:
    """Until `end` a message an hour of `orders`, which a worker does, one of them in two tries, and one of
    `mails`, of which one a day is cancelled. Then eight days are to come."""
    call = server.remote.call
    call("PUT", "/v1/groups/shop", {"filter": "orders/#", "keep": "all", "backoff": ["10m"]})
    hours = int((end + AHEAD - first) / HOUR)
    ids = {
        kind: server.put([
            {"topic": f"{kind}/{n}", "payload": f"{n}", "deliver_at": (first + (n + 0.5) * HOUR).isoformat()}
            for n in range(hours)
        ])
        for kind in ("orders", "mails")
    }  # fmt: skip
    for n in range(3, hours, 24):
        call("DELETE", f"/v1/messages/{ids['mails'][n]}")
    for _ in range((end - first).days):
        call("POST", "/v1/clock:advance", {"by": "P1D"})
        leased = call("POST", "/v1/groups/shop/messages:lease", {"max": 100})["messages"]
        leases = [one["lease_id"] for one in leased]
        call("POST", "/v1/groups/shop/messages:nack", {"lease_ids": leases[-1:]})
        call("POST", "/v1/groups/shop/messages:ack", {"lease_ids": leases[:-1]})


def test_the_page_has_a_session_and_a_query_for_each_question() -> None:
    assert [language for language, _ in CELLS] == ["python", "sql", "sql", "sql", "sql", "sql"]


def test_the_page_names_all_columns_in_their_order() -> None:
    part = PAGE.partition("### Columns")[2].partition("\n## ")[0]
    messages, _, others = part.partition("| `deliveries` |")
    deliveries, _, ends = others.partition("\n`ends` has ")
    for text, names in ((messages, table_schema(MESSAGES).names), (deliveries, DELIVERIES.names)):
        rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
        assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == names
    assert re.findall(r"`(\w+)`", ends) == ENDS.names


def test_what_is_due_next_week(answers: list[list[Row]]) -> None:
    rows = answers[0]
    assert {row["kind"] for row in rows} == {"mails", "orders"}
    assert all(row["messages"] == 1 and row["bytes"] > 0 for row in rows)
    assert 2 * 24 * 5 <= len(rows) <= 2 * 24 * 7


def test_what_happened_yesterday(answers: list[list[Row]]) -> None:
    assert [tuple(row) for row in answers[1]] == [
        ("mails", "cancelled", 1),
        ("mails", "dispatched", 23),
        ("orders", "dispatched", 24),
    ]
    assert [(row["place"], row["end"]) for row in answers[2]] == [("shop", "done")]
    assert 23 <= answers[2][0]["deliveries"] <= 24


def test_who_is_late(answers: list[list[Row]]) -> None:
    assert sum(row["messages"] for row in answers[3]) >= 3 * 47
    assert all(row["late_ms_p50_p99"][0] >= 0 for row in answers[3])
    (shop,) = answers[4]
    assert (shop["place"], shop["attempts"]) == ("shop", 2)
    assert shop["deliveries"] > 24 * 2
