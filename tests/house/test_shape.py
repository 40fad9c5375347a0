"""The shape of the code: its theory at the head of each file, and what no file of the repository may say."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = [ROOT / "timeline", ROOT / "shards", ROOT / "server", ROOT / "spark", ROOT / "sdk" / "fasti"]
NOT_OURS = {".git", ".venv", "__pycache__", "data", "build", "dist", "node_modules"}


def room_files() -> list[Path]:
    return sorted(path for room in ROOMS for path in room.rglob("*.py"))


def all_files() -> Iterator[Path]:
    """Every text file that belongs to the repository."""
    for folder, folders, names in os.walk(ROOT):
        here = Path(folder)
        folders[:] = [
            name
            for name in folders
            if not (
                name.endswith((".egg-info", "_cache"))
                or name == ".hypothesis"
                or (name in NOT_OURS and here / name != ROOT / "tests" / "data")
            )
        ]
        yield from (here / name for name in names if name not in NOT_OURS)


def lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []


def test_a_module_opens_with_its_theory() -> None:
    silent = [path for path in room_files() if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert [str(path.relative_to(ROOT)) for path in silent] == []


# Written so that this file does not say them itself.
REGISTRIES = [
    "py" + "pi.org",
    "pythonhosted" + ".org",
    "registry.npm" + "js.org",
    "crates" + ".io",
    "proxy.golang" + ".org",
    "repo1.maven" + ".org",
    "repo.maven" + ".apache.org",
    "ruby" + "gems.org",
    "conda.ana" + "conda.org",
    "docker" + ".io",
]
FORBIDDEN = re.compile(
    "|".join(re.escape(host) for host in REGISTRIES)
    + r"|(?<![\w.$+#}~/\-])/(?:work|ro{2}t)(?=/|[\s\"'`:;,)]|$)"
)


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in all_files()
        for number, line in enumerate(lines_of(path), 1)
        if FORBIDDEN.search(line)
    ]
    assert found == []
    assert FORBIDDEN.search("cd /wor" + "k/main")
    assert FORBIDDEN.search('"/roo' + 't"')
    assert FORBIDDEN.search("https://py" + "pi.org/simple")
    assert not FORBIDDEN.search("orders/work/1, $share/g/work, /working")
