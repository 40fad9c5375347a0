"""Signatures of posts, by Standard Webhooks.

    secret       whsec_ + base64 of 24 to 64 bytes
    signed       webhook-id . webhook-timestamp . body
    signature    v1, + base64 of HMAC-SHA256, one for each secret, with a space in between

While a secret is being replaced there are two signatures, so that the receiver may know either secret.

Source: https://www.standardwebhooks.com, "Symmetric signatures".
"""

import binascii
import hashlib
import hmac
from base64 import b64encode
from collections.abc import Iterable

PREFIX = "whsec_"
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
FINGERPRINT_DIGITS = 16


class SecretError(ValueError):
    """An invalid secret; the message does not contain it."""


def secret_of(text: str) -> bytes:
    """The bytes of a secret's text. Raises SecretError."""
    if not text.startswith(PREFIX):
        raise SecretError(f"must begin with {PREFIX}")
    try:
        secret = binascii.a2b_base64(text.removeprefix(PREFIX), strict_mode=True)
    except (binascii.Error, ValueError):
        raise SecretError(f"must be base64 behind {PREFIX}") from None
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise SecretError(f"must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, has {len(secret)}")
    return secret


def fingerprint(secret: bytes) -> str:
    """Identifies a secret without revealing it."""
    return hashlib.sha256(b"fasti webhook secret\0" + secret).hexdigest()[:FINGERPRINT_DIGITS]


def signatures(secrets: Iterable[bytes], message: str, timestamp_s: int, body: bytes) -> str:
    """The header `webhook-signature`; empty without secrets."""
    signed = f"{message}.{timestamp_s}.".encode() + body
    return " ".join("v1," + b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in secrets)
