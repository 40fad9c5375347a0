"""The command line clients of mosquitto, 3.1.1 and 5."""

import asyncio
import shutil
import subprocess
import time
from itertools import count as counter

import pytest

from tests.support.http import Http, http
from tests.support.server import ServerProcess

PUB, SUB = shutil.which("mosquitto_pub"), shutil.which("mosquitto_sub")
pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(not (PUB and SUB), reason="mosquitto_pub and mosquitto_sub are not installed"),
]


@pytest.fixture(params=["311", "mqttv5"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Mosquitto:
    """Runs the two programs against one server."""

    def __init__(self, server: ServerProcess, version: str) -> None:
        host, port = server.mqtt
        self._server = server
        self._where = ["-h", host, "-p", str(port), "-V", version]
        self._numbers = counter(1)

    def pub(
        self, topic: str, *options: str, message: str | None = "hi", stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        assert PUB
        body = [] if message is None else ["-m", message]
        command = [PUB, *self._where, "-t", topic, *body, *options]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=90, check=False)

    def sub(self, *options: str, count: int, wait_s: int = 60) -> subprocess.CompletedProcess[str]:
        """Until `count` messages have come."""
        assert SUB
        command = [SUB, *self._where, "-C", str(count), "-W", str(wait_s), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    async def listening(self, *options: str, count: int) -> "asyncio.Task[str]":
        """The same beside the test; its subscriptions stand when this returns."""
        process = await self.start("-C", str(count), "-W", "60", *options)

        async def rest() -> str:
            out, _ = await asyncio.wait_for(process.communicate(), 90)
            return out.decode()

        return asyncio.create_task(rest())

    async def start(self, *options: str) -> asyncio.subprocess.Process:
        """A mosquitto_sub whose subscriptions stand, as the server says."""
        assert SUB
        client_id = f"listener{id(self)}-{next(self._numbers)}"
        process = await asyncio.create_subprocess_exec(
            *[SUB, *self._where, "-i", client_id, *options], stdout=asyncio.subprocess.PIPE
        )
        async with http(self._server.url) as calls:
            for _ in range(3_000):
                answer = await calls.call("GET", f"/v1/sessions/{client_id}")
                if answer.status == 200 and len(answer.body["subscriptions"]) == options.count("-t"):
                    return process
                await asyncio.sleep(0.02)
        process.kill()
        await process.communicate()
        raise AssertionError("mosquitto_sub does not subscribe")


@pytest.fixture
def tools(server: ServerProcess, version: str) -> Mosquitto:
    return Mosquitto(server, version)


@pytest.mark.parametrize("qos", ["0", "1"])
async def test_there_and_back(tools: Mosquitto, name: str, qos: str) -> None:
    got = await tools.listening("-t", f"{name}/+/x", "-t", f"{name}/deep/#", "-q", qos, "-v", count=3)
    for topic in (f"{name}/a/x", f"{name}/a/y", f"{name}/deep", f"{name}/deep/er/x"):
        assert (await asyncio.to_thread(tools.pub, topic, "-q", qos, message=topic)).returncode == 0
    assert (await got).splitlines() == [
        f"{topic} {topic}" for topic in (f"{name}/a/x", f"{name}/deep", f"{name}/deep/er/x")
    ]


async def test_delayed(tools: Mosquitto, name: str, version: str) -> None:
    got = await tools.listening("-t", name, "-q", "1", count=1)
    started = time.time()
    assert (
        await asyncio.to_thread(tools.pub, f"$delayed/2/{name}", "-q", "1", message="late")
    ).returncode == 0
    assert (await got).strip() == "late"
    # The server's clock shows whole ms: a publish counts from the ms in which it came.
    assert time.time() - int(started * 1000) / 1000 >= 2.0


async def test_deliver_in(server: ServerProcess, name: str) -> None:
    tools = Mosquitto(server, "mqttv5")
    got = await tools.listening("-t", name, "-q", "1", "-F", "%P|%p", count=1)
    options = ["-D", "publish", "user-property"]
    done = await asyncio.to_thread(
        tools.pub, name, "-q", "1", *options, "deliver-in", "1s", *options, "a", "b"
    )
    assert done.returncode == 0, done
    properties, payload = (await got).strip().split("|")
    assert payload == "hi"
    assert "a:b" in properties
    assert "fasti-id:" in properties
    assert "deliver-in" not in properties


async def test_a_persistent_session_away_and_back(tools: Mosquitto, name: str, version: str) -> None:
    session = ["-i", name, "-c", "-q", "1", "-t", f"{name}/#"]
    if version == "mqttv5":
        session += ["-x", "600"]
    assert tools.sub(*session, "-E", count=1).returncode == 0
    lines = "\n".join(str(n) for n in range(50))
    assert tools.pub(f"{name}/a", "-q", "1", "-l", message=None, stdin=lines).returncode == 0
    assert tools.pub(f"$delayed/1/{name}/b", "-q", "1", message="delayed").returncode == 0
    await asyncio.sleep(1.2)
    got = tools.sub(*session, count=51)
    assert got.stdout.splitlines() == [*(str(n) for n in range(50)), "delayed"]


async def test_scheduled_over_http(tools: Mosquitto, name: str, web: Http) -> None:
    got = await tools.listening("-t", f"{name}/#", "-q", "1", "-v", count=2)
    await web.schedule(f"{name}/a", {"n": 1}, deliver_in="500ms")
    await web.schedule(f"{name}/b", "text")
    assert (await got).splitlines() == [f"{name}/b text", f'{name}/a {{"n": 1}}']


def test_refused(tools: Mosquitto, name: str, version: str) -> None:
    """A bad delay: a reason code at level 5; at 3.1.1 the connection is closed."""
    done = tools.pub(f"$delayed/x/{name}", "-q", "1")
    if version == "mqttv5":
        assert "topic name invalid" in done.stderr.lower()
    else:
        assert "connection was lost" in done.stderr.lower()


async def test_qos_2_both_ways(tools: Mosquitto, name: str) -> None:
    got = await tools.listening("-t", name, "-q", "2", "-F", "%q %p", count=3)
    for text in "abc":
        assert (await asyncio.to_thread(tools.pub, name, "-q", "2", message=text)).returncode == 0
    assert (await got).splitlines() == ["2 a", "2 b", "2 c"]


async def test_retained(tools: Mosquitto, name: str) -> None:
    assert tools.pub(name, "-q", "1", "-r", message="kept").returncode == 0
    got = tools.sub("-t", f"{name}/#", "-F", "%r %p", count=1)
    assert got.stdout.strip() == "1 kept"
    assert tools.pub(name, "-q", "1", "-r", "-n", message=None).returncode == 0
    assert tools.sub("-t", name, count=1, wait_s=1).stdout == ""


async def test_will(tools: Mosquitto, name: str) -> None:
    got = await tools.listening("-t", f"{name}/will", "-q", "1", count=1)
    will = ["--will-topic", f"{name}/will", "--will-payload", "gone", "--will-qos", "1"]
    dying = await tools.start("-t", f"{name}/x", *will)
    dying.kill()
    await dying.communicate()
    assert (await got).strip() == "gone"


async def test_shared(server: ServerProcess, name: str, version: str) -> None:
    """Two members that listen for two seconds: each message goes to one of them, at 3.1.1 too."""
    tools = Mosquitto(server, version)
    shared = ["-t", f"$share/g/{name}/#", "-q", "1", "-W", "2"]
    members = [await tools.listening(*shared, count=1_000) for _ in range(2)]
    lines = "\n".join(str(n) for n in range(200))
    done = await asyncio.to_thread(tools.pub, f"{name}/a", "-q", "1", "-l", message=None, stdin=lines)
    assert done.returncode == 0
    got = [(await member).splitlines() for member in members]
    assert sorted([*got[0], *got[1]], key=int) == [str(n) for n in range(200)]
    assert all(part == sorted(part, key=int) for part in got)
