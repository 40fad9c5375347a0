"""Lists of revoked certificates, for checks after the handshake.

In a handshake OpenSSL checks the list itself; it cannot check an existing connection. So the list is read
here too, for one question: does it name this client's certificate? A certificate is identified by its issuer
and serial number. OpenSSL checks the list itself (signature, dates) in each handshake.

A list is DER in PEM: each value is a tag, a length and the content.

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


class CertificateId(NamedTuple):
    """Identity of a certificate."""

    issuer: Name
    serial: bytes


def revoked_in(pem: bytes) -> Revoked:
    """The revoked certificates in a file. Raises ValueError if a list cannot be read."""
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


def certificate_id_of(certificate: bytes) -> CertificateId:
    """The identity of a DER certificate that OpenSSL has read."""
    body = _values(_value(certificate))[0][1]
    (_, serial), _, (_, issuer), *_ = [value for value in _values(body) if value[0] != VERSION]
    return CertificateId(_name(issuer), serial)


def _value(der: bytes) -> bytes:
    """The content of a single value."""
    return _values(der)[0][1]


def _values(der: bytes) -> list[tuple[int, bytes]]:
    """Tags and contents of successive values. Raises ValueError, IndexError."""
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
    """The parts of a name, whatever their text types; OpenSSL ignores case, too."""
    parts: list[bytes] = []
    for tag, value in _values(der):
        parts += _name(value) if tag & CONSTRUCTED else (value.lower(),)
    return tuple(parts)
