"""mosquitto's own files: made by mosquitto_passwd 2.0.11, and read as mosquitto reads them."""

from pathlib import Path

import pytest

from server.auth.hashes import BadHash, mosquitto
from server.auth.keyring import Refusal, Why
from server.auth.keys_file import KeysFileError
from server.auth.mosquitto import read_acl, read_passwords
from server.auth.rights import Grant, Principal, Rights
from tests.support.keys import Clock, KeysFile, ring, shown

BOB = (
    "$7$101$N7mEIBZF0I/6bEkK$MzpsdNAc2FXkaLlxDa8Msw2jyrWO/O5ef/4dzO2X49waU++mOdBxOK/"
    "bw/TXRczUWbCCLIYgyKGD1RRceOelNQ=="
)
OLD = (
    "$6$i9Jt32tYegzNkwSK$QS3iPoD+vTH+XaoCByGUtFnBsf37+/hyXreCViGyZOCagOg0+IhiRNI2g+"
    "GnZf6IPzOU20d7aadUf9uCIILAQA=="
)
PASSWORDS = f"# ours\n\nbob:{BOB}\nold:{OLD}\n"
ACL = """# for who has no name
topic read news/#

user bob
topic bob/#
topic deny bob/secret/#
topic read with space/+
topic read 100%c

user old
topic write in/old

pattern readwrite dev/%u/%c/#
"""


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    path = tmp_path / "passwords"
    path.write_text(PASSWORDS)
    path.chmod(0o600)
    return path


@pytest.fixture
def acl(tmp_path: Path) -> Path:
    path = tmp_path / "acl"
    path.write_text(ACL)
    return path


def rights(grant: Grant, name: str, client_id: str = "c1") -> Rights:
    return Rights(Principal(name, grant, Clock().mono), client_id)


def test_passwords_of_both_kinds_are_checked() -> None:
    assert mosquitto(BOB)(b"secret")
    assert not mosquitto(BOB)(b"Secret")
    assert not mosquitto(BOB)(b"")
    assert mosquitto(OLD)(b"x")
    assert not mosquitto(OLD)(b"y")


@pytest.mark.parametrize(
    "text",
    [
        *("secret", "", "$7$101$AAAA", "$6$AAAA$AAAA", "$5$AAAA$AAAA"),
        *(
            *(BOB.replace("101", "x"), BOB.replace("101", "0"), BOB.replace("101", "000000101999")),
            *(BOB.replace("101", "0" * 5_000), BOB.replace("$7$", "7$"), OLD.replace("i9", "!!")),
        ),
        "$7$99999999$" + BOB.split("$", 3)[3],
    ],
)
def test_what_is_no_hash_is_refused_and_not_told(text: str) -> None:
    with pytest.raises(BadHash) as raised:
        mosquitto(text)
    assert not text or text not in str(raised.value)


def test_nobody_is_called_what_the_server_is(passwords: Path, acl: Path) -> None:
    """What he has sent would be handed out, whatever the rules say later: it would be the server's own."""
    passwords.write_text(f"fasti-server:{BOB}\n")
    with pytest.raises(KeysFileError, match="is the server itself"):
        ring(None, Clock(), password_file=str(passwords), acl_file=str(acl))


def test_a_bad_line_is_told(passwords: Path, acl: Path) -> None:
    for text, line in (
        (f"{PASSWORDS}bob:{BOB}\n", 5),
        (f"{PASSWORDS}eve\n", 5),
        ("a:b\n", 1),
        (f"{'n' * 256}:{BOB}\n", 1),
    ):
        passwords.write_text(text)
        with pytest.raises(KeysFileError) as raised:
            read_passwords(passwords)
        assert raised.value.line == line
    for text, line in (
        *(("topic read\n", 0), ("a\nuser\n", 1), ("\nuser\n", 2), ("topic read a#\n", 1), ("x y\n", 1)),
    ):
        acl.write_text(text)
        if line:
            with pytest.raises(KeysFileError) as raised:
                read_acl(acl)
            assert raised.value.line == line
        else:
            assert read_acl(acl).of("").filters["read"] == ["read"]
    passwords.chmod(0o602)
    with pytest.raises(KeysFileError, match="mode 0602"):
        read_passwords(passwords)


def test_the_rules_are_those_of_mosquitto(acl: Path) -> None:
    read = read_acl(acl)
    nobody = rights(read.grant(""), "")
    assert nobody.may_receive(b"news/1")
    assert not nobody.may_publish(b"news/1")
    assert not nobody.may_receive(b"bob/1")
    assert not nobody.may_receive(b"dev//c1/x")
    bob = rights(read.grant("bob"), "bob")
    assert bob.may_publish(b"bob/1")
    assert bob.may_receive(b"bob/1")
    assert not bob.may_publish(b"bob/secret/1")
    assert not bob.may_receive(b"bob/secret/1")
    assert not bob.may_receive(b"news/1")
    assert bob.may_receive(b"with space/1")
    assert bob.may_receive(b"100%c")
    assert not bob.may_receive(b"100c1")
    assert bob.may_publish(b"dev/bob/c1/x")
    assert not bob.may_publish(b"dev/bob/c2/x")
    old = rights(read.grant("old"), "old")
    assert old.may_publish(b"in/old")
    assert not old.may_receive(b"in/old")
    stranger = rights(read.grant("eve"), "eve")
    assert stranger.may_publish(b"dev/eve/c1/x")
    assert not stranger.may_receive(b"news/1")
    for one in (nobody, bob, old, stranger):
        assert one.may_subscribe("#")


def test_users_are_in_the_keyring_beside_keys(passwords: Path, acl: Path, tmp_path: Path) -> None:
    file = KeysFile(tmp_path / "keys.toml")
    key = file.add("ops", "admin")
    keyring = ring(file.path, Clock(), password_file=str(passwords), acl_file=str(acl))
    found = shown(keyring, "bob", "secret")
    assert isinstance(found, Principal)
    assert not found.has("admin")
    assert not found.here.may_publish(b"x")
    assert isinstance(shown(keyring, "ops", key), Principal)
    assert shown(keyring, "ops", "secret") == Refusal(Why.WRONG)
    # What a human has chosen is not known without a check that waits with its address.
    assert keyring.recall("bob", b"secret") is None
    assert not keyring.anonymous.here.may_publish(b"news/1")
    file.add("bob")
    with pytest.raises(KeysFileError, match=r"auth\.keys_file too"):
        keyring.read()


def test_passwords_wait_with_their_address_even_if_they_are_known(passwords: Path) -> None:
    keyring = ring(None, Clock(), password_file=str(passwords))
    assert isinstance(shown(keyring, "bob", "secret"), Principal)
    for _ in range(6):
        shown(keyring, "bob", "wrong")
    held = shown(keyring, "bob", "secret")
    assert isinstance(held, Refusal)
    assert held.why is Why.HELD
    assert isinstance(shown(keyring, "bob", "secret", "10.0.0.2"), Principal)
