"""Files of a mosquitto mean here what they mean there: what a real one did with them has been recorded."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from server.auth.keys_file import KeysFileError
from server.auth.mosquitto import AclFile, read_acl
from server.auth.rights import Principal, Rights
from server.codec.packets import Connect
from server.codec.reasons import Reason
from server.mqtt.authenticator import Authenticator
from tests.support.keys import Clock, ring
from tests.support.mosquitto import LETTERS, RECORD, acl_files, record

READ_HERE = ("topic read a\n # topic deny a\ntopic write bob\n",)
"""A remark that is indented: there an error."""
REFUSED_HERE = ("twice", "base64", "user:hash", "a hash", "rounds", "length", "has more than 255 bytes")
"""Lines of a password file that are passed over there: nobody, or one of two, could come in by them."""


@pytest.fixture
async def recorded(tmp_path: Path) -> Any:
    if os.environ.get("FASTI_RECORD") == "mosquitto":
        await record(tmp_path)
    return json.loads(RECORD.read_text())


def read(path: Path, text: str) -> AclFile | None:
    path.write_text(text)
    try:
        return read_acl(path)
    except KeysFileError:
        return None


def authenticator_of(path: Path) -> Authenticator | None:
    """The authenticator of a server that has this password file; None: it does not start."""
    try:
        return Authenticator(ring(None, Clock(), password_file=str(path)), None, lets_anybody=False)
    except KeysFileError as error:
        if not any(part in str(error) for part in REFUSED_HERE):
            raise
    return None


def lets_in(authenticator: Authenticator, user: str | None, password: str | None, address: str) -> bool:
    answers: list[tuple[Rights | None, Reason | None]] = []
    key = None if password is None else password.encode()
    authenticator.authenticate(
        Connect(5, "c", username=user, password=key), "c", address, "", lambda *answer: answers.append(answer)
    )
    ((rights, reason),) = answers
    assert (rights is None) is (reason is not None)
    return reason is None


def is_of_its_own_making(user: str, client_id: str, topic: str) -> bool:
    """A topic that begins with `$` because a name does: no pattern allows it here, as clients choose ids."""
    return any(name.startswith("$") and topic.startswith(name) for name in (user, client_id))


@pytest.mark.long
async def test_acl_files(recorded: Any, tmp_path: Path) -> None:
    assert [case["file"] for case in recorded["acl"]] == acl_files()
    clients = [(user or "", client_id) for user in recorded["users"] for client_id in recorded["clients"]]
    compared = stricter = refused = 0
    for case in recorded["acl"]:
        text, answers = case["file"], case["answers"]
        acl = read(tmp_path / "acl", text)
        assert (acl is None) is (answers is None and text not in READ_HERE), text
        if acl is None or answers is None:
            refused += 1
            continue
        for (user, client_id), letters in zip(clients, answers, strict=True):
            rights = Rights(Principal(user, acl.grant(user), Clock().mono), client_id)
            for topic, letter in zip(recorded["topics"], letters, strict=True):
                may = rights.may_publish(topic.encode()), rights.may_receive(topic.encode())
                compared += 1
                if LETTERS[may] != letter:
                    stricter += 1
                    where = (text, user, client_id, topic, letter)
                    assert is_of_its_own_making(user, client_id, topic), where
                    assert all(map(bool.__le__, may, (letter in "wb", letter in "rb"))), where
    print(
        f"mosquitto {recorded['mosquitto']}: {len(recorded['acl'])} files, {refused} refused, "
        f"{compared:,} answers, {stricter} stricter"
    )
    assert compared > 60_000
    assert stricter < 100


@pytest.mark.long
async def test_password_files(recorded: Any, tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    let_in = refused = 0
    for case in recorded["passwords"]:
        path.write_text(case["file"], newline="")
        path.chmod(0o600)
        authenticator = authenticator_of(path)
        if authenticator is None:
            refused += 1
            continue
        shown = [
            lets_in(authenticator, user, password, f"10.0.0.{number}")
            for number, (user, password) in enumerate(recorded["shown"])
        ]
        assert shown == case["answers"], case["file"]
        let_in += sum(shown)
    print(f"{len(recorded['passwords'])} files, {refused} refused, {let_in} let in")
    assert let_in >= 30
    assert refused < len(recorded["passwords"]) * 2 // 3
