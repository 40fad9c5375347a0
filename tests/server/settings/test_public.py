"""What clients are told: public addresses, else those listened at, by the name that they know."""

from dataclasses import replace
from pathlib import Path

import pytest

from server.settings.config import Config
from server.settings.kinds import MQTT_URLS, URL, Address
from server.settings.public import public_mqtt, public_url, reference_for
from server.settings.reading import load, remarks

EVERYWHERE = "0.0.0.0"


def made(public: tuple[str, ...] = (), http: str = "", host: str = EVERYWHERE, cert: str = "") -> Config:
    config = Config()
    return replace(
        config,
        http=replace(config.http, listen=Address(host, 8080), public_url=http, tls_cert=cert),
        mqtt=replace(config.mqtt, public_urls=MQTT_URLS.read(list(public))),
    )


def test_the_public_url_comes_before_the_host_that_was_asked() -> None:
    assert public_url(made(http="https://fasti.example.com"), "10.0.0.1:8080") == "https://fasti.example.com"
    assert public_url(made(), "10.0.0.1:8080") == "http://10.0.0.1:8080"
    assert public_url(made(cert="cert.pem"), "fasti") == "https://fasti"
    assert URL.read("https://a.example/queue/") == "https://a.example/queue"


@pytest.mark.parametrize(
    ("url", "full"),
    [
        ("a.example", "mqtt://a.example:1883"),
        ("a.example:1", "mqtt://a.example:1"),
        ("mqtts://a.example", "mqtts://a.example:8883"),
        ("ws://[::1]", "ws://[::1]:80/mqtt"),
        ("wss://a.example/queue/mqtt", "wss://a.example:443/queue/mqtt"),
    ],
)
def test_urls_of_mqtt_are_told_in_full(url: str, full: str) -> None:
    (one,) = public_mqtt(made((url,)), [Address("127.0.0.1", 9, "mqtt")], "fasti:8080")
    assert str(one) == full


@pytest.mark.parametrize(
    ("listener", "reached", "told"),
    [
        ("mqtt://0.0.0.0:1883", "fasti:8080", "mqtt://fasti:1883"),
        ("mqtt://0.0.0.0:1883", "fasti", "mqtt://fasti:1883"),
        ("ws://[::]:8083", "[fd00::1]:8080", "ws://[fd00::1]:8083/mqtt"),
        ("ws://[::]:8083", "[fd00::1]", "ws://[fd00::1]:8083/mqtt"),
        ("mqtt://0.0.0.0:1883", "", "mqtt://0.0.0.0:1883"),
        ("mqtt://10.0.0.1:1883", "fasti:8080", "mqtt://10.0.0.1:1883"),
        ("mqtts://10.0.0.1:8883", "fasti:8080", "mqtts://10.0.0.1:8883"),
        ("mqtts://127.0.0.1:8883", "localhost:8080", "mqtts://localhost:8883"),
        ("mqtt://127.0.0.1:1883", "localhost:8080", "mqtt://127.0.0.1:1883"),
    ],
)
def test_a_listener_is_told_by_the_name_that_the_client_knows(listener: str, reached: str, told: str) -> None:
    (where,) = Config().mqtt.listen
    scheme, _, rest = listener.partition("://")
    host, _, port = rest.rpartition(":")
    where = Address(host.strip("[]"), int(port), scheme)
    (one,) = public_mqtt(made(host="127.0.0.1"), [where], reached)
    assert str(one) == told


ALL = ("mqtt://a:1883", "mqtts://a:8883", "ws://a:80/mqtt", "wss://a:443/mqtt")


@pytest.mark.parametrize(
    ("scheme", "urls", "reference"),
    [
        *(("mqtt", ALL, "a:1883"), ("mqtts", ALL, "a:8883"), ("ws", ALL, "ws://a:80/mqtt")),
        *(("wss", ALL, "wss://a:443/mqtt"), ("mqtt", ALL[1:], "mqtts://a:8883")),
        *(("mqtts", ALL[::3], "wss://a:443/mqtt"), ("mqtts", ALL[::2], ""), ("wss", (), "")),
    ],
)
def test_a_reference_is_of_the_same_kind_and_never_from_tls_to_plain(
    scheme: str, urls: tuple[str, ...], reference: str
) -> None:
    assert reference_for(scheme, urls) == reference


def test_what_cluster_url_was_is_said(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[cluster]\nurl = "http://a:8080"\nmqtt = "a:1883"\n')
    said = remarks(*load(path, {}, {}))
    assert [line.split(" (")[0] for line in said] == ["cluster.mqtt", "cluster.url"]
    assert "mqtt.public_urls took its place" in said[0]
    assert "http.public_url took its place" in said[1]


def test_public_urls_from_the_environment() -> None:
    one, _ = load(None, {"FASTI__MQTT__PUBLIC_URLS": "mqtts://a, wss://b/mqtt"}, {})
    assert [str(each) for each in one.mqtt.public_urls] == ["mqtts://a:8883", "wss://b:443/mqtt"]
