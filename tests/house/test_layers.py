"""Which layer a test is in. What holds that those of `make quick` start no process, and that it can fail."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Collection

import pytest

from tests.support.layers import PROVES, QUICKLY, is_asked_for, layer_of, may_have
from tests.support.server import ROOT

LAYERS = ("quick", "test", "proof")
COMMANDS = (*LAYERS, "soak")
REFUSED = "starts a process: mark it with pytest.mark.process"


async def test_a_quick_test_starts_no_process_beside_its_loop() -> None:
    with pytest.raises(RuntimeError, match=REFUSED):
        await asyncio.create_subprocess_exec(sys.executable, "-c", "")


def test_a_quick_test_starts_no_process() -> None:
    with pytest.raises(RuntimeError, match=REFUSED):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(RuntimeError, match=REFUSED):
        os.fork()
    with pytest.raises(RuntimeError, match=REFUSED):
        os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    with pytest.raises(RuntimeError, match=REFUSED):
        os.system("true")


@pytest.mark.process
def test_one_that_is_marked_does() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.parametrize(
    ("folder", "marks", "layer"),
    [
        ("timeline", (), "quick"),
        ("server", ("process",), "test"),
        ("server", ("long",), "test"),
        ("server", ("long", "proof"), "proof"),
        ("docs", (), "test"),
        ("docs", ("proof",), "proof"),
        ("crash", (), "proof"),
        ("crash", ("short", "parametrize"), "test"),
    ],
)
def test_the_folder_says_the_layer_and_a_mark_says_otherwise(
    folder: str, marks: Collection[str], layer: str
) -> None:
    assert layer_of(folder, marks) == layer


def test_each_test_is_in_the_proof_or_in_the_test_that_has_all_that_is_quick() -> None:
    asked = {
        layer: [one for one in ("quick", "test", "proof", "") if is_asked_for(layer, one)] for layer in LAYERS
    }
    assert asked == {"quick": ["quick", "test", ""], "test": ["test", ""], "proof": ["proof", ""]}


@pytest.mark.parametrize("folder", sorted({*QUICKLY, *PROVES, "docs"}))
@pytest.mark.parametrize("mark", ["", "process", "proof", "short"])
def test_a_file_that_is_left_out_has_nothing_that_is_asked_for(folder: str, mark: str) -> None:
    text = f"@pytest.mark.{mark}" if mark else ""
    for asked in ("quick", "test", "proof", ""):
        assert may_have(folder, text, asked) or not is_asked_for(layer_of(folder, [mark]), asked)


@pytest.mark.parametrize("folder", sorted(PROVES))
def test_each_framework_has_a_short_life_in_make_test(folder: str) -> None:
    assert any("mark.short" in path.read_text() for path in (ROOT / "tests" / folder).glob("*.py"))


def test_who_contributes_and_who_tests_read_one_table() -> None:
    pages = [(ROOT / name).read_text() for name in ("CONTRIBUTING.md", "tests/README.md")]
    tables = [
        [line for line in page.splitlines() if line.startswith("| `make ") and line.count("|") == 4]
        for page in pages
    ]
    assert [name.partition("`")[2].partition("`")[0] for name in tables[1]] == [
        f"make {name}" for name in COMMANDS
    ]
    assert tables[0] == [line.replace("(#", "(tests/README.md#") for line in tables[1]]
