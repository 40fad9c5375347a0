"""Heads and bodies as bytes, without a socket: what is refused, and where a body ends."""

import pytest

from server.http.framing import Body, FramingError
from server.http.heads import HEAD_MAX, HEADERS_MAX, LINE_MAX, Head, check_begun, read_head, without_upgrade
from server.http.problems import Problem

SIZES = ("+1", "-1", "1, 1", "0x1", "", "9" * 16)
CODINGS = ("gzip", "gzip, chunked", "chunked, gzip", "identity", "x")


def head(first: str = "GET /v1/messages HTTP/1.1", *lines: str, host: str | None = "Host: a") -> bytes:
    return "\r\n".join([first, *([host] if host else []), *lines, "", ""]).encode("latin-1")


def status_of(data: bytes) -> int:
    with pytest.raises(Problem) as caught:
        read_head(data)
    return caught.value.status


def test_what_a_head_says() -> None:
    data = head("PUT /x?y=%20 HTTP/1.1", "Content-Length: 12 ", "origin:\thttp://a", "Sec-Fetch-Site: none")
    assert read_head(data) == Head("PUT", "a", "http://a", "none", 12, has_upgrade=False)
    assert read_head(head()).length == 0
    assert read_head(head("POST / HTTP/1.1", "Transfer-Encoding: Chunked")).length is None
    assert read_head(head("GET / HTTP/1.0", host=None)).host == ""


def test_an_upgrade_is_passed_over() -> None:
    data = head("GET / HTTP/1.1", "UPGRADE: h2c", "X-Upgrade: x", "upgrade:")
    assert read_head(data).has_upgrade
    assert without_upgrade(data) == head("GET / HTTP/1.1", "X-Upgrade: x")


@pytest.mark.parametrize(
    "data",
    [
        head(host="Host: 127.0.0.1:8080"),
        head(host="Host: [::1]:8080"),
        head(host="Host: my_host.example"),
        head("OPTIONS * HTTP/1.1"),
        head("GET http://A/x HTTP/1.1"),
        head("GET / HTTP/1.1", "Expect: 100-Continue", "Content-Length: 1"),
        head("GET / HTTP/1.0", "Expect: a miracle", "Content-Length: 1"),
        head("GET / HTTP/1.1", "Content-Encoding: GZIP", "Content-Length: 1"),
        head("GET / HTTP/1.1", "Content-Encoding: br"),
        head("GET / HTTP/1.1", "X: \xe4\t ", "X: twice", "Empty:"),
    ],
)
def test_what_is_taken(data: bytes) -> None:
    assert read_head(data)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head("NONSENSE"), 400),
        (head("GET /"), 400),
        (head("GET  / HTTP/1.1"), 400),
        (head("GET / HTTP/1.1 "), 400),
        (head("GET a HTTP/1.1"), 400),
        (head("GET * HTTP/1.1"), 400),
        (head("GET /\xff HTTP/1.1"), 400),
        (head("GET http://b/ HTTP/1.1"), 400),
        (head("G\xe4T / HTTP/1.1"), 400),
        (head("GET / HTTP/1.1", "X : a"), 400),
        (head("GET / HTTP/1.1", "no header"), 400),
        (head("GET / HTTP/1.1", " folded: a"), 400),
        (head("GET / HTTP/1.1", "X: a\0b"), 400),
        (head("GET / HTTP/1.1", "X: a\nY: b"), 400),
        (head("GET / HTTP/1.1", "X: a\rb"), 400),
        (head(host=None), 400),
        (head("GET / HTTP/1.1", "Host: a"), 400),
        (head("GET / HTTP/1.0", "Host: a"), 400),
        *((head(host=f"Host:{host}"), 400) for host in ("", " ", "a b", "a/", "a@b", "a:x", "a:123456")),
        *((head("POST / HTTP/1.1", f"Content-Length: {size}"), 400) for size in SIZES),
        (head("POST / HTTP/1.1", "Content-Length: 1", "Content-Length: 1"), 400),
        (head("POST / HTTP/1.1", "Content-Length: 1", "Transfer-Encoding: chunked"), 400),
        (head("POST / HTTP/1.0", "Transfer-Encoding: chunked"), 400),
        (head("POST / HTTP/1.1", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400),
        (head("GET / HTTP/1.1", "Origin: a", "Origin: b"), 400),
        (head("GET /" + "a" * LINE_MAX + " HTTP/1.1"), 414),
        (head("POST / HTTP/1.1", "Content-Encoding: br", "Content-Length: 1"), 415),
        (head("POST / HTTP/1.1", "Content-Encoding: gzip, gzip", "Content-Length: 1"), 415),
        (head("POST / HTTP/1.1", "Content-Encoding: compress", "Transfer-Encoding: chunked"), 415),
        (head("POST / HTTP/1.1", "Expect: a miracle", "Content-Length: 1"), 417),
        (head("GET / HTTP/1.1", "X: " + "a" * LINE_MAX), 431),
        (head("GET / HTTP/1.1", *(["X: a"] * HEADERS_MAX)), 431),
        (head("CONNECT a:443 HTTP/1.1"), 501),
        (head("BREW / HTTP/1.1"), 501),
        (head("get / HTTP/1.1"), 501),
        *((head("POST / HTTP/1.1", f"Transfer-Encoding: {coding}"), 501) for coding in CODINGS),
        *((head(f"GET / HTTP/{version}"), 505) for version in ("0.9", "1.2", "2.0", "3.0")),
    ],
)  # fmt: skip
def test_what_is_refused(data: bytes, status: int) -> None:
    assert status_of(data) == status


@pytest.mark.parametrize("data", [head(), head("PATCH /x HTTP/1.1", "Content-Length: 3")])
def test_every_beginning_of_a_head_may_become_one(data: bytes) -> None:
    for stop in range(len(data)):
        check_begun(data[:stop])


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00", 400),
        (b"\x10\x20\x00\x04MQTT", 400),
        (b"GET / HTTP/1.1\n\n", 400),
        (b"GET /\r\n", 400),
        (b"GET /" + b"a" * LINE_MAX, 414),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * HEAD_MAX, 431),
        (b"PRI * HTTP/2.0\r\n", 505),
    ],
)
def test_what_cannot_become_a_head_is_refused_before_it_ends(data: bytes, status: int) -> None:
    with pytest.raises(Problem) as caught:
        check_begun(data)
    assert caught.value.status == status


CHUNKS = b"3\r\nabc\r\n0005;name=value\r\n12345\r\n0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_where_chunks_end(step: int) -> None:
    body, taken = Body(None), 0
    data = CHUNKS + b"GET /"
    for at in range(0, len(data), step):
        assert not body.is_done or taken == len(CHUNKS)
        if not body.is_done:
            taken += body.feed(data[at : at + step])
    assert (body.is_done, taken) == (True, len(CHUNKS))


def test_no_chunks_end_early() -> None:
    for stop in range(len(CHUNKS)):
        body = Body(None)
        assert body.feed(CHUNKS[:stop]) == stop
        assert not body.is_done


@pytest.mark.parametrize(
    "data",
    [
        b"x\r\n",
        b"-1\r\n",
        b"\r\n",
        b"3\n",
        b"123456789\r\n",
        b"1;" + b"a" * 2_000,
        b"0\r\n" + b"T: x\r\n" * 2_000,
        b"1\r\na\r\n" * 3_000,
    ],
)
def test_what_are_no_chunks(data: bytes) -> None:
    with pytest.raises(FramingError):
        Body(None).feed(data)


def test_lines_in_chunks_are_not_too_small() -> None:
    line = b'{"topic":"a/b","payload":1,"deliver_in":"5m"}\n'
    assert Body(None).feed(b"%x\r\n%b\r\n" % (len(line), line) * 10_000)


def test_where_a_length_ends() -> None:
    assert Body(0).is_done
    assert not Body(None).is_done
    body = Body(5)
    assert [body.feed(b"abc"), body.is_done, body.feed(b"defg"), body.is_done] == [3, False, 2, True]
