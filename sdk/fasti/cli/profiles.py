"""Named servers, in TOML.

    # ~/.config/fasti/config.toml   ($XDG_CONFIG_HOME is honoured, FASTI_CONFIG names another file)
    [profiles.default]
    url = "http://127.0.0.1:8080"

    [profiles.live]
    url = "https://fasti.example.org"
    key = "..."
    mqtt = "fasti.example.org:1883"

    [profiles.cluster]
    url = "http://a:8080,http://b:8080,http://c:8080"

An option on the command line wins over the environment, which wins over the profile `default`; a profile
named by `--profile` wins over the environment.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self


class ProfileError(Exception):
    """The file cannot be read, or has no such profile."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The server's address and our identity; None where not set."""

    url: str | None = None
    key: str | None = None
    mqtt: str | None = None

    @classmethod
    def of_environment(cls) -> Self:
        return cls(os.environ.get("FASTI_URL"), os.environ.get("FASTI_KEY"))

    def over(self, other: Profile) -> Profile:
        """This one, with the other's values where it has none."""
        return Profile(self.url or other.url, self.key or other.key, self.mqtt or other.mqtt)


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
    if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
        raise ProfileError(f"{where}: expected {', '.join(sorted(known))} as strings")
    if unknown := sorted(set(values) - known):
        raise ProfileError(f"{where}: unknown key {unknown[0]!r}")
    return Profile(**values)
