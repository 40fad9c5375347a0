"""Keys for tests: cheap to check, in a file."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher

from server.auth.backoff import Backoff
from server.auth.checking import at_once
from server.auth.hashes import hashed
from server.auth.keyring import Keyring, Refusal
from server.auth.keys_file import new_key
from server.auth.rights import Principal
from server.engine.clock import SimulatedClock
from server.settings.config import Config

NOW_MS = 1_795_248_000_000
CHEAP_KIB = 8


def argon2_hash(secret: str) -> str:
    """A hash as `keys add` wrote it once, with a small part of the work."""
    return PasswordHasher(2, CHEAP_KIB, 1).hash(secret)


class Clock(SimulatedClock):
    """Monotonic time stands still too."""

    def __init__(self) -> None:
        super().__init__(NOW_MS)
        self.mono_s = 0.0

    def mono(self) -> float:
        return self.mono_s


class KeysFile:
    """A keys file that a test writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._blocks: dict[str, str] = {}
        self.write()

    def add(self, name: str, *scopes: str, is_old: bool = False, **fields: Any) -> str:
        """The key; `scopes` schedule and read if there are none; `fields` as in the file. `is_old`: with a
        hash that takes its time, as `keys add` wrote them once."""
        key = new_key(name)
        stored = argon2_hash(key) if is_old else hashed(key)
        lines = [f'name = "{name}"', f'hash = "{stored}"']
        lines.append(f"scopes = {list(scopes or ('schedule', 'read'))}".replace("'", '"'))
        lines += [f"{field} = {value}".replace("'", '"') for field, value in fields.items()]
        self._blocks[name] = "\n".join(["[[key]]", *lines, ""])
        self.write()
        return key

    def rotate(self, name: str, until_ms: int) -> str:
        """The new key of that name; the one that it has ends at `until_ms`, and the one before that now."""
        key, lines = new_key(name), self._blocks[name].splitlines()
        stored = next(line for line in lines if line.startswith("hash = "))
        until = datetime.fromtimestamp(until_ms / 1000, UTC).isoformat()
        fresh = [f'hash = "{hashed(key)}"', f"former_{stored}", f"former_until = {until}"]
        kept = [line for line in lines if not line.startswith(("hash = ", "former_"))]
        self._blocks[name] = "\n".join([*kept, *fresh, ""])
        self.write()
        return key

    def change(self, name: str, before: str, after: str) -> None:
        assert before in self._blocks[name]
        self._blocks[name] = self._blocks[name].replace(before, after)
        self.write()

    def revoke(self, name: str) -> None:
        self._blocks[name] += "revoked = 2026-11-22T00:00:00Z\n"
        self.write()

    def remove(self, name: str) -> str:
        """Its lines, which `put_back` takes: the file has never had the name."""
        lines = self._blocks.pop(name)
        self.write()
        return lines

    def put_back(self, name: str, lines: str) -> None:
        self._blocks[name] = lines
        self.write()

    def write(self, text: str | None = None) -> None:
        self.path.unlink(missing_ok=True)
        self.path.touch(0o600)
        self.path.write_text("\n".join(self._blocks.values()) if text is None else text)


def with_keys(config: Config, keys: Path | None, **mqtt: Any) -> Config:
    auth = replace(config.auth, keys_file=str(keys) if keys is not None else "")
    return replace(config, auth=auth, mqtt=replace(config.mqtt, **mqtt))


def ring(keys: Path | None, clock: Clock, offload: Any = at_once, **mqtt: Any) -> Keyring:
    return Keyring(with_keys(Config(), keys, **mqtt), clock, offload)


def shown(keyring: Keyring, name: str, key: str, address: str = "10.0.0.1") -> Principal | Refusal:
    """The answer, which has come at once."""
    answers: list[Principal | Refusal] = []
    keyring.check(name, key.encode(), address, answers.append)
    (answer,) = answers
    return answer


__all__ = ["NOW_MS", "Backoff", "Clock", "KeysFile", "ring", "shown", "with_keys"]
