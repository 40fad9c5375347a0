"""What a foreign page can do to a server on its user's machine: nothing. And what a page of one's own can."""

import asyncio

import pytest

from ..conftest import TOGETHER, Answer, Running, until, with_settings

EVIL = "https://evil.example"
TIMING = {"cron": "@daily", "timezone": "UTC", "topic": "a"}
MESSAGE = {"topic": "a", "payload": 1, "deliver_in": "1h"}
CHANGES = [
    ("POST", "/v1/schedules/nightly:pause", None),
    ("POST", "/v1/schedules/nightly:resume", None),
    ("POST", "/v1/schedules/nightly:trigger", None),
    ("DELETE", "/v1/schedules/nightly", None),
    ("PUT", "/v1/schedules/nightly", TIMING),
    ("DELETE", "/v1/sessions/c", None),
    ("POST", "/v1/messages", MESSAGE),
    ("POST", "/v1/messages:batch", [MESSAGE]),
    ("POST", "/v1/clock:advance", {"by": "1h"}),
]
"""What pages can send, too: without a body, or with one that claims to be text."""


@TOGETHER
@pytest.mark.long
@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL, "Sec_Fetch_Site": "cross-site"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site"},
    ],
)
async def test_a_foreign_page_changes_nothing(
    lasting: Running, method: str, path: str, body: object, headers: dict[str, str]
) -> None:
    await lasting.connect("c")
    assert (await lasting.call("PUT", "/v1/schedules/nightly", TIMING, status=None)).status in (200, 201)
    before = (await lasting.call("GET", "/v1/schedules/nightly")).body
    answer = await lasting.call(method, path, body, status=403, **headers)
    assert answer.slug == "foreign-origin"
    assert (await lasting.call("GET", "/v1/schedules/nightly")).body == before
    assert (await lasting.call("GET", "/v1/sessions/c")).status == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_page_under_another_name_gets_nothing(server: Running, method: str) -> None:
    body = MESSAGE if method == "POST" else None
    for headers in ({}, {"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "same-origin"}):
        answer = await server.call(method, "/v1/messages", body, status=421, Host="evil.example", **headers)
        assert answer.slug == "foreign-host"


async def test_the_quick_path_knows_the_names_too(server: Running) -> None:
    """One connection after the other: what is remembered of one call says nothing of the next."""
    own = f"localhost:{server.http.server.front_port}"  # type: ignore[attr-defined]
    for host, status in ((own, 201), ("localhost", 201), ("localhost:1", 421), (own, 201)):
        await server.call("POST", "/v1/messages", MESSAGE, status=status, Host=host)


async def test_pages_of_its_own_may(server: Running) -> None:
    own = f"http://127.0.0.1:{server.http.server.front_port}"  # type: ignore[attr-defined]
    await server.call("POST", "/v1/messages", MESSAGE, status=201, Origin=own, Sec_Fetch_Site="same-origin")
    answer = await server.call("GET", "/v1/messages", Origin=EVIL)
    assert not opened(answer)


@pytest.mark.parametrize("path", ["/livez", "/nowhere", "/v1/messages:export", "/docs"])
async def test_no_library_is_named(server: Running, path: str) -> None:
    async with server.http.request("GET", path) as answer:
        assert answer.headers.getall("Server") == ["fasti"]
        assert "Vary" not in answer.headers


def opened(answer: Answer) -> set[str]:
    return {name.lower() for name in answer.headers if name.lower().startswith("access-control-")}


async def preflight(server: Running, origin: str, status: int) -> Answer:
    return await server.call(
        "OPTIONS", "/v1/messages", status=status, Origin=origin, Access_Control_Request_Method="POST"
    )


async def test_nobody_is_told_that_it_may(server: Running) -> None:
    assert not opened(await preflight(server, EVIL, 405))


@with_settings(http={"origins": ("https://app.example",), "hosts": ("fasti.example",)})
class TestNamed:
    async def test_a_page_that_is_named_may(self, server: Running) -> None:
        app = "https://app.example"
        answer = await preflight(server, app, 204)
        assert answer.headers["Access-Control-Allow-Origin"] == app
        assert "POST" in answer.headers["Access-Control-Allow-Methods"]
        assert "Idempotency-Key" in answer.headers["Access-Control-Allow-Headers"]
        more = {"Origin": app, "Sec_Fetch_Site": "cross-site", "Host": "fasti.example"}
        answer = await server.call("POST", "/v1/messages", MESSAGE, status=201, **more)
        assert answer.headers["Access-Control-Allow-Origin"] == app
        assert "Location" in answer.headers["Access-Control-Expose-Headers"]
        assert "Origin" in answer.headers["Vary"]
        for path, status in (("/v1/messages/x", 404), ("/nowhere", 404), ("/v1/messages:export", 200)):
            answer = await server.call("GET", path, status=status, **more)
            assert answer.headers["Access-Control-Allow-Origin"] == app

    async def test_what_is_open_to_some_says_that_it_depends(self, server: Running) -> None:
        for more in ({}, {"Origin": EVIL}, {"Origin": "https://app.example"}):
            answer = await server.call("GET", "/v1/messages", **more)
            assert answer.headers["Vary"] == "Origin"
            assert bool(opened(answer)) is (more.get("Origin") == "https://app.example")

    @pytest.mark.parametrize(
        ("head", "status"),
        [
            (
                "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nORIGIN:\thttps://app.example\r\nContent-L",
                408,
            ),
            ("POST / HTTP/1.1\r\nHost: localhost\r\nOrigin: {}\r\nContent-Length: 999999999\r\n\r\n", 413),
            ("POST / HTTP/1.1\r\nHost: localhost\r\nOrigin: {}\r\nExpect: it\r\n\r\n", 417),
            ("POST / HTTP/1.1\r\nHost: evil.example\r\nOrigin: {}\r\n\r\n", 421),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: {}\r\n" + "a: b\r\n" * 101 + "\r\n", 431),
            ("GET / HTTP/1.1\r\nOrigin: {}\r\nHost: localhost\r\nX: " + "a" * 17_000, 431),
            ("BREW / HTTP/1.1\r\nHost: localhost\r\nOrigin: {}\r\n\r\n", 501),
            ("GET / HTTP/1.2\r\nHost: localhost\r\nOrigin: {}\r\n\r\n", 505),
        ],
    )
    async def test_a_page_can_read_why_it_is_refused(self, server: Running, head: str, status: int) -> None:
        at = server.front
        for origin, is_open in (("https://app.example", True), ("https://evil.example", False)):
            reader, writer = await asyncio.open_connection("127.0.0.1", at.front_port)
            writer.write(head.replace("https://app.example", "{}").format(origin).encode())
            if status == 408:
                await until(lambda: any(one.held_bytes for one in at.listener.crowd))
                now = asyncio.get_running_loop().time()
                at.listener.crowd.look(now)
                at.listener.crowd.look(now + 11)
            async with asyncio.timeout(30):
                said = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            writer.close()
            assert int(said[0].split()[1]) in ((status,) if is_open else (status, 403))
            headers = dict(line.split(": ", 1) for line in said[1:-2])
            assert headers.get("Access-Control-Allow-Origin") == (origin if is_open else None)
            assert headers["Vary"] == "Origin"

    async def test_others_still_may_not(self, server: Running) -> None:
        assert not opened(await preflight(server, EVIL, 405))
        await server.call("POST", "/v1/messages", MESSAGE, status=403, Origin="https://app.example:8443")
