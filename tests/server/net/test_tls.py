"""Certificates: taken into use, replaced while the server runs, refused; and those of MQTT clients."""

import asyncio
import base64
import logging
import os
import shutil
import signal
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from server.codec.packets import Connect
from server.mqtt.frames import BINARY
from server.net import lingering
from server.net.revoked import certificate_id_of, revoked_in
from server.net.tls import Certificates, Files, http_certificates, mqtt_certificates
from server.settings.config import Config, ConfigError
from server.settings.reading import load
from server.settings.watch import Watch
from tests.support.encode import encode
from tests.support.rig import config
from tests.support.served import TLS, Served, everywhere, serve, until
from tests.support.server import ServerProcess, environment, run

from ..mqtt.test_links import REQUEST, masked

CERT, OTHER = "cert.pem", "other-cert.pem"


def put(folder: Path, cert: str = CERT, key: str = "key.pem") -> None:
    """This pair as the files that a server reads."""
    shutil.copy(TLS / cert, folder / "now.pem")
    shutil.copy(TLS / key, folder / "now-key.pem")
    later = os.stat(folder / "now.pem").st_mtime_ns + len(list(folder.iterdir()))
    os.utime(folder / "now.pem", ns=(later, later))


def shown(at: tuple[str, int]) -> str:
    """Which of our certificates is shown there."""
    told = ssl.get_server_certificate(at, timeout=60)
    (name,) = [name for name in (CERT, OTHER) if (TLS / name).read_text().strip() == told.strip()]
    return name


class Spoken:
    """Handshakes in memory."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates

    def shown(self) -> str:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = self.certificates.context().wrap_bio(to_server, to_client, server_side=True)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        client = context.wrap_bio(to_client, to_server)
        for _ in range(4):
            for side in (client, server):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        told = ssl.DER_cert_to_PEM_cert(client.getpeercert(binary_form=True) or b"")
        (name,) = [name for name in (CERT, OTHER) if (TLS / name).read_text().strip() == told.strip()]
        return name


@pytest.mark.long
async def test_a_pair_that_is_replaced_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    put(tmp_path)
    made = Certificates("http.tls_cert", Files(str(tmp_path / "now.pem"), str(tmp_path / "now-key.pem")))
    watch = Watch([made], lambda: None)

    async def look() -> None:
        for _ in range(2):  # what changes has to stand still
            await watch.look(is_forced=False)

    assert Spoken(made).shown() == CERT
    await look()
    assert caplog.text == ""
    shutil.copy(TLS / OTHER, tmp_path / "now.pem")
    await look()
    stays = "http.tls_cert: not reloaded, the old content stays in force: cannot be used: "
    assert stays + "key values mismatch" in caplog.text
    assert Spoken(made).shown() == CERT
    caplog.clear()
    await look()
    assert caplog.text == ""
    put(tmp_path, OTHER, "other-key.pem")
    await look()
    assert "http.tls_cert: reloaded" in caplog.text
    assert Spoken(made).shown() == OTHER
    (tmp_path / "now.pem").unlink()
    await look()
    assert stays + f"{tmp_path}/now.pem: No such file" in caplog.text
    assert Spoken(made).shown() == OTHER
    caplog.clear()
    put(tmp_path)
    await watch.look(is_forced=True)
    await watch.look(is_forced=True)
    assert caplog.text.count("reloaded") == 2
    assert Spoken(made).shown() == CERT


def test_what_cannot_be_used_is_named() -> None:
    http = replace(Config().http, tls_cert=str(TLS / CERT), tls_key=str(TLS / "other-key.pem"))
    with pytest.raises(ConfigError) as caught:
        http_certificates(replace(Config(), http=http))
    assert caught.value.key == "http.tls_cert"
    with pytest.raises(ConfigError) as caught:
        mqtt_certificates(config(tls_cert="nowhere.pem"))
    assert caught.value.key == "mqtt.tls_cert"
    assert str(caught.value) == "mqtt.tls_cert: cannot be used: nowhere.pem: No such file or directory"
    assert http_certificates(Config()) is None
    assert mqtt_certificates(Config()) is None


@pytest.mark.process
@pytest.mark.parametrize("more", [[], ["--check"]])
def test_the_start_is_refused(tmp_path: Path, more: list[str]) -> None:
    settings = {"http.tls_cert": TLS / CERT, "http.tls_key": TLS / "other-key.pem"}
    ended = run("--data", str(tmp_path / "data"), *more, settings=settings)
    assert ended.returncode == 2
    assert "http.tls_cert: cannot be used: key values mismatch" in ended.stderr


def wait_for(server: ServerProcess, *lines: str) -> None:
    """Until the server has logged these."""
    deadline = time.monotonic() + 60
    while not all(line in server.output for line in lines):
        assert time.monotonic() < deadline, server.output
        time.sleep(0.05)


@pytest.mark.process
def test_a_process_speaks_tls_and_takes_new_certificates(tmp_path: Path) -> None:
    """Told to, by a signal, and when it finds by itself that the files have changed."""
    put(tmp_path)
    pair = {"tls_cert": tmp_path / "now.pem", "tls_key": tmp_path / "now-key.pem"}
    settings = {f"{door}.{name}": path for door in ("http", "mqtt") for name, path in pair.items()}
    server = ServerProcess(
        tmp_path / "data", "--mqtt", "mqtts://127.0.0.1:0", settings={**settings, "spark.enabled": "off"}
    )
    try:
        server.wait_ready()
        assert [shown(server.http), shown(server.mqtt)] == [CERT, CERT]
        context = ssl.create_default_context(cafile=str(TLS / CERT))
        with (
            socket.create_connection(server.http, timeout=60) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as one,
        ):
            request = b"GET /livez HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % server.http[1]
            one.sendall(request)
            assert one.recv(65_536).startswith(b"HTTP/1.1 200 ")
            put(tmp_path, OTHER, "other-key.pem")
            os.kill(server.pid, signal.SIGHUP)
            wait_for(server, "http.tls_cert: reloaded", "mqtt.tls_cert: reloaded")
            assert [shown(server.http), shown(server.mqtt)] == [OTHER, OTHER]
            one.sendall(request)
            assert one.recv(65_536).startswith(b"HTTP/1.1 200 ")
        with socket.create_connection(server.http, timeout=60) as plain:
            plain.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert plain.recv(65_536) == (
                b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n"
                b"content-length: 56\r\n\r\nThis port speaks TLS: use https://, wss:// or mqtts://.\n"
            )
            assert plain.recv(65_536) == b""
        (tmp_path / "now-key.pem").write_text("half of it")
        stays = "tls_cert: not reloaded, the old content stays in force: cannot be used"
        wait_for(server, f"http.{stays}", f"mqtt.{stays}")
        assert [shown(server.http), shown(server.mqtt)] == [OTHER, OTHER]
        assert server.stop() == 0
    finally:
        server.kill()


@pytest.mark.process
def test_the_jobs_of_the_server_find_it_without_tls(tmp_path: Path) -> None:
    """Its address is in no certificate; nobody else is told where that is."""
    settings = {"http.tls_cert": TLS / CERT, "http.tls_key": TLS / "key.pem", "spark.enabled": "on"}
    server = ServerProcess(tmp_path / "data", settings=settings)
    try:
        server.wait_ready()
        listening = {
            line.split()[1].rpartition(":")[2]
            for line in Path(f"/proc/{server.pid}/net/tcp").read_text().splitlines()[1:]
            if line.split()[3] == "0A" and line.split()[9] in sockets_of(server.pid)
        }
        assert len(listening) == 3
    finally:
        server.kill()


def sockets_of(pid: int) -> set[str]:
    """Inodes of the sockets that a process has."""
    found = set()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.add(os.readlink(one).removeprefix("socket:[").removesuffix("]"))
    return found


def client(certificate: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(TLS / CERT))
    if certificate:
        context.load_cert_chain(TLS / certificate)
    return context


CLIENTS = [
    ("meter.pem", True, True),
    ("revoked.pem", False, False),
    ("stranger.pem", False, False),
    (None, True, False),
]


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
@pytest.mark.parametrize("must", [False, True])
@pytest.mark.parametrize(("certificate", "optional", "required"), CLIENTS)
async def test_clients_show_certificates(
    tmp_path: Path, scheme: str, must: bool, certificate: str | None, optional: bool, required: bool
) -> None:
    more = {"tls_ca": str(TLS / "ca.pem"), "tls_crl": str(TLS / "crl.pem")}
    settings = everywhere(**more, tls_require_certificate=must)
    async with serve(tmp_path / "data", settings) as served:
        with suppress(OSError):
            reader, writer = await served.dial(scheme, tls=client(certificate))
            writer.write(encode(Connect(5, "a"), 5) if scheme == "mqtts" else b"GET / HTTP/1.0\r\n\r\n")
            async with asyncio.timeout(60):
                said = await reader.read(1)
            assert bool(said) == (required if must else optional)
            return
        assert not (required if must else optional)


@pytest.fixture
def crl(tmp_path: Path) -> Path:
    """The list that the server reads, on which nobody is yet."""
    return Path(shutil.copy(TLS / "crl-before.pem", tmp_path / "crl.pem"))


@pytest.fixture
def settings(crl: Path) -> Config:
    return everywhere(tls_ca=str(TLS / "ca.pem"), tls_crl=str(crl), tls_require_certificate=True)


async def test_a_list_of_revoked_ones_is_read_again(crl: Path, settings: Config) -> None:
    certificates = mqtt_certificates(settings)
    assert certificates is not None
    assert certificates.context().verify_flags & ssl.VERIFY_CRL_CHECK_LEAF
    before = certificates.context()
    shutil.copy(TLS / "crl.pem", crl)
    certificates.again()()
    assert certificates.context() is not before


def test_a_list_names_certificates() -> None:
    one, other = (
        certificate_id_of(ssl.PEM_cert_to_DER_cert(pem.partition("-----BEGIN PRIVATE")[0]))
        for pem in ((TLS / name).read_text() for name in ("revoked.pem", "meter.pem"))
    )
    before, after = (revoked_in((TLS / name).read_bytes()) for name in ("crl-before.pem", "crl.pem"))
    assert one.issuer == other.issuer
    assert (before[one.issuer], after[one.issuer]) == (frozenset(), {one.serial})
    assert other.serial not in after[other.issuer]
    both = (TLS / "crl.pem").read_bytes() + (TLS / "crl-before.pem").read_bytes()
    assert revoked_in(both) == after
    assert revoked_in(b"") == {}


def test_a_list_that_is_cut_off_is_refused() -> None:
    lines = (TLS / "crl.pem").read_bytes().splitlines()
    der = base64.b64decode(b"".join(lines[1:-1]))
    for stop in range(len(der)):
        pem = b"-----BEGIN X509 CRL-----\n%b\n-----END X509 CRL-----\n" % base64.b64encode(der[:stop])
        with pytest.raises(ValueError, match="cannot be read"):
            revoked_in(pem)


async def test_a_connection_ends_when_its_certificate_is_revoked(
    crl: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of openssl, and one over a websocket; who is not on the list stays."""
    monkeypatch.setattr(lingering, "LINGER_S", 0.2)
    readers: dict[tuple[str, str], asyncio.StreamReader] = {}
    for scheme in ("mqtts", "wss"):
        for certificate in ("revoked.pem", "meter.pem"):
            reader, writer = await served.dial(scheme, tls=client(certificate))
            readers[scheme, certificate] = reader
            hello = encode(Connect(5, scheme + certificate), 5)
            if scheme == "wss":
                writer.write(REQUEST)
                await reader.readuntil(b"\r\n\r\n")
            writer.write(hello if scheme == "mqtts" else masked(BINARY, hello))
            async with asyncio.timeout(60):
                assert await reader.read(256)
    assert served.certificates is not None

    def review() -> None:
        for link in served.listeners.crowd:
            link.review()

    watch = Watch([served.certificates], review)
    shutil.copy(TLS / "crl.pem", crl)
    for _ in range(2):
        await watch.look(is_forced=False)
    async with asyncio.timeout(60):
        assert (await readers["mqtts", "revoked.pem"].read()).startswith(b"\xe0\x01\x87")
        assert b"\xe0\x01\x87" in await readers["wss", "revoked.pem"].read()
    await until(lambda: len(served.listeners.crowd) == 2)
    assert {link._connection.client_id for link in served.listeners.crowd} == {  # type: ignore[union-attr]
        "mqttsmeter.pem",
        "wssmeter.pem",
    }


async def test_a_list_that_comes_during_a_handshake_counts(crl: Path, served: Served) -> None:
    """The handshake has looked at the list before."""
    assert served.certificates is not None
    shutil.copy(TLS / "crl.pem", crl)
    before = served.certificates.context()
    served.certificates.again()()
    served.certificates._context = before
    reader, _ = await served.dial("mqtts", tls=client("revoked.pem"))
    with suppress(ConnectionError):
        async with asyncio.timeout(60):
            assert await reader.read() == b""


@pytest.mark.parametrize("scheme", ["mqtts", "wss", "mqtt"])
async def test_who_shows_one_is_known_by_its_name(tmp_path: Path, scheme: str) -> None:
    more = {"tls_ca": str(TLS / "ca.pem"), "tls_require_certificate": True, "tls_identity_as_username": True}
    async with serve(tmp_path / "data", everywhere(**more)) as served:
        has_tls = scheme != "mqtt"
        await served.dial(scheme, tls=client("meter.pem") if has_tls else None)
        await until(lambda: any(link._connection is not None for link in served.listeners.crowd))
        (link,) = served.listeners.crowd
        assert link._connection is not None
        assert link._connection._peer.identity == ("meter" if has_tls else "")


async def test_without_a_name_there_is_no_identity(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    more = {"tls_ca": str(TLS / "ca.pem"), "tls_require_certificate": True, "tls_identity_as_username": True}
    async with serve(tmp_path / "data", everywhere(**more)) as served:
        reader, _ = await served.dial("mqtts", tls=client("nameless.pem"))
        with suppress(ConnectionError):
            async with asyncio.timeout(60):
                assert await reader.read() == b""
        assert "the certificate has no common name" in caplog.text


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"http.tls_key": "k"}, "http.tls_cert"),
        ({"mqtt.tls_key": "k"}, "mqtt.tls_cert"),
        ({"mqtt.tls_ca": "c"}, "mqtt.tls_cert"),
        ({"mqtt.tls_cert": "c", "mqtt.tls_crl": "c"}, "mqtt.tls_ca"),
        ({"mqtt.tls_cert": "c", "mqtt.tls_require_certificate": "true"}, "mqtt.tls_ca"),
        (
            {"mqtt.tls_cert": "c", "mqtt.tls_ca": "c", "mqtt.tls_identity_as_username": "true"},
            "mqtt.tls_require_certificate",
        ),
    ],
)
def test_settings_that_need_each_other(settings: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, environment(settings), {})
    assert caught.value.key == key
