"""Settings: the four places and their order, the kinds, and an error for all that is not understood."""

import re
import tomllib
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from server.settings.config import Config, ConfigError
from server.settings.kinds import Address
from server.settings.memory import MEMORY_MIN, Memory
from server.settings.reading import divided, load, remarks, table
from server.settings.removed import REMOVED

ROOT = Path(__file__).parents[3]
PINNED = Memory(1 << 34, "pinned")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_anything_all_is_default() -> None:
    config, origins = load(None, {}, {}, lambda: PINNED)
    assert config == divided(Config(), PINNED)
    assert set(origins.values()) == {"default"}
    assert config.http.listen == Address("127.0.0.1", 8080)
    assert (config.limits.max_delay_ms, config.mqtt.keep_alive_s) == (3650 * 86_400_000, 0)
    assert config.shards.cap_bytes == 64 << 20


def test_the_file_in_the_repository_is_the_defaults_and_holds_every_key() -> None:
    path = ROOT / "config.toml"
    config, origins = load(path, {}, {}, lambda: PINNED)
    assert config == divided(Config(), PINNED)
    assert set(origins.values()) == {"file"}


def test_the_file_for_a_small_machine_fits_it() -> None:
    config, origins = load(ROOT / "config.small.toml", {}, {})
    assert remarks(config, origins) == []
    assert config.limits.memory.bytes == MEMORY_MIN
    assert config.limits.sessions == 1_000


@pytest.mark.parametrize("name", ["config.toml", "config.small.toml"])
def test_every_key_in_the_repository_has_a_comment(name: str) -> None:
    above = ""
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if " = " in line and not line.startswith("#"):
            assert above.startswith("#") or " = " in above, line
        above = line


def test_the_stronger_place_wins(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '[store]\ndir = "a"\n[mqtt]\nreceive_maximum = 1\n[shards]\ncap_messages = 100\n'
        '[dead]\nmax_bytes = "1MiB"',
    )
    environ = {"FASTI__MQTT__RECEIVE_MAXIMUM": "200", "FASTI__STORE__DIR": "b", "FASTI_URL": "x", "PATH": "y"}
    config, origins = load(path, environ, {"store.dir": "c", "http.listen": None})
    assert (config.store.dir, origins["store.dir"], config.mqtt.receive_maximum) == ("c", "option", 200)
    assert origins["mqtt.receive_maximum"] == "env FASTI__MQTT__RECEIVE_MAXIMUM"
    assert (config.shards.cap_messages, origins["shards.cap_messages"]) == (100, "file")
    assert (config.dead.max_bytes, origins["http.listen"]) == (1 << 20, "default")


@pytest.mark.parametrize(
    ("variable", "text", "read"),
    [
        ("FASTI__SLICES__RETENTION", "PT15M", lambda c: c.slices.retention_ms == 900_000),
        ("FASTI__SLICES__RETENTION", "90", lambda c: c.slices.retention_ms == 90_000),
        ("FASTI__SESSIONS__ACK_TIMEOUT", "1h30m", lambda c: c.sessions.ack_timeout_ms == 5_400_000),
        ("FASTI__MQTT__KEEP_ALIVE", "2m", lambda c: c.mqtt.keep_alive_s == 120),
        ("FASTI__MQTT__ALLOW_ANONYMOUS", "False", lambda c: c.mqtt.allow_anonymous is False),
        ("FASTI__MQTT__RETAIN_AVAILABLE", "1", lambda c: c.mqtt.retain_available is True),
        ("FASTI__MQTT__DENY_SUBSCRIBE", "#,a/+", lambda c: c.mqtt.deny_subscribe == ("#", "a/+")),
        ("FASTI__REPLAY__FILTERS", '["a,b/#"]', lambda c: c.replay.filters == ("a,b/#",)),
        ("FASTI__REPLAY__FILTERS", "", lambda c: c.replay.filters == ()),
        ("FASTI__STORE__MIN_FREE", "16 MiB", lambda c: c.store.min_free == 16 << 20),
        ("FASTI__STORE__MIN_FREE", "1048576", lambda c: c.store.min_free == 1 << 20),
        ("FASTI__HTTP__LISTEN", "[::1]:0", lambda c: c.http.listen == Address("::1", 0)),
        ("FASTI__HTTP__LISTEN", "localhost:80", lambda c: c.http.listen.is_loopback),
        ("FASTI__SPARK__ENABLED", "false", lambda c: c.spark.enabled == "off"),
        ("FASTI__SPARK__ENABLED", "on", lambda c: c.spark.enabled == "on"),
        ("FASTI__SLICES__EXPIRE_BY", "job", lambda c: c.slices.expire_by == "job"),
        ("FASTI__SLICES__ARCHIVE", "", lambda c: c.slices.archive == ""),
        ("FASTI__SLICES__ARCHIVE", "a/../b/", lambda c: c.slices.archive == str(Path.cwd() / "b")),
        ("FASTI__SLICES__ARCHIVE", "s3://bucket/x/", lambda c: c.slices.archive == "s3://bucket/x"),
        ("FASTI__SLICES__ARCHIVE_AFTER", "0s", lambda c: c.slices.archive_after_ms == 0),
        ("FASTI__SLICES__ARCHIVE", "file:///srv/a%20b", lambda c: c.slices.archive == "/srv/a b"),
    ],
)
def test_a_variable_is_read_by_the_kind_of_its_key(variable: str, text: str, read: object) -> None:
    config, _ = load(None, {variable: text}, {})
    assert callable(read)
    assert read(config)


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("[nosuch]\na = 1", "nosuch", "unknown section"),
        ("[nosuch]", "nosuch", "unknown section"),
        ("[metrics]\ntopp = 1", "metrics.topp", "unknown key"),
        ('[sessions]\nack_timeout = "13h"', "sessions.ack_timeout", "from 0 to 12h"),
        ("listen = 1", "listen", "belongs to a"),
        ("[http]\nlisen = 1", "http.lisen", "is http.listen meant"),
        ("[slices]\nretention_ms = 1", "slices.retention_ms", "is slices.retention meant"),
        ("[limits]\nx = 1", "limits.x", "is limits.[a-z_]+ meant"),
        ("[http]\nlisten = 8080", "http.listen", "must be a string"),
        ('[http]\nlisten = "8080"', "http.listen", "address"),
        ('[http]\nlisten = ":8080"', "http.listen", "address"),
        ('[http]\nlisten = "::1:8080"', "http.listen", "address"),
        ('[http]\nlisten = "localhost:70000"', "http.listen", "from 0 to 65535"),
        ("[mqtt]\nreceive_maximum = 65536", "mqtt.receive_maximum", "from 1 to 65535"),
        ("[mqtt]\nreceive_maximum = true", "mqtt.receive_maximum", "whole number"),
        ("[mqtt]\nreceive_maximum = 1.5", "mqtt.receive_maximum", "whole number"),
        ('[store]\nmin_free = "16MB"', "store.min_free", "a size"),
        ('[limits]\nmemory = "16MB"', "limits.memory", '"auto" or a size'),
        ('[limits]\nmemory = "255MiB"', "limits.memory", "at least 256MiB"),
        ("[mqtt]\nmaximum_qos = 3", "mqtt.maximum_qos", "from 0 to 2"),
        ('[mqtt]\nallow_anonymous = "yes"', "mqtt.allow_anonymous", "must be true, false"),
        ('[mqtt]\ndeny_subscribe = ["a#"]', "mqtt.deny_subscribe", "whole level"),
        ("[mqtt]\ndeny_subscribe = [1]", "mqtt.deny_subscribe", "list of topic filters"),
        ('[mqtt]\nkeep_alive = "90500ms"', "mqtt.keep_alive", "whole seconds"),
        ('[mqtt]\nkeep_alive = "1d"', "mqtt.keep_alive", "65535"),
        ('[store]\ndir = ""', "store.dir", "empty"),
        ('[slices]\nretention = "soon"', "slices.retention", "not a delay"),
        ("[slices]\nretention = []", "slices.retention", "a duration"),
        ("[slices]\nretention = 0", "slices.retention", "at least 1"),
        ('[slices]\narchive = "http://bucket/x"', "slices.archive", "file:, s3:, gs:, abfs:"),
        ('[slices]\narchive = "s3://key:secret@b/x"', "slices.archive", "must not have credentials"),
        ('[slices]\narchive_catalog = "postgresql://u:pw@h/db"', "slices.archive_catalog", "have a password"),
        (
            '[slices]\narchive_catalog = "mysql://h/db"',
            "slices.archive_catalog",
            "sqlite:, postgresql:, http:",
        ),
        ('[slices]\narchive_after = "25h"', "slices.archive_after", "from 0 to 1d"),
        ('[slices]\narchive = "~/archive"', "slices.archive", "must be written out"),
        ("[slices]\narchive = 1", "slices.archive", "must be a string"),
        ('[slices]\narchive = "data/jobs"', "slices.archive", "must not lie in store.dir"),
        ('[slices]\nexpire_by = "me"', "slices.expire_by", "one of server, job"),
        ('[limits]\nmax_payload = "16MiB"', "limits.max_payload", "limits.memory bounds that"),
        ("[mqtt]\nmaximum_packet_size = 15", "mqtt.maximum_packet_size", "from 16 to"),
        ('[http]\nlisten = "0.0.0.0:8080"', "auth.allow_open", "reached from other machines"),
        ('[mqtt]\nallow_anonymous = "mqtt://127.0.0.1:9"', "mqtt.allow_anonymous", "not one of mqtt.listen"),
        ('[mqtt]\nlisten = "mqtts://127.0.0.1:8883"', "mqtt.tls_cert", "is required"),
        ('[mqtt]\nlisten = "http://127.0.0.1:80"', "mqtt.listen", "must begin with one of"),
        ('[mqtt]\nlisten = "example.org:1883"', "mqtt.allow_anonymous", "reached from other machines"),
        (
            '[http]\nlisten = "0.0.0.0:1"\n[cluster]\nlog = "nats://a"\nnode = "a"\nkey = "0123456789abcdef"',
            "http.public_url",
            "is required in a cluster",
        ),
        (
            '[mqtt]\nlisten = ["mqtt://127.0.0.1:0", "ws://0.0.0.0:1"]\n'
            '[cluster]\nlog = "nats://a"\nnode = "a"\nkey = "0123456789abcdef"',
            "mqtt.public_urls",
            "the address ws://0.0.0.0:1",
        ),
        ('[http]\npublic_url = "fasti.example.com"', "http.public_url", "must be like"),
        ('[http]\npublic_url = "https://a/?b"', "http.public_url", "must be like"),
        ('[mqtt]\npublic_urls = ["https://a:1883"]', "mqtt.public_urls", "must be URLs such as"),
        ('[mqtt]\npublic_urls = ["mqtts://a/mqtt"]', "mqtt.public_urls", "must be URLs such as"),
        ('[mqtt]\npublic_urls = ["mqtts://a:0"]', "mqtt.public_urls", "from 1 to 65535"),
        (f'[http]\npublic_url = "https://{"a" * 249}"', "http.public_url", "must be like"),
        (f'[mqtt]\npublic_urls = ["mqtts://a", "mqtt://{"a" * 250}"]', "mqtt.public_urls", "must be URLs"),
        ("[mqtt]\npublic_urls = 1", "mqtt.public_urls", "at most 16 URLs"),
    ],
)
def test_a_bad_setting_is_named(tmp_path: Path, text: str, key: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load(written(tmp_path, text), {}, {})
    assert caught.value.key == key
    assert str(caught.value).startswith(key)


def test_a_bad_value_is_told_with_its_origin() -> None:
    with pytest.raises(ConfigError, match=r"limits.pending: .* got 'x' \(env FASTI__LIMITS__PENDING\)"):
        load(None, {"FASTI__LIMITS__PENDING": "x"}, {})
    with pytest.raises(ConfigError, match=r"unknown key \(env FASTI__WHEEL__NO__SUCH\)"):
        load(None, {"FASTI__WHEEL__NO__SUCH": "x"}, {})
    with pytest.raises(ConfigError, match=r"unknown key \(env FASTI__WHEEL\)"):
        load(None, {"FASTI__WHEEL": "x"}, {})
    with pytest.raises(ConfigError, match=r"\(option\)"):
        load(None, {}, {"mqtt.listen": "x"})


def test_the_password_in_a_bad_value_is_not_told() -> None:
    with pytest.raises(ConfigError, match=r"got 'mysql://fasti:\*\*\*@a/b\?password=\*\*\*&c=d'"):
        load(None, {"FASTI__CLUSTER__LOG": "mysql://fasti:secret@a/b?password=secret&c=d"}, {})


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as caught:
        load(tmp_path / "none.toml", {}, {})
    assert caught.value.key == str(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(written(tmp_path, "[http"), {}, {})
    with pytest.raises(ConfigError, match="is not TOML"):
        load(written(tmp_path, "a = " + "[" * 5_000), {}, {})
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'[store]\ndir = "\xe9"')
    with pytest.raises(ConfigError, match="is not TOML"):
        load(latin, {}, {})


@pytest.mark.parametrize("backups", ["data", "data/backups", "./data/x/../y", "{cwd}/data/x"])
def test_backups_do_not_lie_in_the_data(backups: str) -> None:
    wish = {"store.backups": backups.replace("{cwd}", str(Path.cwd()))}
    with pytest.raises(ConfigError, match=r"store\.backups: must not lie in store\.dir"):
        load(None, {}, wish)
    for fine in ("", "data2", "data/..", "/backups", "."):
        load(None, {}, {"store.backups": fine})


@pytest.mark.parametrize("key", ["store.backups", "slices.archive"])
def test_nor_does_what_a_link_leads_there(tmp_path: Path, key: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    wish = {"store.dir": str(tmp_path / "data"), key: str(tmp_path / "link" / "x")}
    with pytest.raises(ConfigError, match="must not lie in store") as caught:
        load(None, {}, wish)
    assert caught.value.key == key


def test_told_to_be_open_it_starts_open() -> None:
    config, _ = load(
        None, {"FASTI__AUTH__ALLOW_OPEN": "true"}, {"http.listen": "0.0.0.0:80", "mqtt.listen": "h:1"}
    )
    assert not config.http.listen.is_loopback


def test_the_table_shows_every_key_in_the_words_of_the_file() -> None:
    lines = table(*load(None, {}, {"http.listen": "[::1]:9"}))
    cells = {line.split()[0]: line.split()[1:] for line in lines}
    assert (cells["http.listen"], cells["slices.retention"]) == (["[::1]:9", "option"], ["7d", "default"])
    assert cells["http.idle_timeout"] == ["75s", "default"]
    assert cells["sessions.ack_timeout"] == ["0", "default"]
    assert cells["limits.max_payload"] == ["256KiB", "default"]
    assert (cells["mqtt.deny_subscribe"], cells["slices.archive"]) == (["[]", "default"], ['""', "default"])
    tree = tomllib.loads((ROOT / "config.toml").read_text(encoding="utf-8"))
    assert list(cells) == [f"{section}.{key}" for section, keys in tree.items() for key in keys]


def test_a_config_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().store.dir = "x"  # type: ignore[misc]


@pytest.mark.parametrize("file", ['[auth]\nkeys_file = "k"', '[mqtt]\npassword_file = "p"'])
def test_who_has_keys_lets_nobody_in_without_unless_told(tmp_path: Path, file: str) -> None:
    path = tmp_path / "config.toml"

    def made(text: str) -> Config:
        path.write_text(text)
        return load(path, {}, {})[0]

    listen = 'listen = ["127.0.0.1:1883", "mqtts://0.0.0.0:8883"]\ntls_cert = "c"'
    both = file.replace("[mqtt]", f"[mqtt]\n{listen}") if "[mqtt]" in file else f"{file}\n[mqtt]\n{listen}"
    plain, tls = made(both).mqtt.listen
    assert not made(both).lets_anybody(plain)
    some = made(both.replace("tls_cert", 'allow_anonymous = "127.0.0.1:1883"\ntls_cert'))
    assert some.lets_anybody(plain)
    assert not some.lets_anybody(tls)
    for told in ("true", '["mqtts://0.0.0.0:8883"]'):
        with pytest.raises(ConfigError, match="reached from other machines") as caught:
            made(both.replace("tls_cert", f"allow_anonymous = {told}\ntls_cert"))
        assert caught.value.key == "mqtt.allow_anonymous"
    assert Config().lets_anybody(plain)


def test_where_anybody_may_come_in_from_elsewhere_is_known() -> None:
    text = {"http.listen": "0.0.0.0:8080", "mqtt.listen": "127.0.0.1:1883,mqtt://0.0.0.0:1884"}
    config, _ = load(None, {"FASTI__AUTH__ALLOW_OPEN": "true"}, text)
    assert [(key, str(at)) for key, at in config.open_beyond] == [
        ("http.listen", "0.0.0.0:8080"),
        ("mqtt.listen", "mqtt://0.0.0.0:1884"),
    ]
    config, _ = load(None, {"FASTI__AUTH__KEYS_FILE": "k"}, text)
    assert config.open_beyond == ()
    assert Config().open_beyond == ()


def test_mqtt_has_the_certificate_of_http_unless_it_has_its_own() -> None:
    http = {"FASTI__HTTP__TLS_CERT": "c", "FASTI__HTTP__TLS_KEY": "k"}
    tls = {"mqtt.listen": "mqtts://127.0.0.1:8883"}
    mqtt = load(None, http, tls)[0].mqtt
    assert (mqtt.tls_cert, mqtt.tls_key) == ("c", "k")
    assert load(None, http, {})[0].mqtt.tls_cert == ""
    mqtt = load(None, http | {"FASTI__MQTT__TLS_CERT": "own"}, tls)[0].mqtt
    assert (mqtt.tls_cert, mqtt.tls_key) == ("own", "")
    with pytest.raises(ConfigError, match=r"mqtt\.tls_cert: is required"):
        load(None, http | {"FASTI__MQTT__TLS_KEY": "own"}, {})


def test_http_listens_elsewhere_with_keys(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[http]\nlisten = "0.0.0.0:8080"\n[auth]\nkeys_file = "k"\n')
    assert load(path, {}, {})[0].has_credentials
    path.write_text('[http]\nlisten = "0.0.0.0:8080"\n[mqtt]\npassword_file = "p"\n')
    with pytest.raises(ConfigError, match="keys_file set"):
        load(path, {}, {})


def test_no_session_outlives_retention(tmp_path: Path) -> None:
    """What it would have missed is gone by then. CONNACK says so: tests/server/mqtt/test_opening.py."""
    config, _ = load(written(tmp_path, '[sessions]\nexpiry_max = "30d"\n[slices]\nretention = "2d"'), {}, {})
    assert config.sessions.expiry_max_ms == config.slices.retention_ms == 2 * 86_400_000


def test_a_setting_that_went_is_ignored_and_told_of(tmp_path: Path) -> None:
    config, origins = load(written(tmp_path, '[sessions]\ngroup_expiry = "1d"'), {}, {})
    assert config.sessions == load(None, {}, {})[0].sessions
    (line,) = remarks(config, origins)
    assert "sessions.group_expiry (file)" in line
    assert "sessions.expiry_max" in line
    assert remarks(*load(None, {}, {})) == []
    assert not any("group_expiry" in row for row in table(config, origins))


def test_the_file_of_0_1_0_starts_and_what_went_is_told_of() -> None:
    config, origins = load(ROOT / "tests/data/config-0.1.0.toml", {}, {}, lambda: PINNED)
    assert config == divided(Config(), PINNED), "it holds the defaults, which are what is fixed now"
    assert len(remarks(config, origins)) == len(set(origins) & set(REMOVED)) > 40


def test_every_part_of_the_memory_was_a_setting_and_is_told_of(tmp_path: Path) -> None:
    text = '[wheel]\nmax_bytes = "64MiB"\n[tail]\nmax_entries = 7\n[limits]\nqueued = "many"\n'
    config, origins = load(written(tmp_path, text), {"FASTI__LIMITS__OUT_BYTES": "1"}, {}, lambda: PINNED)
    assert (config.wheel, config.tail) == (Config().wheel, Config().tail)
    lines = remarks(config, origins)
    assert [line.partition(" ")[0] for line in lines] == [
        "limits.out_bytes",
        "limits.queued",
        "tail.max_entries",
        "wheel.max_bytes",
    ]
    assert all("limits.memory" in line for line in lines)


def test_no_removed_setting_is_one_that_there_is() -> None:
    assert not set(REMOVED) & set(load(None, {}, {})[1])
    assert all(REMOVED.values())


def test_a_bound_that_is_fixed_is_what_its_warning_says() -> None:
    units = {"": 1, "s": 1_000, "KiB": 1 << 10, "MiB": 1 << 20}
    checked = 0
    for name, instead in REMOVED.items():
        section, _, key = name.partition(".")
        part = getattr(Config(), section, None)
        value = getattr(part, key, getattr(part, f"{key}_ms", None))
        if value and (said := re.match(r"fixed at ([\d,]+) ?(\w*)", instead)):
            assert int(said[1].replace(",", "")) * units[said[2]] == value, name
            checked += 1
    assert checked > 12


def test_a_setting_that_the_memory_has_no_room_for_is_made_smaller_and_told_of() -> None:
    small = {"FASTI__LIMITS__MEMORY": "256MiB"}
    config, origins = load(None, {**small, "FASTI__LIMITS__SESSIONS": "5000"}, {})
    assert config.limits.sessions < 5_000
    (line,) = remarks(config, origins)
    assert line.startswith(f"limits.sessions (env FASTI__LIMITS__SESSIONS) is {config.limits.sessions:,}: ")
    config, origins = load(None, {**small, "FASTI__LIMITS__SESSIONS": "5"}, {})
    assert (config.limits.sessions, remarks(config, origins)) == (5, [])


def test_a_default_that_is_written_down_is_made_smaller_without_a_warning() -> None:
    """`make run` starts with config.toml, which has all defaults: its first line is no warning."""
    config, origins = load(ROOT / "config.toml", {"FASTI__LIMITS__MEMORY": "256MiB"}, {})
    assert config.limits.ordering_keys < Config().limits.ordering_keys
    assert remarks(config, origins) == []
