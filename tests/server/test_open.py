"""Beyond loopback nothing starts open unless told, and then each start says so."""

from pathlib import Path

import pytest

from server.settings.config import ConfigError
from server.settings.reading import load
from tests.support.server import run, served

ALL = "0.0.0.0"
"""Only written here: no test listens there."""


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"http.listen": f"{ALL}:0"}, "auth.allow_open"),
        ({"http.listen": "[::]:0"}, "auth.allow_open"),
        ({"http.listen": "fasti.example:0"}, "auth.allow_open"),
        ({"mqtt.listen": f"127.0.0.1:0,ws://{ALL}:0"}, "mqtt.allow_anonymous"),
        ({"mqtt.listen": f"{ALL}:0", "http.listen": f"{ALL}:0"}, "auth.allow_open"),
    ],
)
def test_it_does_not_start_open(tmp_path: Path, settings: dict[str, object], key: str) -> None:
    ended = run("--data", str(tmp_path / "data"), settings=settings)
    assert ended.returncode == 2
    assert f"fasti-server: {key}: " in ended.stderr
    assert not (tmp_path / "data").exists()


def test_told_to_it_names_what_is_open() -> None:
    options = {
        "auth.allow_open": True,
        "http.listen": f"{ALL}:8080",
        "mqtt.listen": f"mqtt://127.0.0.1:1883,ws://{ALL}:8083",
    }
    config, _ = load(None, {}, options)
    assert [(key, str(at)) for key, at in config.open_beyond] == [
        ("http.listen", f"{ALL}:8080"),
        ("mqtt.listen", f"ws://{ALL}:8083"),
    ]
    config, _ = load(None, {}, {**options, "mqtt.allow_anonymous": False})
    assert [key for key, _ in config.open_beyond] == ["http.listen"]
    assert load(None, {}, {})[0].open_beyond == ()


@pytest.mark.process
def test_each_start_says_so(tmp_path: Path) -> None:
    """By its text 127.1 could be anybody's; it is loopback all the same."""
    for _ in range(2):
        with served(tmp_path / "data", "--http", "127.1:0", settings={"auth.allow_open": True}) as server:
            assert "http.listen 127.1:0: other machines can reach it" in server.output
            assert "mqtt.listen" not in server.output


def test_not_told_to_there_is_nothing_to_name() -> None:
    with pytest.raises(ConfigError):
        load(None, {}, {"http.listen": f"{ALL}:8080"})
