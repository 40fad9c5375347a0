"""Signatures and secrets."""

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest

from server.webhook.signing import SecretError, fingerprint, secret_of, signatures

VECTOR = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""Of the published test vector of Standard Webhooks."""


def test_the_published_vector() -> None:
    secret = secret_of(VECTOR)
    signed = signatures([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_two_secrets_sign_side_by_side() -> None:
    one, two = bytes(range(24)), bytes(range(64))
    both = signatures([two, one], "id", 5, b"body").split(" ")
    for secret, text in zip((two, one), both, strict=True):
        version, _, signature = text.partition(",")
        assert version == "v1"
        assert b64decode(signature) == hmac.new(secret, b"id.5.body", hashlib.sha256).digest()
    assert signatures([], "id", 5, b"body") == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "must begin with whsec_"),
        ("whsec_", "has 0"),
        ("whsec_%%%", "must be base64"),
        ("whsec_" + b64encode(bytes(23)).decode(), "has 23"),
        ("whsec_" + b64encode(bytes(65)).decode(), "has 65"),
        ("whsec_ÄÄÄÄ", "must be base64"),
    ],
)
def test_what_is_no_secret_is_refused_without_saying_it_back(text: str, why: str) -> None:
    with pytest.raises(SecretError, match=why) as caught:
        secret_of(text)
    assert len(text) < 12 or text[6:] not in str(caught.value)


@pytest.mark.parametrize("size", [24, 64])
def test_the_bounds_are_secrets(size: int) -> None:
    assert secret_of("whsec_" + b64encode(bytes(size)).decode()) == bytes(size)


def test_a_fingerprint_tells_secrets_apart_and_is_none() -> None:
    assert fingerprint(bytes(24)) != fingerprint(bytes(25))
    assert len(fingerprint(bytes(24))) == 16
    assert fingerprint(bytes(24)) not in hashlib.sha256(bytes(24)).hexdigest()
