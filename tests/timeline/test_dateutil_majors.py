"""Our rules agree with both majors of dateutil that pyproject.toml admits: 2.9 and 4."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = int(version("python-dateutil").partition(".")[0])
FILES = ("test_recurrence.py", "test_series.py")


@pytest.mark.proof
@pytest.mark.process
@pytest.mark.parametrize("major", sorted({2, 4} - {INSTALLED}))
def test_the_major_that_is_not_installed_agrees_too(major: int, tmp_path: Path) -> None:
    python, target = sys.executable, str(tmp_path)
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run(
        [python, "-m", "pip", "install", *quiet, "--target", target, f"python-dateutil=={major}.*"],
        check=True,
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"PYTHONPATH": target, "FASTI_LAYER": ""}
    imported = "import dateutil; print(dateutil.__version__)"
    found = subprocess.run([python, "-c", imported], env=environment, check=True, capture_output=True)
    assert found.stdout.startswith(b"%d." % major)
    tests = [f"tests/timeline/{name}" for name in FILES]
    options = ("-q", "-p", "no:cacheprovider")
    ran = subprocess.run(
        [python, "-m", "pytest", *options, *tests], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout
