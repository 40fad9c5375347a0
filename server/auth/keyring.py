"""All keys of a server: checks them, caches valid ones, and rereads their files.

A key with a $sha256$ line is checked at once, before anything else: no other client can delay it. A check
against argon2id or a mosquitto hash costs 25 ms, so a thread does it, and a valid key is cached under a fast
hash with a key of this process. A cache entry names the stored hash that it was checked against, so it no
longer counts when the file has another.

While a key is being rotated its name has two hashes, and a principal for each: the former one ends by the
clock (`end_former`), as if it were revoked. Both share rights, bounds and rate, which belong to the name.

    unknown name     checked like any other, against some user's hash: it takes as long as a wrong key
    wrong key        counted against its network and name (backoff.py), logged, answered `Refusal`
    the same again   refused without a check, until the files change
    many at once     they wait in turns by network (checking.py); beyond its bounds the server has no time

While a name is held back in a network, a key in the format of the server's own is still checked: 256 bits
cannot be guessed. Passwords are not checked, not even right ones, since the answer would confirm them.

Rereading has two steps: `read` blocks and changes nothing, `take` puts the result in place. If a file cannot
be read nothing changes.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from hashlib import blake2b
from itertools import chain
from math import inf
from pathlib import Path
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from shards.owned import Quota

from ..engine.clock import Clock
from ..net.networks import network_of
from ..observe.logs import by, clean
from ..settings.config import Config
from ..settings.watch import stamps_of
from .backoff import Backoff
from .checking import Checking, Offload
from .hashes import Verify, argon2id, digest_in, is_of, mosquitto
from .keys_file import PREFIX, KeysFileError, is_made, name_in, new_key, read_keys
from .last_use import noted
from .mosquitto import EVERYTHING, NAME_BYTES_MAX, AclFile, read_acl, read_passwords
from .rights import EVERY_SCOPE, NO_GRANT, Grant, Principal, Rights

log = logging.getLogger(__name__)

REMEMBERED = 10_000
"""Maximum number of remembered valid keys; the least recently checked is evicted."""
WRONG_REMEMBERED = 1_000
"""Maximum number of cached wrong keys: a device that has lost its right tries for ever."""
KEY_BYTES_MAX = 1_024
"""A longer key or password is wrong without a check. An empty one is wrong too, whatever hash is stored:
`mosquitto_passwd -b FILE u "$UNSET"` stores the hash of an empty one, and mosquitto always refuses such a
user."""
LACKS_DELIVER = (
    "key %s: %s:%d: deliver is omitted, so the key receives only what subscribe says: write deliver"
)
OWN_NAME = "fasti-server"
"""Name of the server's own programs. No file can have such a key or user."""


class Why(Enum):
    """Why a client was refused."""

    WRONG = auto()
    """Name and key do not match."""
    HELD = auto()
    """Too many wrong keys of this name have come from this network."""
    BUSY = auto()
    """Too many checks are waiting."""


class Refusal(NamedTuple):
    """`wait_s`: seconds until a retry may succeed; 0: at any time."""

    why: Why
    wait_s: float = 0.0


Done = Callable[[Principal | Refusal], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A key or user of the files."""

    hash: str
    grant: Grant
    is_password: bool
    """A password of a mosquitto user."""
    digest: bytes | None = None
    """Digest of a key that is checked at once."""
    until_ms: float = inf
    """Wall time at which it ends."""

    @property
    def verify(self) -> Verify:
        """The slow check."""
        return mosquitto(self.hash) if self.is_password else argon2id(self.hash)


@dataclass(frozen=True, slots=True)
class Read:
    """Parsed files."""

    entries: dict[str, Entry]
    former: dict[str, Entry]
    """What rotated keys were before."""
    anonymous: Grant
    acl: AclFile | None = None
    revoked: frozenset[str] = frozenset()
    """Names of revoked keys."""


class Keyring:
    """All keys, and the principals in use."""

    def __init__(self, config: Config, clock: Clock, offload: Offload) -> None:
        """Raises KeysFileError if a file cannot be used."""
        self._paths = tuple(
            Path(text) if text else None
            for text in (config.auth.keys_file, config.mqtt.password_file, config.mqtt.acl_file)
        )
        self.paths = tuple(path for path in self._paths if path is not None)
        self.has_api_keys = self._paths[0] is not None
        """Whether there are keys, which HTTP requires."""
        self.is_open = not self.paths
        """Whether there are no files, so that everything is allowed."""
        self.name = "keys"
        """Name among the watched files (server/settings/watch.py)."""
        self.stamps = stamps_of(self.paths)
        self._clock = clock
        self._salt = secrets.token_bytes(32)
        self._backoff = Backoff(clock.mono)
        self._principals: dict[tuple[str, str], Principal] = {}
        """By name and stored hash."""
        self.anonymous = Principal("", EVERYTHING, clock.mono)
        """A client without a key, where that is allowed."""
        self._takes_names = self._paths[1] is None and any(map(config.lets_anybody, config.mqtt.listen))
        """Whether a user of the ACL file needs no password: there is no file of passwords."""
        self._acl: AclFile | None = None
        self._unavailable: frozenset[str] = frozenset()
        """Names that need a key."""
        self._unproven: WeakValueDictionary[str, Principal] = WeakValueDictionary()
        """Users without a password, while one of their clients or sessions is there."""
        self._checking = Checking(offload)
        self._right: dict[bytes, tuple[str, str]] = {}
        """Keyed hash of name and key -> the name, and the stored hash that it was checked against."""
        self._wrong: dict[bytes, str] = {}
        """The same of wrong keys; cleared when the files change."""
        self._own_key = new_key(OWN_NAME)
        self._own = Principal(OWN_NAME, Grant(EVERY_SCOPE), clock.mono)
        self.refused = 0
        """Wrong keys since the start."""
        self.take(self.read())

    def own_key(self) -> str:
        """Key for programs that the server starts; valid until the server stops."""
        return self._own_key if self.has_api_keys else ""

    # -- identity

    def recall(self, name: str, key: bytes) -> Principal | None:
        """The principal of a key, if it is known without a slow check; not for passwords."""
        for entry in self._valid(name) if len(key) <= KEY_BYTES_MAX else ():
            if entry.digest is not None:
                is_right = is_of(entry.digest, key)
            else:
                proved = None if entry.is_password else self._right.get(self._digest(name, key))
                is_right = proved == (name, entry.hash)
            if is_right:
                return self._used(name, entry)
        return None

    def check(self, name: str, key: bytes, address: str, done: Done) -> None:
        """Check a key; calls `done` at once, or later on the loop."""
        known = self.recall(name, key)
        if known is not None:
            done(known)
            return
        if len(key) == len(self._own_key) and secrets.compare_digest(key, self._own_key.encode()):
            done(self._own)
            return
        credential, checking = _Credential(name, key, network_of(address), address), self._checking
        if not key or len(key) > KEY_BYTES_MAX or not self._read.entries:
            self._refuse(credential, done)
            return
        wait_s = self._held_s(credential)
        if wait_s:
            done(Refusal(Why.HELD, wait_s))
            return
        digest = self._digest(name, key)
        valid = self._valid(name)
        against = [one for one in valid or self._valid(self._somebody(name)) if one.digest is None]
        proved = next((one for one in valid if self._right.get(digest) == (name, one.hash)), None)
        if proved is not None:
            done(self._used(name, proved))
        elif not against or digest in self._wrong:
            self._refuse(credential, done)
        elif checking.joins(
            credential.network, digest, found := partial(self._found, credential, digest, valid, done)
        ):
            return
        elif checking.has_many(credential.network, name):
            done(Refusal(Why.HELD, 1.0))
        elif not checking.has_room(credential.network):
            done(Refusal(Why.BUSY, 1.0))
        else:
            checking.begin(
                credential.network,
                name,
                digest,
                lambda: not self._held_s(credential),
                lambda: next((one.hash for one in against if one.verify(key)), ""),
                found,
            )

    def named(self, name: str) -> Principal | None:
        """Rights by name, for clients that were authenticated another way, such as by a certificate."""
        entry = self._read.entries.get(name)
        return None if entry is None else self._used(name, entry)

    def unproven(self, name: str) -> Principal | None:
        """The user of that name in the ACL file, who proves nothing; None: the name needs a key or password.

        As with mosquitto, one that the file does not list has the rights of its patterns.
        """
        if self._acl is None or not name or name in self._unavailable or len(name.encode()) > NAME_BYTES_MAX:
            return None
        principal = self._unproven.get(name)
        if principal is None:
            principal = Principal(name, self._acl.grant(name), self._clock.mono, is_proven=False)
            self._unproven[name] = principal
        return principal

    def _held_s(self, credential: "_Credential") -> float:
        """Seconds for which a guess is held back; 0.0: it is checked, or is no guess."""
        return 0.0 if is_made(credential.key) else self._backoff.wait_s(credential.network, credential.name)

    def _found(
        self, credential: "_Credential", digest: bytes, before: list[Entry], done: Done, stored: str | None
    ) -> None:
        """Result of a slow check. `before`: checked against; empty: somebody's. `stored`: what matches."""
        if stored is None:
            log.error("keys: a check failed")
            done(Refusal(Why.BUSY, 1.0))
            return
        now = self._valid(credential.name)
        entry = next((one for one in now if one.hash == stored), None)
        if entry is None:
            if before == now:
                _remember(self._wrong, digest, credential.name, WRONG_REMEMBERED)
            self._refuse(credential, done)
            return
        _remember(self._right, digest, (credential.name, entry.hash), REMEMBERED)
        done(self._used(credential.name, entry))

    def _refuse(self, credential: "_Credential", done: Done) -> None:
        """Refuse a wrong key. While its name is held back in its network it is neither counted nor logged."""
        wait_s = self._backoff.wait_s(credential.network, credential.name)
        if wait_s:
            done(Refusal(Why.HELD, wait_s))
            return
        self.refused += 1
        self._backoff.failed(credential.network, credential.name)
        log.warning(
            "key %s: wrong key from %s",
            _log_name(credential.name),
            credential.address,
            extra=by(credential.address),
        )
        done(Refusal(Why.WRONG))

    def _valid(self, name: str) -> list[Entry]:
        """The entry of a name, and its former one until that ends; empty: there is no such name."""
        both, now_ms = (self._read.entries.get(name), self._read.former.get(name)), self._clock.wall_ms()
        valid = (one for one in both if one is not None and now_ms < one.until_ms)
        return [one for one in valid if self._principals[name, one.hash].is_live]

    def _somebody(self, name: str) -> str:
        """The user against whose hash an unknown name is checked: always the same for a name."""
        at = int.from_bytes(self._digest(name, b"")[:8], "big") % len(self._names)
        return self._names[at]

    def _used(self, name: str, entry: Entry) -> Principal:
        principal = self._principals[name, entry.hash]
        principal.last_used_ms = self._clock.wall_ms()
        return principal

    def _digest(self, name: str, key: bytes) -> bytes:
        text = name.encode()
        return blake2b(b"%d:%b%b" % (len(text), text, key), key=self._salt, digest_size=32).digest()

    # -- rights of clients by name

    def rights_of(self, name: str, client_id: str) -> Rights | None:
        """Rights of a client by the name of its key; "": none. None: everything is allowed."""
        if self.is_open:
            return None
        principal = self._known(name)
        if principal is None:
            principal = Principal(name, EVERYTHING, self._clock.mono)
            principal.revoke()
        return Rights(principal, client_id)

    def _known(self, name: str) -> Principal | None:
        """The principal of a name; empty: of a client without a key."""
        if not name:
            return self.anonymous
        entry = self._read.entries.get(name)
        if entry is None:
            return self._own if name == OWN_NAME else self.unproven(name)
        return self._principals[name, entry.hash]

    def is_absent(self, name: str) -> bool:
        """Whether the files have no key or user of that name, nor a revoked one."""
        return not self.is_open and name not in self._unavailable and self.unproven(name) is None

    def is_revoked(self, name: str) -> bool:
        """Whether the files have a revoked key of that name, and no other."""
        return not self.is_open and name in self._read.revoked and name not in self._read.entries

    def may_send(self, name: str, client_id: str, topic: bytes) -> tuple[bool, int]:
        """Whether the client may publish to the topic, and the number of rules checked."""
        if self.is_open:
            return True, 0
        principal = self._known(name)
        return (False, 0) if principal is None else principal.may_send(client_id, topic)

    def binds_anonymous(self) -> bool:
        """Whether clients without a name may not publish everything."""
        return not self.anonymous.grant.publish.is_every

    def bound_of(self, owner: str, name: str) -> int:
        """A key's own bound of that name (BOUNDS); 0: it has none, or is no longer valid."""
        entry = self._read.entries.get(owner)
        return 0 if entry is None else getattr(entry.grant, name)

    def is_proven(self, owner: str) -> bool:
        """Whether the owner has a key or a password, or no name: the reserve of a shared bound is for it
        too."""
        return not owner or owner == OWN_NAME or owner in self._read.entries

    def quota_of(self, owner: bytes) -> Quota:
        """A key's bounds on pending messages and their bytes."""
        entry = self._read.entries.get(owner.decode())
        if entry is None:
            return Quota(is_proven=self.is_proven(owner.decode()))
        return Quota(entry.grant.pending, entry.grant.pending_bytes)

    def used(self) -> dict[str, int]:
        """Last use of used keys by name, and of each hash of a rotated one (`noted`; 0: none), wall ms."""
        used: dict[str, int] = {}
        for (name, stored), principal in self._principals.items():
            for at in (name, noted(name, stored)) if name in self._read.former else (name,):
                used[at] = max(principal.last_used_ms, used.get(at, 0))
        return {at: last_ms for at, last_ms in used.items() if last_ms or ":" in at}

    # -- files

    def again(self) -> Callable[[], None]:
        """Read the files; returns a function that puts the result in place. Raises KeysFileError."""
        return partial(self.take, self.read())

    def read(self) -> Read:
        """Parse the files; changes nothing, may take a second, in any thread. Raises KeysFileError."""
        keys_path, password_path, acl_path = self._paths
        entries: dict[str, Entry] = {}
        former: dict[str, Entry] = {}
        revoked: set[str] = set()
        if keys_path is not None:
            for key in read_keys(keys_path):
                if key.name == OWN_NAME:
                    raise KeysFileError(keys_path, key.line, f"{OWN_NAME} is the server itself", "name")
                if key.revoked is not None:
                    revoked.add(key.name)
                else:
                    if key.lacks_deliver:
                        log.warning(LACKS_DELIVER, key.name, keys_path, key.line, extra=by(key.name))
                    entries[key.name] = Entry(key.hash, key.grant, False, digest_in(key.hash))
                    if key.former_hash and key.former_until:
                        digest, until_ms = digest_in(key.former_hash), key.former_until.timestamp() * 1_000
                        former[key.name] = Entry(key.former_hash, key.grant, False, digest, until_ms)
        acl = None if acl_path is None else read_acl(acl_path)
        if password_path is not None:
            for user, stored in read_passwords(password_path).items():
                if user == OWN_NAME:
                    raise KeysFileError(password_path, 0, f"{OWN_NAME} is the server itself", "user")
                if user in entries:
                    raise KeysFileError(password_path, 0, f"{clean(user)} is in auth.keys_file too", "user")
                grant = EVERYTHING if acl is None else acl.grant(user)
                entries[user] = Entry(stored, grant, is_password=True)
        anonymous = EVERYTHING if acl is None else acl.grant("")
        return Read(entries, former, anonymous, acl, frozenset(revoked))

    def take(self, read: Read) -> None:
        """Put parsed files in place: rules are replaced, keys that are gone or have ended are revoked."""
        self._read = read
        self._wrong.clear()
        self._names = list(read.entries)
        before, self._principals = self._principals, {}
        limiters = {name: principal.rate_limiter for (name, _), principal in before.items()}
        now_ms, self._end_ms = self._clock.wall_ms(), inf
        for name, entry in chain(read.entries.items(), read.former.items()):
            is_over, principal = now_ms >= entry.until_ms, before.pop((name, entry.hash), None)
            if principal is None or not (principal.is_live or is_over):
                principal = Principal(name, NO_GRANT, self._clock.mono)
            principal.rate_limiter = limiters.setdefault(name, principal.rate_limiter)
            self._principals[name, entry.hash] = principal
            if is_over:
                principal.revoke()  # kept for its last use
            else:
                principal.replace(entry.grant)
                self._end_ms = min(self._end_ms, entry.until_ms)
        for principal in before.values():
            principal.revoke()
        self.anonymous.replace(read.anonymous)
        self._acl = read.acl if self._takes_names else None
        self._unavailable = read.revoked | read.entries.keys() | {OWN_NAME}
        for name, principal in list(self._unproven.items()):
            if self._acl is None or name in self._unavailable:
                principal.revoke()
                del self._unproven[name]
            else:
                principal.replace(self._acl.grant(name))

    async def end_former(self, review: Callable[[], None]) -> None:
        """A chore: revoke former keys whose time is over. `review`: called if there were any."""
        if self._clock.wall_ms() >= self._end_ms:
            self.take(self._read)
            log.info("keys: the overlap of a rotation has ended")
            review()


class _Credential(NamedTuple):
    """A credential, and its network."""

    name: str
    key: bytes
    network: str
    address: str


Value = TypeVar("Value")


def _remember(known: dict[bytes, Value], digest: bytes, value: Value, most: int) -> None:
    if len(known) >= most:
        del known[next(iter(known))]
    known[digest] = value


def _log_name(name: str) -> str:
    """A name for the log. Some clients send their whole key as the name."""
    if not name.startswith(PREFIX):
        return clean(name) or "nobody"
    return clean(name_in(name.encode())) or "what looks like a key"


def split_credential(key: str) -> tuple[str, bytes]:
    """Name and key of an HTTP credential; if it has another format, a name that no key has."""
    return name_in(key.encode()), key.encode()
