"""The same targets under atheris, where it is installed: libFuzzer's changes, guided by branches.

    python -m tests.fuzz.guided TARGET -max_total_time=600 FOUND SEEDS      what `guided` starts

In a process of its own, because atheris rewrites the rooms' modules while they are imported, and because
libFuzzer ends the process that it runs in. It bounds an input's bytes, time and RAM; steps it does not count,
so whoever calls this has the fuzzer of ours try what it found.
"""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from .fuzzer import KEPT_MAX, ROOT, Target

INPUT_S = 20
RSS_MIB = 2_048
ROOMS = ["server", "shards", "timeline", "tests.fuzz.planted"]


def is_installed() -> bool:
    return importlib.util.find_spec("atheris") is not None


def guided(
    target: Target, seeds: Iterable[bytes], seconds: float, seed: int, folder: Path, input_s: int = INPUT_S
) -> tuple[int, list[bytes]]:
    """How many inputs were tried, and those that reached something new.

    Raises AssertionError with the input, in hex, and libFuzzer's words.
    """
    found, given = folder / "found", folder / "seeds"
    for made in (found, given):
        made.mkdir()
    for number, data in enumerate(seeds):
        (given / f"{number}").write_bytes(data)
    words = folder / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words or (b"\0",)))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", __spec__.name, target.name),
            *(f"-max_total_time={int(seconds)}", f"-max_len={KEPT_MAX}", f"-timeout={input_s}"),
            *(f"-rss_limit_mb={RSS_MIB}", f"-seed={seed + 1}", f"-dict={words}"),
            *(f"-artifact_prefix={folder}/broke-", "-print_final_stats=1", found, given),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    told = ended.stdout.decode(errors="replace")
    broke = [path.read_bytes() for path in folder.glob("broke-*")]
    assert not ended.returncode, (
        f"{target.name}: {[f'bytes.fromhex({data.hex()!r})' for data in broke]}\n{told[-4_000:]}"
    )
    count = re.search(r"number_of_executed_units: (\d+)", told)
    assert count, told[-4_000:]
    return int(count[1]), [path.read_bytes() for path in found.iterdir()]


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def main(arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=ROOMS):
        from .everything import TARGETS
        from .planted import PLANTED
    target = next(target for target in (*TARGETS, *PLANTED) if target.name == arguments[1])
    atheris.Setup([arguments[0], *arguments[2:]], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
