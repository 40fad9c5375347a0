"""What a real mosquitto makes of its files, recorded: ACL files made by chance, password files as written by
hand and as mosquitto_passwd writes them.

    FASTI_RECORD=mosquitto .venv/bin/python -m pytest tests/server/auth/test_as_mosquitto.py

asks the mosquitto of this machine and writes `tests/data/mosquitto.json`; the test compares. It
takes three minutes.
"""

import asyncio
import json
import random
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from server.codec.packets import Ack, Connack, Connect, Pingreq, Pingresp, Publish

from .mqtt import Peer, dial

RECORD = Path(__file__).parents[1] / "data" / "mosquitto.json"
LETTERS = {(False, False): "-", (True, False): "w", (False, True): "r", (True, True): "b"}
"""Whether something may be written to, and read."""
PROBE = "probe-zz"
EVERYTHING = f"\nuser {PROBE}\ntopic readwrite #\ntopic readwrite $x/#\ntopic readwrite $d/#\n"
"""It may do everything, by lines at the end of each file."""
USERS = (None, "bob", "eve", "a/b", "a+b", "$d", "with space")
CLIENTS = ("c1", "c/1", "c#", "bob", "$d")
TOPICS = (
    *(
        "a",
        "a/b",
        "a/b/c",
        "bob",
        "bob/a",
        "c1",
        "dev/bob/c1",
        "dev/bob",
        "dev/a/b/c1",
        "dev/a",
        "dev/eve/c/1",
    ),
    *("dev/a+b/c1".replace("+", "p"), "$x/a", "$x/bob", "$d/a", "%u", "100%c/a", "with space", "sp ace/a"),
)
FILTERS = (
    *(
        "#",
        "+",
        "a/#",
        "a/+",
        "a",
        "a/b",
        "+/b",
        "+/+/c1",
        "bob/#",
        "dev/#",
        "dev/bob/+",
        "$x/#",
        "$x/+",
        "$d/#",
    ),
    *("%u", "100%c/#", "sp ace/a", "with space", "dev/%u/%c", "+/a", "/", "+/+"),
)
PATTERNS = (
    "%u",
    "%c",
    "%u/#",
    "%c/#",
    "dev/%u/%c",
    "dev/%u/#",
    "dev/+/%c",
    "+/%u",
    "$x/%u",
    "%u/a",
    "#",
    "a/#",
    "100%c/a",
    "%u%c",
)
ODD = (
    *(
        "topic",
        "topic read",
        "topic a b",
        "topic  read   a",
        "topic readwrite sp ace/a",
        "topic deny #",
        "  topic a",
    ),
    *(
        "topic read a#",
        "topic write a/#/b",
        "topic READ a",
        "user",
        "user ",
        "pattern",
        "pattern write",
        "pattern a b",
    ),
    *(
        "#topic deny a",
        " # topic deny a",
        "tpoic deny a",
        "topicdeny a",
        "topic\tread\ta",
        "topic read a   ",
        "pattern x/%u%",
    ),
    *(
        "topic read +a",
        "topic read $x/#",
        "topic none a",
        "user bob eve",
        "include x",
        "pattern read %u/+/%c/#",
    ),
)
BOB = (
    "$7$101$N7mEIBZF0I/6bEkK$MzpsdNAc2FXkaLlxDa8Msw2jyrWO/O5ef/4dzO2X49waU++mOdBxOK/"
    "bw/TXRczUWbCCLIYgyKGD1RRceOelNQ=="
)
OLD = (
    "$6$i9Jt32tYegzNkwSK$QS3iPoD+vTH+XaoCByGUtFnBsf37+/hyXreCViGyZOCagOg0+IhiRNI2g+"
    "GnZf6IPzOU20d7aadUf9uCIILAQA=="
)
"""Of `secret` and of `x`."""
PASSWORD_FILES = (
    f"bob:{BOB}\nold:{OLD}\n",
    f"bob:{BOB}",
    f"# said\n\n  \nbob:{BOB}  \nold:{OLD}\r\n",
    f" bob:{BOB}\n",
    f"with space:{BOB}\n",
    f"bob: {BOB}\n",
    f"bob:{BOB}\nbob:{OLD}\n",
    f"bob:{BOB}:more\n",
    f"old:{OLD}\neve\n",
    f"old:{OLD}\neve:\n",
    f"old:{OLD}\n:{BOB}\n",
    f"old:{OLD}\neve:plain\n",
    f"old:{OLD}\neve:$5$AAAA$AAAA\n",
    f"old:{OLD}\nbob:{BOB.replace('101', '100')}\n",
    f"old:{OLD}\nbob:{BOB.replace('101', '0')}\n",
    f"old:{OLD}\nbob:{BOB.replace('$101', '')}\n",
    f"old:{OLD}\nbob:{BOB[:-8]}\n",
    f"#bob:{BOB}\r\n\r\nbob:{BOB}\r\n",
    f"bob :{BOB}\n",
)
NAMES = (
    *("with space", " bob", "bob ", "a/b", "a+b", "$d", "#bob", "\u00fc", "%u", "fasti_bob_x", ""),
    *("n" * 255, "n" * 256, "n" * 4_000),
)
"""Of users whom mosquitto_passwd writes down."""
PLAIN = (
    *("bob:secret\nold:x\n", "bob:secret\r\nold:x\r\n", "bob:secret\nold:x", "bob:secret:more\nold:x\n"),
    *("bob:secret\nnone:\n", "bob:secret\nnone\n", "# said\nbob:secret\n", "bob:secret\n\nold:x\n"),
    *("bob: secret\n", "bob:secret \n", "bob:secret\nbob:x\n"),
)
"""Files that mosquitto_passwd -U is to hash; it leaves some of them as they are."""
SHOWN = (
    ("bob", "secret"), ("bob", "Secret"), ("bob", ""), ("bob", None), ("bob", "x"), ("old", "x"),
    ("old", "secret"), ("old", None), ("eve", ""), ("eve", None), ("eve", "plain"), ("none", ""),
    ("none", None), ("none", "x"), (None, "secret"), (None, None), ("", ""), ("", None), ("nobody", "x"),
    ("nobody", ""), ("bob", " secret"), ("bob", "secret "), ("bob", "secret:more"), ("bob", "secret\r"),
    *((name, "secret") for name in NAMES),
)  # fmt: skip
"""User and password of a CONNECT; None: it has none."""


def written(folder: Path) -> list[str]:
    """Files as mosquitto_passwd writes them, of each shape that it has."""
    path = folder / "written"
    files = []

    def run(*arguments: str, said: str = "") -> None:
        subprocess.run(
            ["mosquitto_passwd", *arguments], input=said, text=True, capture_output=True, check=False
        )

    for kind in ((), ("-H", "sha512"), ("-H", "sha512-pbkdf2")):
        run(*kind, "-c", "-b", str(path), "bob", "secret")
        run(*kind, str(path), "old", said="x\nx\n")
        run(*kind, "-b", str(path), "none", "")
        files.append(path.read_text())
        run(*kind, "-b", str(path), "bob", "x")
        run("-D", str(path), "old")
        files.append(path.read_text())
    for name in NAMES:
        run("-c", "-b", str(path), name, "secret")
        files.append(path.read_text())
    for text in PLAIN:
        path.write_text(text, newline="")
        run("-U", str(path))
        files.append(path.read_bytes().decode())
    return files


def acl_files() -> list[str]:
    """Files made by chance, always the same ones, and each odd line in one of its own."""
    chance = random.Random(11)
    files = ["", "# nothing\n", *(f"topic read a\n{line}\ntopic write bob\n" for line in ODD)]
    for _ in range(90):
        lines: list[str] = []
        for _ in range(chance.randint(1, 7)):
            kind = chance.choice(("user", "topic", "topic", "topic", "pattern", "pattern"))
            if kind == "user":
                lines.append(f"user {chance.choice(USERS[1:])}")
            else:
                access = chance.choice(("read ", "write ", "readwrite ", "deny ", "deny ", ""))
                choice = chance.choice(FILTERS if kind == "topic" else PATTERNS)
                if not access and " " in choice:
                    access = "read "
                lines.append(f"{kind} {access}{choice}")
        files.append("\n".join(lines) + "\n")
    return files


async def record(folder: Path) -> None:
    """Ask mosquitto all of it."""
    found: dict[str, Any] = {
        "mosquitto": version(),
        "users": USERS,
        "clients": CLIENTS,
        "topics": TOPICS,
        "shown": SHOWN,
        "acl": [],
        "passwords": [],
    }
    for text in acl_files():
        found["acl"].append({"file": text, "answers": await acl_answers(folder, text)})
    for text in (*PASSWORD_FILES, *written(folder)):
        found["passwords"].append({"file": text, "answers": await password_answers(folder, text)})
    RECORD.write_text(json.dumps(found, indent=0, ensure_ascii=True) + "\n")


def version() -> str:
    said = subprocess.run(["mosquitto", "-h"], capture_output=True, text=True, check=False).stdout
    (number,) = re.findall(r"mosquitto version (\S+)", said)
    return str(number)


async def acl_answers(folder: Path, text: str) -> list[str] | None:
    """Of each user with each client id a letter for each topic; None: it does not start.

    `r` it may be read, `w` written to, `b` both, `-` nothing.
    """
    acl = folder / "acl"
    # In a file without a line nobody may do anything, so nobody can find out what may be read.
    acl.write_text(text + EVERYTHING if text else "")
    async with running(folder, f"allow_anonymous true\nacl_file {acl}\n") as address:
        if address is None:
            return None
        probe = await enter(address, "probe", PROBE, b"")
        answers = [
            await tried(address, probe, client_id, user, is_empty=not text)
            for user in USERS
            for client_id in CLIENTS
        ]
        probe.drop()
    return answers


async def tried(
    address: tuple[str, int], probe: Peer, client_id: str, user: str | None, *, is_empty: bool
) -> str:
    one = await enter(address, client_id, user, None)
    assert max(await one.subscribe("#", "$x/#", "$d/#", qos=0)) <= 2
    writes = []
    for topic in TOPICS:
        one.put(topic, b"mine", 1)
        writes.append((await one.take(Ack)).reason < 0x80)
    one.send(Pingreq())
    await one.take(Pingresp)
    one.inbox.clear()
    for topic in TOPICS:
        probe.put(topic, b"probe", 1)
        ack = await probe.take(Ack)
        assert ack.reason < 0x80 or is_empty
    one.send(Pingreq())
    await one.take(Pingresp)
    reads = {
        packet.topic.decode()
        for packet in one.inbox
        if isinstance(packet, Publish) and packet.payload == b"probe"
    }
    one.drop()
    while not one.is_closed:
        await asyncio.sleep(0.001)
    pairs = zip(TOPICS, writes, strict=True)
    return "".join(LETTERS[may_write, topic in reads] for topic, may_write in pairs)


async def password_answers(folder: Path, text: str) -> list[bool] | None:
    """Who of `SHOWN` is let in; None: it does not start."""
    passwords = folder / "passwords"
    passwords.write_text(text, newline="")
    async with running(folder, f"allow_anonymous false\npassword_file {passwords}\n") as address:
        if address is None:
            return None
        answers = []
        for user, password in SHOWN:
            peer = await dial(address, 5)
            peer.send(
                Connect(5, "c", username=user, password=None if password is None else password.encode())
            )
            answers.append((await peer.take(Connack)).reason == 0)
            peer.drop()
        return answers


async def enter(address: tuple[str, int], client_id: str, user: str | None, password: bytes | None) -> Peer:
    peer = await dial(address, 5)
    peer.send(Connect(5, client_id, username=user, password=password))
    assert (await peer.take(Connack)).reason == 0
    return peer


@asynccontextmanager
async def running(folder: Path, settings: str) -> AsyncIterator[tuple[str, int] | None]:
    """Where it listens; None: it has ended by itself."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = folder / "mosquitto.conf"
    path.write_text(f"listener {port} 127.0.0.1\nuser root\nlog_dest none\n{settings}")
    program = shutil.which("mosquitto") or "mosquitto"
    process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs meanwhile
        [program, "-c", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                await asyncio.sleep(0.02)
            else:
                yield ("127.0.0.1", port)
                return
        yield None
    finally:
        process.terminate()
        process.wait(10)
