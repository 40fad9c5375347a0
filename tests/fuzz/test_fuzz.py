"""Every input gives a value or a typed error, and takes no more than a bound of steps.

The same inputs each time: the seeds, what earlier runs kept (corpus/), and a few made of them.

FASTI_SOAK=1 goes on with others for ten minutes a target, or FASTI_FUZZ_S seconds, with atheris where that is
installed; FASTI_SEED=n makes other ones; FASTI_KEEP=1 writes what reached something new into the corpus.
"""

import os
import time
from pathlib import Path

import pytest

from server.settings.zones import meant
from tests.support.build import OPENED
from tests.support.soak import SOAK

from .everything import TARGETS
from .fuzzer import Run, Target
from .guided import guided, is_installed
from .planted import PLANTED

CORPUS = Path(__file__).with_name("corpus")
SEED = int(os.environ.get("FASTI_SEED", "0"))
SOAK_S = float(os.environ.get("FASTI_FUZZ_S", "600")) if SOAK else 0.0
HIDDEN, SLOW, STUCK = PLANTED
INPUTS = 250 if SOAK else 40
FEW = {"connection": 25, "conversation": 40} if SOAK else {"connection": 8, "conversation": 10}


def file_of(target: Target) -> Path:
    return CORPUS / f"{target.name.replace(' ', '_')}.txt"


def kept(target: Target) -> list[bytes]:
    path = file_of(target)
    return [bytes.fromhex(line) for line in path.read_text().split()] if path.exists() else []


def layer(target: Target) -> pytest.MarkDecorator:
    """What takes few inputs is what is slow."""
    return pytest.mark.proof if target.name in FEW else pytest.mark.short


@OPENED
@pytest.mark.parametrize("target", [pytest.param(one, id=one.name, marks=layer(one)) for one in TARGETS])
def test_it_gives_a_value_or_a_typed_error(target: Target, tmp_path: Path) -> None:
    meant("Europe/Nowhere")  # the names of zones are listed once in the life of a server
    run = Run(target, SEED)
    run.start(kept(target))
    for _ in range(FEW.get(target.name, INPUTS)):
        run.step()
    if SOAK_S and is_installed():
        count, found = guided(target, run.corpus, SOAK_S, SEED, tmp_path)
        print(f"{target.name}: {count} inputs with atheris, {len(found)} reached something new")
        run.start(found)
    until = time.monotonic() + SOAK_S
    while SOAK_S and not is_installed() and time.monotonic() < until:
        run.step()
    print(run)
    if os.environ.get("FASTI_KEEP"):
        CORPUS.mkdir(exist_ok=True)
        found = [data for data in run.corpus if data not in target.seeds and data]
        if not found:
            return
        file_of(target).write_text("".join(f"{data.hex()}\n" for data in sorted(found)))


def many(run: Run) -> None:
    for _ in range(100_000):
        run.step()


@pytest.mark.short
def test_it_finds_a_fault_that_no_seed_comes_near() -> None:
    run = Run(HIDDEN, SEED)
    run.start()
    with pytest.raises(AssertionError, match=r"ValueError: found\nbytes.fromhex\('6c6f636b"):
        many(run)


@pytest.mark.short
def test_it_finds_what_takes_too_many_steps() -> None:
    run = Run(SLOW, SEED)
    run.start()
    with pytest.raises(AssertionError, match="TooManySteps"):
        many(run)


@pytest.mark.skipif(not is_installed(), reason="atheris is not installed: make soak installs it where it can")
@pytest.mark.parametrize(("target", "told"), [(HIDDEN, "6c6f636b"), (STUCK, "'6c")], ids=["raises", "hangs"])
def test_atheris_finds_it_too(target: Target, told: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=rf"bytes\.fromhex\(.?{told}"):
        guided(target, target.seeds, 60, SEED, tmp_path, input_s=2)
