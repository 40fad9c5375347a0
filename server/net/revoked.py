"""Lists of revoked certificates, as far as has to be known of them once a handshake is over.

In a handshake OpenSSL looks at the list itself; of a connection that is there it cannot be asked any more.
So the list is read here too, for one question: does it name the certificate of this client? A certificate
is told by who has issued it and its serial number. What a list is worth (its signature, its dates) is for
OpenSSL to judge, with each handshake.

A list is DER in PEM: each value a tag, a length and what is in it.

    CertificateList ::= { { version? algorithm issuer thisUpdate nextUpdate? revoked?, ... }, ... }
    revoked         ::= { { serial date more? } ... }
    Certificate     ::= { { [0] version?  serial algorithm issuer ... }, ... }

Source: RFC 5280, sections 4.1 and 5.1. Indirect lists, which name others' certificates, are not read as such.
"""

import re
from base64 import b64decode
from collections.abc import Mapping
from typing import NamedTuple

SEQUENCE, VERSION = 0x30, 0xA0
CONSTRUCTED = 0x20
_PEM = re.compile(rb"-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)

Name = tuple[bytes, ...]
Revoked = Mapping[Name, frozenset[bytes]]
"""Issuer -> serial numbers of revoked certificates."""


class Shown(NamedTuple):
    """What tells a certificate from all others."""

    issuer: Name
    serial: bytes


def revoked_in(pem: bytes) -> Revoked:
    """What the lists of a file say. Raises ValueError if one cannot be read."""
    found: dict[Name, frozenset[bytes]] = {}
    for block in _PEM.findall(pem):
        try:
            (_, body), *_ = _values(_value(b64decode(block)))
            (_, issuer), *revoked = [value for value in _values(body) if value[0] == SEQUENCE][1:]
            entries = _values(revoked[0][1]) if revoked else []
            serials = frozenset(_values(entry)[0][1] for _, entry in entries)
        except (ValueError, IndexError):
            raise ValueError("the list of revoked certificates cannot be read") from None
        name = _name(issuer)
        found[name] = found.get(name, frozenset()) | serials
    return found


def shown_by(certificate: bytes) -> Shown:
    """Of a certificate in DER that OpenSSL has read."""
    body = _values(_value(certificate))[0][1]
    (_, serial), _, (_, issuer), *_ = [value for value in _values(body) if value[0] != VERSION]
    return Shown(_name(issuer), serial)


def _value(der: bytes) -> bytes:
    """What is in the one value."""
    return _values(der)[0][1]


def _values(der: bytes) -> list[tuple[int, bytes]]:
    """Tags and what is in them, one value after the other. Raises ValueError, IndexError."""
    found, at = [], 0
    while at < len(der):
        tag, size, start = der[at], der[at + 1], at + 2
        if size >= 0x80:
            start += size - 0x80
            size = int.from_bytes(der[at + 2 : start])
        at = start + size
        if at > len(der):
            raise ValueError("a value is incomplete")
        found.append((tag, der[start:at]))
    return found


def _name(der: bytes) -> Name:
    """The parts of a name, whatever kind of text each is in; OpenSSL does not look at case either."""
    parts: list[bytes] = []
    for tag, value in _values(der):
        parts += _name(value) if tag & CONSTRUCTED else (value.lower(),)
    return tuple(parts)
