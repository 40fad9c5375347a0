"""Named servers, in TOML.

    # ~/.config/fasti/config.toml   ($XDG_CONFIG_HOME is honoured, FASTI_CONFIG names another file)
    [profiles.default]
    url = "http://127.0.0.1:8080"

    [profiles.live]
    url = "https://fasti.example.org"
    key = "..."
    mqtt = "mqtts://fasti.example.org:8883"      # default: as the server says
    ca = "~/.config/fasti/ca.pem"
    cert = "~/.config/fasti/me.pem"              # or "me.pem,me.key"

    [profiles.cluster]
    url = "http://a:8080,http://b:8080,http://c:8080"

An option on the command line wins over the environment, which wins over the profile `default`; a profile
named by `--profile` wins over the environment. With another `url` than a profile's, its `mqtt` and its
`allow_plain` do not count: they are of that server.
"""

from __future__ import annotations

import os
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import fasti

_CERT_FILES = 2
"""Of a certificate and its key."""


class ProfileError(Exception):
    """The file cannot be read, or has no such profile."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The server's address and our identity; None where not set."""

    url: str | None = None
    key: str | None = None
    mqtt: str | None = None
    ca: str | None = None
    cert: str | None = None
    allow_plain: bool | None = None

    @classmethod
    def of_environment(cls) -> Self:
        found = os.environ.get
        return cls(found("FASTI_URL"), found("FASTI_KEY"), ca=found("FASTI_CA"))

    def over(self, other: Profile) -> Profile:
        """This one, with the other's values where it has none. `mqtt` and `allow_plain` are of its `url`."""
        if self.url not in (None, other.url):
            other = replace(other, mqtt=None, allow_plain=None)
        return Profile(**{f.name: getattr(self, f.name) or getattr(other, f.name) for f in fields(self)})

    def client(self, retry: fasti.Retry, warn: Callable[[str], None]) -> fasti.Client:
        """Raises BadArgument, ValueError."""
        files = [str(Path(name.strip()).expanduser()) for name in (self.cert or "").split(",")]
        if len(files) > _CERT_FILES:
            raise fasti.BadArgument("cert", f"must be FILE or FILE,KEY, not {self.cert!r}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = fasti.Client(
                self.url,
                key=self.key,
                mqtt=self.mqtt,
                ca=self.ca and Path(self.ca).expanduser(),
                cert=self.cert and (files[0] if len(files) == 1 else (files[0], files[1])),
                allow_plain=bool(self.allow_plain),
                retry=retry,
            )
        for one in caught:
            warn(str(one.message))
        return made


def settled(named: Profile, wanted: str | None) -> Profile:
    """What was given, with the environment, unless a profile is `wanted`, and the profile behind it. Raises
    ProfileError."""
    return (named if wanted else named.over(Profile.of_environment())).over(chosen(wanted))


def config_file() -> Path:
    """The file of the profiles."""
    if named := os.environ.get("FASTI_CONFIG"):
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "fasti" / "config.toml"


def chosen(name: str | None) -> Profile:
    """The named profile; without a name `default`, or an empty one. Raises ProfileError."""
    path = config_file()
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text()).get("profiles", {})
    except FileNotFoundError:
        found = {}
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ProfileError(f"{path}: {error}") from error
    if name is not None and name not in found:
        raise ProfileError(f"{path} has no [profiles.{name}]")
    return _profile(found.get(name or "default", {}), f"{path}: profiles.{name or 'default'}")


def _profile(values: Any, where: str) -> Profile:
    known = {f.name for f in fields(Profile)}
    if not isinstance(values, dict) or not all(
        isinstance(value, bool if name == "allow_plain" else str) for name, value in values.items()
    ):
        texts = ", ".join(sorted(known - {"allow_plain"}))
        raise ProfileError(f"{where}: expected {texts} as strings, allow_plain as true or false")
    if unknown := sorted(set(values) - known):
        raise ProfileError(f"{where}: unknown key {unknown[0]!r}")
    return Profile(**values)
