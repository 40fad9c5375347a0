"""What the server tells of itself, and what its metrics count."""

import re

import pytest

from server.build import form
from server.observe import version

from ..conftest import MINUTE_MS, START, Running


async def metrics(server: Running) -> dict[str, float]:
    """Value by name with labels."""
    answer = await server.call("GET", "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_info(server: Running) -> None:
    body = (await server.call("GET", "/v1/info")).body
    assert re.match(r"\d+\.\d+|unknown", body.pop("version"))
    assert body == {
        "node": 0,
        "clock": "simulated",
        "build": form(),
        "now": START,
        "url": str(server.http.make_url("")).rstrip("/"),
        "mqtt": [{"transport": "tcp", "host": "127.0.0.1", "port": 1883, "url": "mqtt://127.0.0.1:1883"}],
        "draining": False,
    }


def test_a_bare_checkout_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "DISTRIBUTION", "fasti-that-is-not-installed")
    assert version.server_version.__wrapped__() == "unknown"


async def test_probes(server: Running) -> None:
    assert (await server.call("GET", "/livez")).body == {"status": "ok"}
    assert (await server.call("GET", "/readyz")).body == {"status": "ok"}
    server.app.is_ready = False
    assert (await server.call("GET", "/livez")).body == {"status": "ok"}
    assert (await server.call("GET", "/readyz", status=503)).slug == "not-ready"


async def test_a_drain_is_told_of_and_begins_and_ends_once(server: Running) -> None:
    """By calls that may be repeated; how it holds messages, tests/server/delivery/test_drain.py sees."""
    idle = {"draining": False, "since": None, "out": 0}
    assert (await server.call("POST", "/v1/drain:cancel")).body == idle
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#"}, status=201)
    await server.schedule("jobs/1")
    await server.app.quiet()
    lease = (await server.call("POST", "/v1/groups/workers/messages:lease", {"max": 1})).body
    found = await metrics(server)
    assert (found["fasti_draining"], found["fasti_draining_out"]) == (0, 0)
    drained = {"draining": True, "since": START, "out": 1}
    assert (await server.call("POST", "/v1/drain")).body == drained
    await server.pass_time(MINUTE_MS // 4)
    assert (await server.call("POST", "/v1/drain")).body == drained
    assert (await server.call("GET", "/readyz")).body == {"status": "draining", "draining": True}
    assert (await server.call("GET", "/livez")).body == {"status": "ok"}
    assert (await server.call("GET", "/v1/info")).body["draining"] is True
    found = await metrics(server)
    assert (found["fasti_draining"], found["fasti_draining_out"]) == (1, 1)
    await server.schedule("jobs/2")
    wanted = {"max": 1, "wait": 0}
    answer = await server.call("POST", "/v1/groups/workers/messages:lease", wanted)
    assert answer.body["messages"] == []
    ids = {"lease_ids": [lease["messages"][0]["lease_id"]]}
    assert (await server.call("POST", "/v1/groups/workers/messages:ack", ids)).body["acked"] == 1
    assert (await server.call("POST", "/v1/drain:cancel")).body == idle
    assert (await server.call("GET", "/readyz")).body == {"status": "ok"}
    answer = await server.call("POST", "/v1/groups/workers/messages:lease", wanted)
    assert [one["topic"] for one in answer.body["messages"]] == ["jobs/2"]


async def test_a_drain_that_a_stop_follows_is_not_cancelled(server: Running) -> None:
    server.app.core.groups.loans.drain.begin(server.clock.wall_ms(), is_last=True)
    refused = await server.call("POST", "/v1/drain:cancel", status=409)
    assert (refused.slug, "is stopping" in refused.body["detail"]) == ("wrong-state", True)
    assert (await server.call("POST", "/v1/drain")).body["draining"] is True


async def test_metrics_follow_what_happens(server: Running) -> None:
    await server.connect("c", "#")
    away, _ = await server.connect("away", "a")
    server.app.core.clients.leave(away, is_clean=False)
    for n in (30, 60, 90):
        await server.schedule(f"t/{n}", deliver_in=n, expires_in=20)
    await server.call("GET", "/v1/messages/nope", status=404)
    await server.call("GET", "/nope", status=404)
    before = await metrics(server)
    assert before["fasti_messages_pending"] == before['fasti_limit_used{name="wheel.max_entries"}'] == 3
    assert before["fasti_lateness_seconds_count"] == 0
    await server.pass_time(MINUTE_MS + 2)
    found = await metrics(server)
    assert {name: found[f"fasti_{name}"] for name in EXPECTED} == EXPECTED
    assert found['fasti_lateness_seconds_bucket{le="0.002"}'] == 1
    assert found['fasti_lateness_seconds_bucket{le="+Inf"}'] == found["fasti_lateness_seconds_count"] == 2
    assert found["fasti_lateness_seconds_sum"] == pytest.approx(30.004)
    assert found["fasti_commit_rows_count"] == found["fasti_commit_seconds_count"] > 0
    assert found['fasti_limit_used{name="tail.max_bytes"}'] > 1_000
    assert found["process_resident_memory_bytes"] > 1_000_000
    answers = 'fasti_http_answers_total{method="%s",route="%s",status="%d"}'
    assert found[answers % ("POST", "/v1/messages", 201)] == 3
    assert found[answers % ("GET", "/v1/messages/{id}", 404)] == 1
    assert found[answers % ("", "", 404)] == 1
    took = 'fasti_http_seconds_count{route="%s",status="%s"}'
    assert found[took % ("/v1/messages", "2xx")] == 3
    assert found[took % ("/v1/messages/{id}", "4xx")] == 1
    assert found["fasti_sync_seconds_count"] == found["fasti_commit_seconds_count"]
    assert found["fasti_sync_seconds_sum"] > 0
    assert found['fasti_turn_seconds_bucket{le="+Inf"}'] == found["fasti_turn_seconds_count"] > 3
    assert found["fasti_turn_seconds_sum"] > 0
    assert found['fasti_limit{name="limits.sessions"}'] == 100_000
    assert found['fasti_limit_used{name="limits.sessions"}'] == 2
    assert found['fasti_memory_bytes{part="sessions"}'] == 2 * 4_500
    assert found['fasti_memory_bytes{part="unread and unsent"}'] >= 0
    assert found['fasti_limit_used{name="limits.memory"}'] > 10 << 20
    (build,) = (name for name in found if name.startswith("fasti_build_info"))
    assert f'build="{form()}"' in build


async def test_what_is_cancelled_and_moved_is_counted(server: Running) -> None:
    ids = [await server.schedule(f"t/{n}", deliver_in=60) for n in range(5)]
    await server.call("DELETE", f"/v1/messages/{ids[0]}", status=204)
    await server.call("PATCH", f"/v1/messages/{ids[1]}", {"deliver_in": 90}, status=200)
    everything = {"filter": {"topic": "t/#"}}
    await server.call("POST", "/v1/messages:cancel", everything | {"dry_run": True}, status=200)
    await server.call("POST", "/v1/messages:reschedule", everything | {"shift": "PT1H"}, status=200)
    await server.call("POST", "/v1/messages:cancel", everything, status=200)
    found = await metrics(server)
    assert found["fasti_messages_cancelled_total"] == 1 + 4
    assert found["fasti_messages_moved_total"] == 1 + 4


EXPECTED = {
    "messages_accepted_total": 3,
    "messages_dispatched_total": 2,
    "messages_expired_total": 1,
    "messages_early_total": 0,
    "messages_pending": 1,
    "messages_held": 0,
    'limit_used{name="wheel.max_entries"}': 1,
    'limit_used{name="tail.max_entries"}': 2,
    'limit_used{name="slices.max"}': 1,
    "slices_expired_total": 0,
    "sessions": 2,
    "connections": 1,
    'limit_used{name="limits.subscriptions"}': 2,
    "in_flight": 1,
    "replay_queue": 0,
    'limit_used{name="limits.queued"}': 0,
    'limit_used{name="limits.queued_bytes"}': 0,
    "unreadable_stretches": 0,
    "unreadable_rows": 0,
    "groups_given_up": 0,
    "store_writable": 1,
    "draining": 0,
    "horizon_behind_seconds": 0,
    "wills_lost_total": 0,
    "messages_dropped_total": 0,
}
