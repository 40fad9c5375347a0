"""Where each session and group stands: which are told of, with what figures, under which labels."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from server.engine.clock import SimulatedClock
from server.http import backlog
from server.observe.metrics import Collected
from server.reports import status
from server.reports.status import LABEL_MAX, label_of, measured
from server.settings.config import Config
from tests.support.keys import KeysFile, with_keys

from ..conftest import MINUTE_MS, Running, running
from ..http.test_retries import fail


async def figures(server: Running) -> dict[str, float]:
    page = (await server.call("GET", "/metrics")).body.decode()
    pairs = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {name.removeprefix("fasti_"): float(value) for name, _, value in pairs}


async def test_a_group_with_nobody_there_is_behind(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    away, _ = await server.connect("away", "$share/away/a/#")
    await server.connect("here", "$share/here/a/#")
    server.app.core.clients.leave(away, is_clean=False)
    for n in range(3):
        await server.schedule(f"a/{n}", "x" * 400, deliver_in=60)
    await server.pass_time(5 * MINUTE_MS)
    found = await figures(server)
    gone, there = '{filter="a/#",group="away"}', '{filter="a/#",group="here"}'
    assert (found[f"group_lag_messages{gone}"], found[f"group_lag_is_exact{gone}"]) == (3, 1)
    assert (found[f"group_lag_seconds{gone}"], found[f"group_lag_messages{there}"]) == (240, 0)
    assert (found[f"group_in_flight{there}"], found[f"group_unacked_seconds{there}"]) == (3, 240)
    assert found[f"group_unacked_seconds{gone}"] == 0
    assert not any(name.startswith("session_") for name in found)
    monkeypatch.setattr(backlog, "LOOK_ROW_BYTES", 1)
    assert (await figures(server))[f"group_lag_is_exact{gone}"] == 0


async def test_a_group_is_told_of_with_its_members_and_what_came_again(server: Running) -> None:
    first, _ = await server.connect("w1", "$share/g/a/#")
    await server.schedule("a/0")
    await server.app.quiet()
    found = await figures(server)
    labels = '{filter="a/#",group="g"}'
    assert found[f"group_members{labels}"] == found[f"group_in_flight{labels}"] == 1
    assert (found['limit_used{name="limits.groups"}'], found["groups_without_consumers"]) == (1, 0)
    server.app.core.clients.leave(first, is_clean=False)
    assert (await figures(server))["groups_without_consumers"] == 1
    await server.connect("w2", "$share/g/a/#")
    await server.app.quiet()
    found = await figures(server)
    assert found[f"group_redeliveries_total{labels}"] == 1


async def test_a_group_is_told_of_with_its_retries(
    tmp_path: Path, config: Config, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read everything, and others are far back and lack nothing."""
    monkeypatch.setattr(status, "TOP", 1)
    async with running(tmp_path, config, clock) as server:
        for name in ("a", "b", "c", "d"):
            await server.call("PUT", f"/v1/groups/{name}", {"filter": f"{name}/#"}, status=201)
        await fail(server, "1", "2")
        await server.pass_time(MINUTE_MS // 2)
        found = await figures(server)
        labels = '{filter="jobs/#",group="workers"}'
        assert [name for name in found if name.startswith("group_retries{")] == [f"group_retries{labels}"]
        assert (found[f"group_retries{labels}"], found[f"group_retry_oldest_seconds{labels}"]) == (2, 30)
        await server.call("POST", "/v1/retries:drop", {"filter": {"group": "workers"}})
        found = await figures(server)
        assert sum(value for name, value in found.items() if name.startswith("group_retr")) == 0


async def test_a_group_is_told_of_with_its_keys(server: Running) -> None:
    await server.call("PUT", "/v1/groups/workers", {"filter": "jobs/#", "order": True}, status=201)
    await server.call("POST", "/v1/groups/workers/keys/a:hold")
    found = await figures(server)
    labels = '{filter="jobs/#",group="workers"}'
    assert [found[f"group_keys_{name}{labels}"] for name in ("blocked", "held")] == [1, 1]
    assert (found['limit_used{name="limits.ordering_keys"}'], found["groups_standing"]) == (1, 0)


async def test_what_nobody_asks_for_is_counted(server: Running) -> None:
    await server.schedule("a/1")
    await server.app.quiet()
    assert (await figures(server))["messages_unclaimed_total"] == 1


@pytest.mark.parametrize("top", [0, 2])
async def test_those_with_the_most_lag_are_told_of(
    tmp_path: Path, config: Config, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch, top: int
) -> None:
    monkeypatch.setattr(status, "TOP", top)
    async with running(tmp_path, config, clock) as server:
        for n in range(5):
            away, _ = await server.connect(f"c{n}", f"$share/g{n}/t/{n}")
            server.app.core.clients.leave(away, is_clean=False)
        for n in (3, 1):
            await server.schedule(f"t/{n}", deliver_in=60 * n)
        await server.pass_time(5 * MINUTE_MS)
        found = await figures(server)
        told = [name for name in found if name.startswith("group_lag_seconds{")]
        assert told == [f'group_lag_seconds{{filter="t/{n}",group="g{n}"}}' for n in (1, 3)][:top]
        assert found["sessions"] == 5


async def test_the_look_gives_turns_to_others(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        await server.connect(f"c{n}", "$share/g/t", "$share/h/t")
    steps = []

    class Counted:
        async def begin(self) -> None:
            steps.append(1)

        def is_over(self, count: int) -> bool:
            return True

    await server.app.status.look(Counted())  # type: ignore[arg-type]
    # The sessions, one by one; the groups, three times; their rows; their figures.
    assert len(steps) == (1 + 3) + 3 * (1 + 2) + 2 + 1


async def test_who_does_not_see_every_message_is_told_of_nobody(
    tmp_path: Path, config: Config, clock: SimulatedClock
) -> None:
    """A key for a/# need not know who else there is, what they listen to, nor how much they do."""
    file = KeysFile(tmp_path / "keys.toml")
    wide, narrow = file.add("wide", "read"), file.add("narrow", "read", deliver=["a/#"])
    counts = file.add("counts", "read", deliver=["$SYS/#"])
    async with running(tmp_path / "data", with_keys(config, file.path), clock) as server:
        await server.connect("c", "b/#", "$share/hidden/secret/#")
        pages = [
            (await server.call("GET", "/metrics", Authorization=f"Bearer {key}")).body.decode()
            for key in (wide, narrow, counts, wide)
        ]
        assert ["secret" in page for page in pages] == ["hidden" in page for page in pages]
        assert ["secret" in page for page in pages] == [True, False, False, True]
        assert ["fasti_sessions 1.0" in page for page in pages] == [True, False, True, True]
        families = {line.split()[2] for line in pages[1].splitlines() if line.startswith("# TYPE")}
        assert families == {"fasti_build_info", "fasti_horizon_behind_seconds"}


async def test_figures_are_written_out_in_a_thread(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,000 sessions and groups that is 40 ms."""
    threads = []
    write = Collected.text

    def text(found: Collected) -> bytes:
        threads.append(threading.current_thread())
        return write(found)

    monkeypatch.setattr(Collected, "text", text)
    assert (await figures(server))["sessions"] == 0
    assert threads not in ([], [threading.main_thread()])


def test_no_two_clients_have_one_label() -> None:
    assert label_of("meter-7") == "meter-7"
    long = ["x" * LABEL_MAX + end for end in "ab"]
    labels = {*map(label_of, long), label_of("\x01"), label_of("\\x01")}
    assert len(labels) == 4
    assert all(label.isprintable() and len(label) < LABEL_MAX + 20 for label in labels)
    for text in (*long, "\x01"):
        assert label_of(label_of(text)) != label_of(text)


async def test_a_label_is_escaped(server: Running) -> None:
    await server.connect("c", '$share/a"} 1\\/t')
    assert 'group_in_flight{filter="t",group="a\\"} 1\\\\"}' in await figures(server)


def test_how_much_disk_there_is(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_bytes(b"x" * 5_000)
    found = measured(tmp_path)
    assert found is not None
    assert found[0] >= 5_000
    assert 0 < found[1] <= os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize * 2
    assert measured(tmp_path / "nowhere") is None


async def test_the_disk_is_told_of(tmp_path: Path, config: Config, clock: SimulatedClock) -> None:
    store = replace(config.store, dir=str(tmp_path))
    async with running(tmp_path / "data", replace(config, store=store), clock) as server:
        found = await figures(server)
        assert found["store_bytes"] > 0
        assert found["disk_free_bytes"] > 0
