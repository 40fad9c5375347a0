"""Hashes of secrets: a secret itself is never stored.

    $sha256$hash                                 a key that the server made: 256 random bits need no salt
    $argon2id$v=19$m=19456,t=2,p=1$salt$hash     a password, or a key that an older `keys add` made (RFC 9106)
    $7$101$salt$hash                             mosquitto 2: PBKDF2 with SHA-512, 101 rounds by default
    $6$salt$hash                                 mosquitto 1: one SHA-512 of password and salt

A check of $sha256$ takes 1 us, so it runs on the loop. One of argon2id takes 25 ms and 19 MiB of RAM. All
compare in constant time.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable

from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import Argon2Error, InvalidHashError

QUICK = "$sha256$"
MEMORY_KIB_MAX = 1 << 20
"""Maximum RAM of one check; a hash that asks for more is refused when it is read."""
ROUNDS_MAX = 100
PBKDF2_ROUNDS_MAX = 10_000_000

Verify = Callable[[bytes], bool]
"""Whether a secret matches the hash. Blocking."""


class BadHash(ValueError):
    """An unusable hash; the message does not contain it."""


def hashed(key: str) -> str:
    """The hash of a key with 256 random bits. A password needs argon2id."""
    return QUICK + hashlib.sha256(key.encode()).hexdigest()


def digest_in(text: str) -> bytes | None:
    """The digest in a `hashed` text; None: another kind of hash. Raises BadHash."""
    if not text.startswith(QUICK):
        return None
    digits = text.removeprefix(QUICK)
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise BadHash(f"{QUICK} must be followed by 64 lower-case hex digits")
    return bytes.fromhex(digits)


def is_of(digest: bytes, key: bytes) -> bool:
    """Whether a key has this digest."""
    return hmac.compare_digest(hashlib.sha256(key).digest(), digest)


def argon2id(text: str) -> Verify:
    """The check against an argon2id hash. Raises BadHash."""
    try:
        found = extract_parameters(text)
    except InvalidHashError:
        raise BadHash("is neither a $sha256$ nor an argon2id hash") from None
    if not text.startswith("$argon2id$"):
        raise BadHash("must be argon2id")
    if found.memory_cost > MEMORY_KIB_MAX or found.time_cost > ROUNDS_MAX:
        raise BadHash(f"asks for more than {MEMORY_KIB_MAX} KiB or {ROUNDS_MAX} rounds")
    hasher = PasswordHasher()

    def verify(secret: bytes) -> bool:
        try:
            return hasher.verify(text, secret)
        except (Argon2Error, InvalidHashError):
            return False

    return verify


def mosquitto(text: str) -> Verify:
    """The check against a hash of mosquitto_passwd. Raises BadHash."""
    kind, *parts = text.removeprefix("$").split("$")
    if not text.startswith("$") or (kind, len(parts)) not in (("7", 3), ("6", 2)):
        raise BadHash("is not a hash of mosquitto_passwd ($7$rounds$salt$hash or $6$salt$hash)")
    try:
        salt, wanted = (base64.b64decode(part, validate=True) for part in parts[-2:])
    except (binascii.Error, ValueError):
        raise BadHash("salt or hash is not base64") from None
    if not salt or len(wanted) != hashlib.sha512().digest_size:
        raise BadHash("salt or hash has the wrong length")
    rounds = 0
    if kind == "7":
        if not re.fullmatch(r"\d{1,8}", parts[0], re.ASCII) or not 0 < int(parts[0]) <= PBKDF2_ROUNDS_MAX:
            raise BadHash("the number of rounds is invalid")
        rounds = int(parts[0])

    def verify(password: bytes) -> bool:
        if rounds:
            found = hashlib.pbkdf2_hmac("sha512", password, salt, rounds)
        else:
            found = hashlib.sha512(password + salt).digest()
        return hmac.compare_digest(found, wanted)

    return verify
