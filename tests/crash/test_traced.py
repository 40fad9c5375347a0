"""An ack follows its sync, as the kernel sees it; and a sync that fails, in the real process."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from server.codec import wire
from server.codec.packets import (
    Ack,
    Publish,
    Suback,
    Subscribe,
    SubscribeOptions,
    Unsuback,
    Unsubscribe,
)
from server.settings.times import format_ms
from tests.support.http import Http, http
from tests.support.mqtt import Peer, dial, payloads, user, wall_ms
from tests.support.server import ServerProcess, run, serving

from .disks import LAG_MS, due_soon, reader_of
from .lag import lag_of
from .traced import CALLS, Answer, traced, unsynced

HOUR_MS = 3_600_000
EACH = 2
EVERY_HOUR = {"topic": "t", "payload": "x", "every": "1h"}


Answers = dict[str, Answer]


async def _accept(calls: Http, peer: Peer, tags: int) -> Answers:
    """Some messages by HTTP and MQTT: text in the log -> text in the answer."""
    items = [{"topic": "a", "payload": f"<one-{n}>", "deliver_in": "1h"} for n in range(tags)]
    posts = [calls.call("POST", "/v1/messages", item, status=201) for item in items]
    answers = await asyncio.gather(*posts)
    found = {str(item["payload"]): answer.body["id"] for item, answer in zip(items, answers, strict=True)}
    batch = [{"topic": "a", "payload": f"<batch-{n}>", "deliver_in": "1h"} for n in range(tags)]
    answer = await calls.schedule_many(batch)
    found |= {str(x["payload"]): name for x, name in zip(batch, answer.body["ids"], strict=True)}
    for number in range(tags):
        tag = f"<mqtt-{number}>"
        due = (("deliver-at", format_ms(wall_ms() + HOUR_MS)),)
        qos = 1 + number % 2
        packet_id = peer.put("a", tag, qos, user_properties=due)
        ack = await peer.take(Ack)
        name = user(ack, "fasti-id")
        assert name is not None
        found[tag] = name
        if qos == 2:
            peer.send(Ack(wire.PUBREL, packet_id))
            await peer.take(Ack)
    return {text: Answer(look) for text, look in found.items()}


class Changes:
    """Everything else that is answered when it is on disk, one after the other.

    A row that is changed is named by something that nothing else has: a topic, a schedule, a session of its
    own for each exchange. What it was before is made by `prepare`, which is not traced.
    """

    def __init__(self, server: ServerProcess, calls: Http) -> None:
        self._server = server
        self._calls = calls
        self._ids: dict[str, str] = {}
        self._peers: dict[str, Peer] = {}
        self._answers: Answers = {}
        self._nths: Counter[str] = Counter()

    async def prepare(self) -> None:
        for number in range(EACH):
            for tag in (f"_cancel-{number}_", f"_move-{number}_"):
                self._ids[tag] = await self._calls.schedule(tag, "x", deliver_in="1h")
            for part in range(number + 2):
                await self._calls.schedule(f"_bulk-{number}_/{part}", "x", deliver_in="1h")
            for tag in (f"_unschedule-{number}_", f"_pause-{number}_"):
                await self._calls.call("PUT", f"/v1/schedules/{quote(tag)}", EVERY_HOUR, status=201)
            for kind in ("subscribe", "unsubscribe", "pubrec", "pubcomp", "pubrel", "gate"):
                await self._connect(f"_{kind}-{number}_")
            self._peers[f"_pubcomp-{number}_"].send(_exactly(0x6900 + number, "x"))
            await self._peers[f"_pubcomp-{number}_"].take(Ack)
            await self._peers[f"_unsubscribe-{number}_"].subscribe("x/y")
            for kind in ("pubrel", "gate"):
                await self._peers[f"_{kind}-{number}_"].subscribe(f"{kind}/{number}", qos=2)
            await self._calls.schedule(f"pubrel/{number}", "x", qos=2)
            assert (await self._peers[f"_pubrel-{number}_"].take(Publish)).packet_id == 1

    async def make(self) -> Answers:
        """Text in the log -> its answer."""
        for number in range(EACH):
            await self._http(number)
            await self._mqtt(number)
        return self._answers

    async def _http(self, number: int) -> None:
        call = self._calls.call
        tag = f"_cancel-{number}_"
        await call("DELETE", f"/v1/messages/{self._ids[tag]}", status=204)
        self._expect(tag, "204 No Content")
        tag = f"_move-{number}_"
        await call("PATCH", f"/v1/messages/{self._ids[tag]}", {"deliver_in": "2h"}, status=200)
        self._expect(tag, self._ids[tag])
        wish = {"filter": {"topic": f"_bulk-{number}_/+"}}
        changed = (await call("POST", "/v1/messages:cancel", wish, status=200)).body["changed"]
        assert changed == number + 2
        for part in range(changed):
            self._answers[f"_bulk-{number}_/{part}"] = Answer(f'\\"changed\\":{changed}')
        tag = f"_schedule-{number}_"
        await call("PUT", f"/v1/schedules/{quote(tag)}", EVERY_HOUR, status=201)
        self._expect(tag, f'\\"name\\":\\"{tag}')
        tag = f"_unschedule-{number}_"
        await call("DELETE", f"/v1/schedules/{quote(tag)}", status=204)
        self._expect(tag, "204 No Content")
        tag = f"_pause-{number}_"
        await call("POST", f"/v1/schedules/{quote(tag)}:pause", status=200)
        self._expect(tag, f'\\"name\\":\\"{tag}')

    async def _mqtt(self, number: int) -> None:
        low = chr(ord("a") + number)
        peer = self._peers[f"_subscribe-{number}_"]
        peer.send(Subscribe(0x5300 + ord(low), (("x/y", SubscribeOptions(1)),)))
        await peer.take(Suback)
        self._expect(f"_subscribe-{number}_", f"\\4S{low}")
        peer = self._peers[f"_unsubscribe-{number}_"]
        peer.send(Unsubscribe(0x5500 + ord(low), ("x/y",)))
        await peer.take(Unsuback)
        self._expect(f"_unsubscribe-{number}_", f"\\4U{low}")
        peer = self._peers[f"_pubrec-{number}_"]
        peer.send(_exactly(0x5200 + ord(low), "x"))
        assert (await peer.take(Ack)).kind == wire.PUBREC
        self._expect(f"_pubrec-{number}_", f"P\\2R{low}")
        peer = self._peers[f"_pubcomp-{number}_"]
        peer.send(Ack(wire.PUBREL, 0x6900 + number))
        assert (await peer.take(Ack)).kind == wire.PUBCOMP
        self._expect(f"_pubcomp-{number}_", f"p\\2i\\{number}")
        peer = self._peers[f"_pubrel-{number}_"]
        peer.send(Ack(wire.PUBREC, 1))
        assert (await peer.take(Ack)).kind == wire.PUBREL
        self._expect(f"_pubrel-{number}_", "b\\2\\0\\1")
        await self._calls.schedule(f"gate/{number}", f"<behind-{number}>", qos=2)
        await self._peers[f"_gate-{number}_"].take(Publish)
        self._expect(f"_gate-{number}_", f"<behind-{number}>")

    async def _connect(self, client: str) -> None:
        self._peers[client] = peer = await dial(self._server.mqtt)
        await peer.connect(client, clean=False, session_expiry=600)

    def _expect(self, text: str, look: str) -> None:
        self._nths[look] += 1
        self._answers[text] = Answer(look, self._nths[look])


def _exactly(packet_id: int, text: str) -> Publish:
    return Publish(b"nowhere", text.encode(), 2, packet_id=packet_id)


async def _accepting(server: ServerProcess, calls: Http, trace: Path) -> Answers:
    peer = await dial(server.mqtt)
    await peer.connect("writer")
    async with traced(server.pid, trace, "-e", f"trace={CALLS}", *HELD):
        answers = await _accept(calls, peer, 6)
    peer.drop()
    return answers


async def _changing(server: ServerProcess, calls: Http, trace: Path) -> Answers:
    changes = Changes(server, calls)
    await changes.prepare()
    async with traced(server.pid, trace, "-e", f"trace={CALLS}", *HELD):
        return await changes.make()


HELD = ("-e", "inject=fdatasync,fsync:delay_enter=5000")
"""Each sync takes 5 ms more, so that an answer too early is seen on any disk."""
Work = Callable[[ServerProcess, Http, Path], Awaitable[Answers]]


async def _traced_answers(tmp_path: Path, work: Work, *program: str) -> tuple[Answers, list[str]]:
    server = ServerProcess(tmp_path / "data", program=program)
    trace = tmp_path / "trace"
    try:
        await server.ready()
        async with http(server.url) as calls:
            answers = await work(server, calls, trace)
    finally:
        server.kill()
    return answers, unsynced(trace.read_text(errors="replace"), answers)


@pytest.mark.parametrize("work", [_accepting, _changing])
async def test_no_answer_leaves_before_its_sync_has_ended(
    tmp_path: Path, work: Work, record_property: Callable[[str, object], None]
) -> None:
    answers, faults = await _traced_answers(tmp_path, work, "server")
    kinds = Counter(_kind(text) for text in answers)
    record_property("counted", f"{kinds.total()} answers after their sync: {dict(kinds)}")
    assert faults == []


@pytest.mark.parametrize("work", [_accepting, _changing])
async def test_a_server_that_answers_before_the_sync_is_caught(tmp_path: Path, work: Work) -> None:
    """With every kind of answer."""
    planted = "tests.support.planted", "answered_before_the_sync"
    answers, faults = await _traced_answers(tmp_path, work, *planted)
    caught = {_kind(fault) for fault in faults if "before it was synced" in fault}
    assert caught == {_kind(text) for text in answers}, faults


def _kind(text: str) -> str:
    return text[1:].partition("-")[0]


def test_what_is_written_into_a_file_is_no_answer() -> None:
    """The engine tells its figures in its LOG, among them `Rblob(GB)`."""
    row = '7 write(9</data/000004.log>, "_pubrec-1_\\0Rb", 12) = 12\n'
    answer = '7 write(5<socket:[8]>, "P\\2Rb", 4) = 4\n'
    trace = f"""7 write(4</data/LOG>, "KeyIn KeyDrop Rblob(GB) Wblob(GB)", 33) = 33
{row}8 fdatasync(9</data/000004.log>) = 0
{answer}"""
    assert unsynced(trace, {"_pubrec-1_": Answer("Rb")}) == []
    assert unsynced(row + answer, {"_pubrec-1_": Answer("Rb")}) == [
        "_pubrec-1_ was answered before it was synced"
    ]


@pytest.mark.parametrize("nth", [1, 3])
async def test_a_sync_that_fails(tmp_path: Path, nth: int) -> None:
    """EIO: what waits for it is answered 503, what is answered after is there, also after a kill."""
    data = tmp_path / "data"
    acked, refused = [], 0
    async with serving(data) as server, http(server.url) as calls:
        fault = f"inject=fdatasync,fsync:error=EIO:when={nth}..{nth + 1}"
        async with traced(server.pid, tmp_path / "trace", "-e", "trace=fdatasync,fsync", "-e", fault):
            async with asyncio.timeout(60):
                while not refused or not acked or acked[-1] is None:
                    answer = await calls.call(
                        "POST", "/v1/messages", {"topic": "a", "payload": "x", "deliver_in": "1h"}
                    )
                    assert answer.status in (201, 503), answer
                    refused += answer.status == 503
                    acked.append(answer.body["id"] if answer.status == 201 else None)
                    if answer.status == 503:
                        await asyncio.sleep(0.05)  # it opens its store again in a second
        server.kill()
    async with serving(data) as server, http(server.url) as calls:
        there = {row["id"] for row in await calls.listed("state=pending")}
        assert {name for name in acked if name} <= there
        assert await server.stopped() == 0
    assert run("verify", "--data", str(data)).returncode == 0


async def test_a_sync_that_takes_a_second(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Writes wait for it; deliveries, look-ups and lists do not."""
    async with serving(tmp_path / "data") as server, http(server.url) as calls:
        reader = await reader_of(server)
        name = await calls.schedule("later", "x", deliver_in="1h")
        soon = await due_soon(calls, 30)
        slow = ("-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=1000000")
        async with traced(server.pid, tmp_path / "trace", *slow), lag_of(server.url) as lag:
            started = time.monotonic()
            await calls.schedule("later", "waits", deliver_in="1h")
            assert time.monotonic() - started >= 1
            writing = asyncio.create_task(calls.schedule("later", "waits too", deliver_in="1h"))
            reads = 0
            while not writing.done():
                await calls.call("GET", f"/v1/messages/{name}", status=200)
                await calls.call("GET", "/v1/messages?limit=10", status=200)
                reads += 1
            await writing
            assert payloads(await reader.take_many(30)) == soon
        reader.drop()
    record_property("counted", f"{reads} look-ups and lists while one write waited for its sync; {lag}")
    assert reads > 10
    assert lag.at(1) < LAG_MS, f"the loop waits for the disk: {lag}"
