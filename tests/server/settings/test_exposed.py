"""What is secret in the settings is shown nowhere, and a file of it that others can read is told."""

from pathlib import Path

import pytest

from server.__main__ import main
from server.settings.config import ConfigError
from server.settings.kinds import without_password
from server.settings.reading import exposed, load
from tests.support.served import TLS
from tests.support.server import ROOT

SECRET = "CLUSTERSECRET0123456789"
LOG = "postgresql://usr:PGSECRETPW@127.0.0.1:1/db"
TEXT = f"""
[http]
public_url = "http://a.example"
[mqtt]
public_urls = ["mqtt://a.example"]
[cluster]
log = "{LOG}"
key = "{SECRET}"
node = "n1"
"""


def written(path: Path, text: str, mode: int) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(("mode", "is_told"), [(0o644, True), (0o604, True), (0o640, False), (0o600, False)])
def test_a_check_shows_no_secret_and_names_a_file_of_it_that_others_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int, *, is_told: bool
) -> None:
    file = written(tmp_path / "config.toml", TEXT, mode)
    assert main(["--config", str(file), "--data", str(tmp_path / "data"), "--check"]) == 0
    shown = capsys.readouterr()
    lines = {
        line.split()[0]: line.split()[1] for line in shown.out.splitlines() if line.startswith("cluster.")
    }
    assert (lines["cluster.key"], lines["cluster.log"]) == ('"***"', '"postgresql://usr:***@127.0.0.1:1/db"')
    assert "SECRET" not in shown.out + shown.err
    told = [line for line in shown.err.splitlines() if "chmod" in line]
    assert told == [
        f"fasti-server: {file} has mode {mode:04o}: other users can read {name} in it; chmod 600 {file}"
        for name in ("cluster.log", "cluster.key")
        if is_told
    ]


@pytest.mark.parametrize("name", ["config.toml", "config.small.toml"])
def test_the_servers_own_files_are_read_whole_and_warn_of_nothing(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--config", str(ROOT / name), "--data", str(tmp_path / "data"), "--check"]) == 0
    assert capsys.readouterr().err == ""


def test_a_file_without_secrets_may_be_read_by_all(tmp_path: Path) -> None:
    file = written(tmp_path / "config.toml", '[http]\nidle_timeout = "75s"\n[cluster]\nnode = "n1"\n', 0o644)
    assert exposed(*load(file, {}, {}), file) == []
    # Secrets of the environment are not in the file.
    environ = {"FASTI__CLUSTER__KEY": SECRET, "FASTI__CLUSTER__LOG": "nats://u:p@a"}
    places = {"FASTI__HTTP__PUBLIC_URL": "http://a.b", "FASTI__MQTT__PUBLIC_URLS": "mqtt://a.b"}
    assert exposed(*load(file, {**environ, **places}, {}), file) == []
    assert exposed(*load(None, {}, {}), None) == []


def test_a_private_key_that_others_can_read_is_told(tmp_path: Path) -> None:
    cert = written(tmp_path / "cert.pem", (TLS / "cert.pem").read_text(), 0o644)
    key = written(tmp_path / "key.pem", (TLS / "key.pem").read_text(), 0o644)
    environ = {"FASTI__HTTP__TLS_CERT": str(cert), "FASTI__HTTP__TLS_KEY": str(key)}
    (line,) = exposed(*load(None, environ, {}), None)
    assert line == f"{key} has mode 0644: other users can read the private key in it; chmod 600 {key}"
    key.chmod(0o600)
    assert exposed(*load(None, environ, {}), None) == []


@pytest.mark.parametrize(
    "environ",
    [
        {"FASTI__CLUSTER__KEY": f"{SECRET}\0"},
        {"FASTI__CLUSTER__LOG": "postgres://u:SECRET@h/db"},
        {"FASTI__CLUSTER__LOG": "mysql://u:SECRET@h/db?password=SECRET"},
        {"FASTI__CLUSTER__LOG": "host=h password=SECRET"},
        {"FASTI__CLUSTER__LOG": "mysql://h/db?PassWord='SEC SECRET'"},
        {"FASTI__CLUSTER__PEERS": "http://u:SECRET@h:1/x"},
    ],
)
def test_an_error_repeats_no_secret(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        load(None, environ, {})
    assert "SECRET" not in str(raised.value)


def test_a_key_that_is_no_text_is_not_repeated(tmp_path: Path) -> None:
    file = written(tmp_path / "config.toml", "[cluster]\nkey = 12345678901234567890\n", 0o600)
    with pytest.raises(ConfigError, match=r"cluster.key: must be a string, got \*\*\*"):
        load(file, {}, {})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://u:p@a:4222,b", "nats://u:***@a:4222,b"),
        ("nats://token@a:4222,b", "nats://***@a:4222,b"),
        ("tls://token@a", "tls://***@a"),
        ("nats://a:4222,b:4222", "nats://a:4222,b:4222"),
        ("postgresql://u@h:5432/db", "postgresql://u@h:5432/db"),
        ("postgresql://u:p/w@x@h/db", "postgresql://u:***@h/db"),
        ("nats://u:p w'@a:4222", "nats://u:***@a:4222"),
        ("postgresql://h/db?PASSWORD='p w'&user=u", "postgresql://h/db?PASSWORD=***&user=u"),
        ("postgresql://h/db?pass%77ord=p", "postgresql://h/db?pass%77ord=***"),
        ("postgresql://h/db?user=u&password=a@b&sslpassword=c", "postgresql://h/db?user=u&password=***&sslpassword=***"),
    ],
)  # fmt: skip
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
