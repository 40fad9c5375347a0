"""Programs of others make clients of `/openapi.json`, and the clients do what they promise.

Each program in programs/ schedules, gets, moves, cancels, sends a batch with a bad item, leases and acks:
through the client that a generator made, against a real server. The generators are in build/tools, where
`make build/tools/installed` puts them; a test whose tool is missing is skipped and names it.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.support.keys import KeysFile
from tests.support.server import ROOT, ServerProcess, served
from tests.support.soak import SOAK

TOOLS = ROOT / "build" / "tools"
PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 600
GENERATE = "openapi-generator-cli generate -i openapi.json -g"
TSC = ("--strict", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext")
RULES = """
extends: ["spectral:oas"]
rules:
  # Since 3.1 a key of any type can need roles; the rule knows those of OAuth alone.
  oas3-operation-security-defined: off
"""
JARS = ("jackson-annotations", "jackson-core-2", "jackson-databind", "jackson-datatype-jsr310")
"""Those that the Java client wants, and PySpark has."""


def tool(name: str) -> str | None:
    """Where a program is: among the tools, or anywhere on the path."""
    places = (TOOLS / "bin", TOOLS / "node_modules" / ".bin", *os.get_exec_path())
    return shutil.which(name, path=os.pathsep.join(map(str, places)))


def needs(*names: str, long: bool = False) -> pytest.MarkDecorator:
    """Skips the test where one is missing; `long`: also where no soak is asked for."""
    missing = [name for name in names if tool(name) is None]
    reason = f"not installed: {', '.join(missing)}" if missing else "FASTI_SOAK=1"
    return pytest.mark.skipif(bool(missing) or (long and not SOAK), reason=reason)


def run(name: str, *arguments: str | Path, cwd: Path, **env: str | Path) -> str:
    """What the tool prints; the test fails where it does."""
    done = subprocess.run(
        [tool(name) or name, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **{variable: str(value) for variable, value in env.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    return done.stdout


def generate(command: str, document: Path) -> str:
    """Run the one line of docs/http.md that begins so, beside the document."""
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith(f"{command} ")]
    return run(*shlex.split(line), cwd=document.parent)


def compile_typescript(folder: Path, program: str) -> Path:
    """The program in JavaScript, beside the modules that it imports."""
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (folder / "node_modules").symlink_to(TOOLS / "node_modules")
    shutil.copy(PROGRAMS / program, folder)
    run("tsc", *TSC, "--lib", "es2022,dom", "--outDir", "out", program, cwd=folder)
    return (folder / "out" / program).with_suffix(".js")


def jars() -> Sequence[Path]:
    """PySpark's, as far as there is one."""
    found = importlib.util.find_spec("pyspark")
    folder = Path(str(found.origin)).parent / "jars" if found else Path("none")
    wanted = (*JARS, "jakarta.annotation-api", "jsr305")
    return [jar for name in wanted for jar in folder.glob(f"{name}*.jar")]


def fetched(server: ServerProcess, path: Path, key: str = "") -> Path:
    asked = Request(f"{server.url}/openapi.json", headers={"Authorization": f"Bearer {key}"} if key else {})
    with urlopen(asked) as answer:
        path.write_bytes(answer.read())
    return path


@pytest.fixture
def document(server: ServerProcess, tmp_path: Path) -> Path:
    return fetched(server, tmp_path / "openapi.json")


@needs("spectral")
def test_spectral_warns_of_nothing(document: Path, tmp_path: Path) -> None:
    file = KeysFile(tmp_path / "keys.toml")
    key, settings = file.add("reader"), {"auth.keys_file": file.path}
    with served(tmp_path / "data", settings=settings) as server:
        with_keys = fetched(server, tmp_path / "with_keys.json", key)
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES, encoding="utf-8")
    strict = ("--ruleset", rules, "--fail-severity", "hint")
    assert "No results" in run("spectral", "lint", *strict, document, with_keys, cwd=tmp_path)


@needs("openapi-python-client")
def test_openapi_python_client(server: ServerProcess, document: Path, tmp_path: Path, name: str) -> None:
    said = generate("openapi-python-client", document)
    lost = [line for line in said.splitlines() if line.startswith(("WARNING", "ERROR"))]
    assert lost == [
        "WARNING parsing POST /v1/messages:batch within messages.",
        "WARNING parsing GET /v1/messages:export within messages.",
    ], "only NDJSON is unknown to it"
    play_python(server, "openapi_python_client.py", name, tmp_path)


@needs("openapi-generator-cli", "java", long=True)
def test_openapi_generator_python(server: ServerProcess, document: Path, tmp_path: Path, name: str) -> None:
    generate(f"{GENERATE} python", document)
    play_python(server, "openapi_generator.py", name, tmp_path / "python")


def play_python(server: ServerProcess, program: str, name: str, path: Path) -> None:
    python = str(TOOLS / "bin" / "python")
    said = run(python, PROGRAMS / program, server.url, name, cwd=path, PYTHONPATH=path)
    assert said == "all done\n"


@needs("openapi-typescript", "tsc", "node", long=True)
def test_openapi_typescript(server: ServerProcess, document: Path, tmp_path: Path, name: str) -> None:
    generate("openapi-typescript", document)
    program = compile_typescript(tmp_path, "openapi_typescript.ts")
    assert run("node", program, server.url, name, cwd=tmp_path) == "all done\n"


@needs("openapi-generator-cli", "java", "tsc", "node", long=True)
def test_openapi_generator_typescript(
    server: ServerProcess, document: Path, tmp_path: Path, name: str
) -> None:
    generate(f"{GENERATE} typescript-fetch", document)
    program = compile_typescript(tmp_path, "typescript_fetch.ts")
    assert run("node", program, server.url, name, cwd=tmp_path) == "all done\n"


@needs("openapi-generator-cli", "java", "go", long=True)
def test_openapi_generator_go(server: ServerProcess, document: Path, tmp_path: Path, name: str) -> None:
    """Of the standard library alone."""
    generate(f"{GENERATE} go", document)
    out = tmp_path / "go"
    (out / "program").mkdir()
    shutil.copy(PROGRAMS / "main.go", out / "program")
    offline = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOCACHE": TOOLS / "go"}
    run("go", "build", "-o", "played", "./program", cwd=out, **offline)
    assert run(str(out / "played"), server.url, name, cwd=out) == "all done\n"


@needs("openapi-generator-cli", "java", "javac", long=True)
@pytest.mark.skipif(len(jars()) < 6, reason="not installed: PySpark with the jars that the client wants")
def test_openapi_generator_java(server: ServerProcess, document: Path, tmp_path: Path, name: str) -> None:
    generate(f"{GENERATE} java", document)
    out = tmp_path / "java"
    path = os.pathsep.join(map(str, ["classes", *jars()]))
    sources = sorted((out / "src" / "main").rglob("*.java"))
    run("javac", "-nowarn", "-d", "classes", "-cp", path, *sources, PROGRAMS / "Main.java", cwd=out)
    assert run("java", "-cp", path, "Main", server.url, name, cwd=out) == "all done\n"
