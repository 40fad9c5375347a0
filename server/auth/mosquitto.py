"""Reads mosquitto's password file and ACL file, so that the server can replace a mosquitto.

    password_file   bob:$7$101$salt$hash             one user a line
    acl_file        topic read $SYS/#                clients without a name
                    user bob
                    topic readwrite bob/#            bob
                    topic deny bob/secret
                    pattern write meters/%u/%c/#     everybody, with name and client id filled in

They are read as by mosquitto: `readwrite` is the default, a `#` at the beginning of a line starts a comment.
A user's lines come first, of these the denials; then the patterns in the same way, if no line has decided.
The ACL has no word for subscribing: every client may subscribe to anything, and receives what it may read.

With an ACL file, without a password file and where clients without a name may come, a name needs no password.

Without an ACL file everybody may publish and receive everything. A user of the password file has the scopes
schedule and read, and no key for HTTP.

Refused, although mosquitto accepts them: lines of a password file that let nobody in, or name a user twice.

Source: mosquitto.conf(5), mosquitto_passwd(1), and what mosquitto 2.0.11 does (tests/support/mosquitto.py).
"""

from pathlib import Path

from timeline.filters import check_filter

from .hashes import BadHash, mosquitto
from .keys_file import KeysFileError, secured_text
from .rights import EVERY, READ, SCHEDULE, Grant, Rules

SCOPES = frozenset((SCHEDULE, READ))
_ACCESS = ("read", "write", "readwrite", "deny")
NAME_BYTES_MAX = 255
"""Maximum bytes of a user name: each message stores it."""
_BLANKS = " \t\n\v\f\r"
"""Blanks stripped from lines and names. Other Unicode spaces are part of a name."""
_CHANGED_BY_OTHERS = 0o002
"""Refused mode: a password file that all can read is usual, one that all can write is not."""


class Acl:
    """Lines of one user, or the patterns: filters by access."""

    def __init__(self) -> None:
        self.filters: dict[str, list[str]] = {"read": [], "write": [], "deny": []}

    def add(self, access: str, topic_filter: str) -> None:
        for one, filters in self.filters.items():
            if one in access:
                filters.append(topic_filter)

    def rules(self, access: str, otherwise: Rules | None = None) -> Rules:
        return Rules(tuple(self.filters[access]), tuple(self.filters["deny"]), otherwise)


class AclFile:
    """Rules by user."""

    def __init__(self) -> None:
        self._users: dict[str, Acl] = {"": Acl()}
        self.patterns = Acl()

    def of(self, user: str) -> Acl:
        """The lines of a user, created if needed; "": clients without a name."""
        return self._users.setdefault(user, Acl())

    def grant(self, user: str) -> Grant:
        """The grant of a user; "": clients without a name."""
        own = self._users.get(user, Acl())
        write, read = (own.rules(access, self.patterns.rules(access)) for access in ("write", "read"))
        return Grant(SCOPES, write, EVERY, read)


EVERYTHING = Grant(SCOPES)
"""Without an ACL file."""


def read_passwords(path: Path) -> dict[str, str]:
    """User -> hash. Raises KeysFileError naming the line."""
    users: dict[str, str] = {}
    for line, text in _lines(path):
        user, colon, stored = text.partition(":")
        user = user.rstrip(_BLANKS)
        if not user or not colon:
            raise KeysFileError(path, line, "must be user:hash")
        if user in users:
            raise KeysFileError(path, line, "the user is listed twice", "user")
        if len(user.encode()) > NAME_BYTES_MAX:
            raise KeysFileError(path, line, f"has more than {NAME_BYTES_MAX} bytes", "user")
        try:
            mosquitto(stored.strip())
        except BadHash as error:
            raise KeysFileError(path, line, str(error), "hash") from None
        users[user] = stored.strip()
    return users


def read_acl(path: Path) -> AclFile:
    """Parse an ACL file. Raises KeysFileError naming the line."""
    acl = AclFile()
    current = acl.of("")
    for line, text in _lines(path):
        word, _, rest = text.partition(" ")
        rest = rest.strip()
        if word not in ("user", "topic", "pattern"):
            raise KeysFileError(path, line, "must begin with user, topic or pattern")
        if not rest:
            raise KeysFileError(path, line, "is incomplete", word)
        if word == "user":
            current = acl.of(rest)
            continue
        try:
            access, topic_filter = _access(rest)
            check_filter(topic_filter)
        except ValueError as error:
            raise KeysFileError(path, line, str(error), word) from None
        (current if word == "topic" else acl.patterns).add(access, topic_filter)
    return acl


def _access(rest: str) -> tuple[str, str]:
    """Access and filter of a line. Raises ValueError: a filter with a space needs a word before it."""
    first, space, topic_filter = rest.partition(" ")
    if not space:
        return "readwrite", rest
    if first not in _ACCESS:
        raise ValueError("must be read, write, readwrite or deny")
    return first, topic_filter.strip()


def _lines(path: Path) -> list[tuple[int, str]]:
    text = secured_text(path, _CHANGED_BY_OTHERS)
    numbered = ((number, line.strip(_BLANKS)) for number, line in enumerate(text.split("\n"), 1))
    return [(number, line) for number, line in numbered if line and not line.startswith("#")]
