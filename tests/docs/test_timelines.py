"""docs/timelines.md: two servers behind nginx and HAProxy, with the files that the page names."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from server.codec.packets import Connack, Connect
from tests.support.http import http
from tests.support.mqtt import dial
from tests.support.ports import free_port
from tests.support.server import ServerProcess, run, served, serving

FILES = Path(__file__).parents[2] / "docs" / "deploy" / "timelines"
SETTINGS: dict[str, object] = {
    "limits.trusted_proxies": '["127.0.0.1/32"]',
    "mqtt.proxy_protocol": True,
    "http.hosts": '["example.com", "globex.example.com"]',
}
HERE, THERE = "example.com", "globex.example.com"


async def listens(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    return
            await asyncio.sleep(0.05)


def written(name: str, into: Path, changes: dict[str, str]) -> Path:
    """The file as it is printed, with the addresses of this machine."""
    text = (FILES / name).read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    (into / name).write_text(text, encoding="utf-8")
    return into / name


@asynccontextmanager
async def proxies(
    folder: Path, a: ServerProcess, b: ServerProcess
) -> AsyncIterator[tuple[str, tuple[str, int]]]:
    """(URL of HTTP, address of MQTT)."""
    web, mqtt = free_port(), free_port()
    config = written(
        "nginx.conf",
        folder,
        {
            "10.0.0.10:8080": a.url.removeprefix("http://"),
            "10.0.0.11:8080": b.url.removeprefix("http://"),
            "listen 80;": f"listen 127.0.0.1:{web};",
            "events {}": f"events {{}}\ndaemon off;\npid {folder}/nginx.pid;\nerror_log stderr;",
            "  map $uri": "  access_log off;\n"
            + "".join(
                f"  {kind}_temp_path {folder}/{kind};\n"
                for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            )
            + "  map $uri",
        },
    )
    balance = written(
        "haproxy.cfg",
        folder,
        {
            "10.0.0.10:1883": ":".join(map(str, a.mqtt)),
            "10.0.0.11:1883": ":".join(map(str, b.mqtt)),
            "bind :1883": f"bind 127.0.0.1:{mqtt}",
        },
    )
    nginx = await asyncio.create_subprocess_exec("nginx", "-c", config, "-p", folder, "-e", "stderr")
    haproxy = await asyncio.create_subprocess_exec("haproxy", "-db", "-q", "-f", balance)
    try:
        await listens(web)
        await listens(mqtt)
        yield f"http://127.0.0.1:{web}", ("127.0.0.1", mqtt)
    finally:
        for one in (nginx, haproxy):
            one.terminate()
            await one.wait()


@pytest.mark.process
@pytest.mark.skipif(
    shutil.which("nginx") is None or shutil.which("haproxy") is None,
    reason="nginx or haproxy is not installed",
)
async def test_two_timelines_behind_one_address(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        a, b = [
            await stack.enter_async_context(
                serving(tmp_path / str(number), settings={**SETTINGS, "store.number": number})
            )
            for number in (0, 1)
        ]
        url, mqtt = await stack.enter_async_context(proxies(tmp_path, a, b))
        web = await stack.enter_async_context(http(url))
        draft = {"topic": "orders/17", "payload": "hi", "deliver_in": 3_600}
        for host, number in ((HERE, 0), (THERE, 1)):
            made = await web.call("POST", "/v1/messages", draft, Host=host, status=201)
            name = made.body["id"]
            assert name[16:20] == f"000{number}"
            for asked in (HERE, THERE):  # the id leads to its timeline, whatever the host
                found = await web.call("GET", f"/v1/messages/{name}", Host=asked, status=200)
                assert found.body["id"] == name
            other = await stack.enter_async_context(http((b, a)[number].url))
            wrong = await other.call("GET", f"/v1/messages/{name}", status=421)
            assert wrong.slug == "other-timeline"
            assert f"store.number {number}" in wrong.body["detail"]
        for user, there in (("acme", a), ("globex", b)):
            peer = await dial(mqtt)
            peer.send(Connect(peer.level, f"of-{user}", True, 0, username=user))
            assert (await peer.take(Connack)).reason == 0
            own = await stack.enter_async_context(http(there.url))
            listed = (await own.call("GET", "/v1/sessions", status=200)).body["sessions"]
            assert [one["client_id"] for one in listed] == [f"of-{user}"]
            await peer.close()


@pytest.mark.process
def test_the_number_is_fixed_when_the_data_is_made(tmp_path: Path) -> None:
    for made, asked in ((3, 4), (0, 1)):
        data = tmp_path / str(made)
        with served(data, settings={"store.number": made}):
            pass
        ended = run("--data", str(data), settings={"store.number": asked})
        assert ended.returncode == 2
        assert f"store.number is {asked}, but this data was made with {made}" in ended.stderr
        with served(data, settings={"store.number": made}):
            pass
