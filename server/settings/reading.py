"""Reads values from defaults, file, environment and command line; later ones override.

All use the same readers, so that `FASTI__STORE__MIN_FREE=8MiB` and `min_free = "8MiB"` are equal:

    [slices]                            Config.slices.retention_ms == 604_800_000
    retention = "7d"                    origins["slices.retention"] == "file"

An unknown key is an error, and so is a value out of bounds: a silently ignored setting is worse than a server
that does not start. A removed setting is a warning.
"""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

from shards.archives import is_local

from .config import Config, ConfigError, is_same
from .kinds import HIDDEN, SettingKind, show_size, without_password
from .memory import Memory, automatic, bounds_of, in_columns
from .removed import REMOVED

ENV_PREFIX = "FASTI__"
FILE = "file"
OTHERS_READ = 0o004
CUT = ", cut by limits.memory"
CLUSTER_KEY_MIN = 16
CLUSTER_KEYS = 2
"""Minimum characters of the nodes' key."""


def found() -> Memory:
    """`limits.memory` for this machine, or for the process's cgroup."""
    return automatic(Path("/"), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def load(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object],
    found: Callable[[], Memory] = found,
) -> tuple[Config, dict[str, str]]:
    """The configuration, and the origin of each `section.key`: "default", FILE, "env FASTI__…" or "option",
    with CUT behind it where `limits.memory` has no room for a value that is not the default. Removed settings
    that are present have an origin too (`remarks`).

    `overrides` maps `section.key` to a command-line option's value, None if absent. `found`: the value of
    `limits.memory` "auto". Raises ConfigError naming the key.
    """
    given: dict[str, tuple[object, str]] = {}
    options = ((name, value, "option") for name, value in overrides.items() if value is not None)
    for name, value, origin in chain(_from_file(path), _from_environ(environ), options):
        if name not in REMOVED:
            _check_known(name, origin)
        given[name] = (value, origin)
    wanted = _capped(Config(**{item.name: _section(item.name, given) for item in fields(Config)}))
    config = divided(wanted, wanted.limits.memory if wanted.limits.memory.bytes else found())
    config = _certified(config)
    _check_together(config)
    known = {name: origin for name, (_, origin) in given.items()}
    for name, bound in bounds_of(config.limits.memory.bytes).items():
        if (
            name in known
            and name not in REMOVED
            and bound < value_of(wanted, name) != value_of(Config(), name)
        ):
            known[name] += CUT
    return config, dict.fromkeys([name for name, _, _ in keys()], "default") | known


def divided(config: Config, memory: Memory) -> Config:
    """The configuration with the parts of this memory."""
    config = _changed(config, "limits", memory=memory)
    for name, bound in bounds_of(memory.bytes).items():
        section, _, attribute = name.partition(".")
        given: int = getattr(getattr(config, section), attribute)
        config = _changed(config, section, **{attribute: min(bound, given)})
    return config


def _changed(config: Config, section: str, **values: object) -> Config:
    return replace(config, **{section: replace(getattr(config, section), **values)})


def remarks(config: Config, origins: Mapping[str, str]) -> list[str]:
    """Warnings about removed settings, and about those that `limits.memory` has no room for."""
    return [
        f"{name} ({origins[name]}) was removed and is ignored: {instead}"
        for name, instead in sorted(REMOVED.items())
        if name in origins
    ] + [
        f"{name} ({origin.removesuffix(CUT)}) is {value_of(config, name):,}: limits.memory allows no more"
        for name, origin in origins.items()
        if origin.endswith(CUT)
    ]


def exposed(config: Config, origins: Mapping[str, str], path: Path | None) -> list[str]:
    """Warnings about files with secrets that other users can read: settings, and private keys for TLS.

    `path`: the settings file. With such a keys file the server does not start (server/auth/keys_file.py)."""
    return [
        f"{file} has mode {mode:04o}: other users can read {what} in it; chmod 600 {file}"
        for file, what in _secret_in(config, origins, path)
        if os.access(file, os.R_OK) and (mode := file.stat().st_mode & 0o777) & OTHERS_READ
    ]


def _secret_in(config: Config, origins: Mapping[str, str], path: Path | None) -> Iterator[tuple[Path, str]]:
    for name, _, kind in keys():
        if path and origins[name].startswith(FILE) and HIDDEN in kind.show(value_of(config, name)):
            yield path, name
    for one in dict.fromkeys(part.tls_key or part.tls_cert for part in (config.http, config.mqtt)):
        if one:  # a certificate without a key beside it has the key in its file
            yield Path(one), "the private key"


def table(config: Config, origins: Mapping[str, str]) -> list[str]:
    """A line for each key for `--check`: name, value, origin, in columns."""
    return in_columns([(name, kind.show(value_of(config, name)), origins[name]) for name, _, kind in keys()])


def keys() -> Iterator[tuple[str, str, SettingKind[Any]]]:
    """(`section.key`, attribute, kind) of all keys, in the order of the file."""
    for section in fields(Config):
        for item in settable(getattr(Config(), section.name)):
            yield f"{section.name}.{key_name(item.name)}", item.name, item.metadata["kind"]


def settable(section: Any) -> Iterator[Field[Any]]:
    return (item for item in fields(section) if "kind" in item.metadata)


def value_of(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    part = getattr(config, section)
    return next(getattr(part, item.name) for item in settable(part) if key_name(item.name) == name)


def key_name(attribute: str) -> str:
    return attribute.removesuffix("_ms").removesuffix("_s")


Entry = tuple[str, object, str]


def _from_file(path: Path | None) -> Iterator[Entry]:
    if path is None:
        return
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), f"is not TOML: {error}") from None
    for section, keys in tree.items():
        if not isinstance(keys, dict):
            raise ConfigError(section, "unknown key: every key belongs to a [section]")
        if not keys:
            _check_section(section, FILE)
        for key, value in keys.items():
            yield f"{section}.{key}", value, FILE


def _from_environ(environ: Mapping[str, str]) -> Iterator[Entry]:
    for variable, value in environ.items():
        if variable.startswith(ENV_PREFIX):
            name = variable.removeprefix(ENV_PREFIX).lower().replace("__", ".", 1)
            yield name, value, f"env {variable}"


def _check_known(name: str, origin: str) -> None:
    known = [key for key, _, _ in keys()]
    if name in known:
        return
    _check_section(name.partition(".")[0], origin)
    (near,) = get_close_matches(name, known, 1, cutoff=0)
    raise ConfigError(name, f"unknown key ({origin}); is {near} meant?")


def _check_section(section: str, origin: str) -> None:
    known = list(dict.fromkeys(key.partition(".")[0] for key, _, _ in keys()))
    if section not in known and not any(name.startswith(f"{section}.") for name in REMOVED):
        raise ConfigError(section, f"unknown section ({origin}); there are {', '.join(known)}")


def _section(name: str, given: Mapping[str, tuple[object, str]]) -> Any:
    default = getattr(Config(), name)
    changes = {}
    for item in settable(default):
        key = f"{name}.{key_name(item.name)}"
        if key in given:
            value, origin = given[key]
            try:
                changes[item.name] = item.metadata["kind"].read(value)
            except (ValueError, RecursionError) as error:
                excerpt = HIDDEN if item.metadata["kind"].is_secret else without_password(repr(value))
                raise ConfigError(key, f"{without_password(str(error))}, got {excerpt} ({origin})") from None
    return replace(default, **changes)


def _capped(config: Config) -> Config:
    """Cap session expiry: no session outlives the messages kept for it."""
    most_ms = min(config.sessions.expiry_max_ms, config.slices.retention_ms)
    return _changed(config, "sessions", expiry_max_ms=most_ms)


def _certified(config: Config) -> Config:
    """Give MQTT over TLS HTTP's certificate if it has none of its own."""
    http, mqtt = config.http, config.mqtt
    if mqtt.tls_cert or mqtt.tls_key or not any(one.has_tls for one in mqtt.listen):
        return config
    return _changed(config, "mqtt", tls_cert=http.tls_cert, tls_key=http.tls_key)


def _check_cluster(config: Config) -> None:
    cluster = config.cluster
    if not cluster.log:
        return
    for key, listener in (
        ("http.public_url", config.http.listen),
        *(("mqtt.public_urls", one) for one in config.mqtt.listen),
    ):
        if listener.is_everywhere and not value_of(config, key):
            raise ConfigError(key, f"is required in a cluster: others cannot use the address {listener}")
    for key, value in (("node", cluster.node), ("key", cluster.key)):
        if not value:
            raise ConfigError(f"cluster.{key}", "is required, because cluster.log is set")
    if not cluster.keys or any(len(key) < CLUSTER_KEY_MIN for key in cluster.keys):
        raise ConfigError("cluster.key", f"must have {CLUSTER_KEY_MIN} characters or more")
    if len(cluster.keys) > CLUSTER_KEYS:
        raise ConfigError("cluster.key", f"has {len(cluster.keys)} keys, at most {CLUSTER_KEYS}")


def _check_together(config: Config) -> None:
    """Raise ConfigError for values that are invalid together."""
    limits, auth, data = config.limits, config.auth, os.path.realpath(config.store.dir)
    for key, folder in (
        ("store.backups", config.store.backups_dir),
        ("slices.archive", config.slices.archive if is_local(config.slices.archive) else ""),
    ):
        if folder and Path(os.path.realpath(folder)).is_relative_to(data):
            raise ConfigError(key, f"must not lie in store.dir ({data})")
    largest = min(config.http.max_body, config.shards.cap_bytes)
    if limits.max_payload >= largest:
        raise ConfigError(
            "limits.max_payload",
            f"must be below {show_size(largest)}, which a request may have; limits.memory bounds that",
        )
    if max(config.sessions.backoff_ms) > limits.max_delay_ms:
        raise ConfigError("sessions.backoff", "must have no step above limits.max_delay")
    _check_cluster(config)
    if any(listener.has_tls for listener in config.mqtt.listen) and not config.mqtt.tls_cert:
        raise ConfigError("mqtt.tls_cert", "is required, because mqtt.listen has a TLS listener")
    for given, needed in (
        ("http.tls_key", "http.tls_cert"),
        ("mqtt.tls_key", "mqtt.tls_cert"),
        ("mqtt.tls_ca", "mqtt.tls_cert"),
        ("mqtt.tls_crl", "mqtt.tls_ca"),
        ("mqtt.tls_require_certificate", "mqtt.tls_ca"),
        ("mqtt.tls_identity_as_username", "mqtt.tls_require_certificate"),
        ("mqtt.proxy_protocol", "limits.trusted_proxies"),
    ):
        if value_of(config, given) and not value_of(config, needed):
            raise ConfigError(needed, f"is required, because {given} is set")
    allowed = config.mqtt.allow_anonymous
    for one in allowed if isinstance(allowed, tuple) else ():
        if not any(is_same(listener, one) for listener in config.mqtt.listen):
            raise ConfigError("mqtt.allow_anonymous", f"{one} is not one of mqtt.listen")
    if auth.allow_open:
        return
    if not config.http.listen.is_loopback and not auth.keys_file:
        raise ConfigError(
            "auth.allow_open",
            f"must be true, or auth.keys_file set: http.listen {config.http.listen} can be reached from"
            " other machines",
        )
    for listener in config.mqtt.listen:
        if not listener.is_loopback and config.lets_anybody(listener):
            raise ConfigError(
                "mqtt.allow_anonymous",
                f"must be false: mqtt.listen {listener} can be reached from other machines",
            )
