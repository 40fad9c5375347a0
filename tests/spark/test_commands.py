"""The program's commands against answers that the test gives: what is asked for, and the exit codes."""

import json
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from shards.archives import MARKER, VERSION, Manifest, Report
from spark import __main__ as program
from spark import remote as remote_module
from spark.errors import Refused, Unreachable
from spark.job import Job
from spark.remote import Remote

pytestmark = pytest.mark.short

SERVER = ("--server", "http://127.0.0.1:9")
ACTIVE = Refused(409, "job-active", "job 5f0c is under way")
IDLE = Refused(409, "nothing-to-do", "everything that has passed is archived")
NONE_BEHIND = Refused(409, "nothing-to-expire", "no slice is behind retention")
NO_ARCHIVE = Refused(422, "refused", "is needed", ["archive is needed, as slices.archive is empty"])
MANIFEST = Manifest(
    kind="append", number=7, timeline="f" * 32, node=0, job="j", created_ms=0, version=VERSION, end_ms=900_000
)


class Answers:
    """Gives one answer after the other, and notes the calls."""

    def __init__(self, *answers: Any) -> None:
        self.calls: list[tuple[str, str, Any]] = []
        self._answers = list(answers)

    def __call__(self, kind: Any, method: str, path: str, body: object = None, timeout_s: float = 0) -> Any:
        self.calls.append((method, path, body))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return msgspec.convert(answer, kind)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(remote_module.time, "sleep", found.append)
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    def given(*answers: Any) -> Answers:
        made = Answers(*answers)
        monkeypatch.setattr(Remote, "ask", made)
        return made

    return given


def test_another_job_is_exit_code_4(asked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked(ACTIVE)
    assert program.main(["archive", *SERVER]) == 4
    assert capsys.readouterr().err == "fasti-spark: job-active: job 5f0c is under way\n"


def test_wait_asks_until_no_other_job_is_in_the_way(asked: Any, pauses: list[float]) -> None:
    answers = asked(ACTIVE, ACTIVE, IDLE)
    assert program.main(["archive", *SERVER, "--wait"]) == 0
    assert pauses == [remote_module.WAIT_S] * 2
    wish = {"kind": "archive", "run": "caller"}
    assert answers.calls == [("POST", "/v1/jobs", wish)] * 3


def test_a_slice_that_another_job_has_is_told_at_the_end(
    asked: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "_check_machine", lambda _: None)
    pieces = [{"start": name, "count": 9} for name in ("a", "b")]
    near = Refused(409, "too-near", "the slice is in memory")
    asked({"slices": pieces, "split_above": 5, "next": None}, ACTIVE, near)
    assert program.main(["split", *SERVER, "--overfull"]) == 4
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("command", ["archive", "expire", "compact"])
@pytest.mark.parametrize(
    "name", ["s3a://bucket/x", "http://x/y", "~/archive", "C:/archive", "", "s3://k:s@b/x"]
)
def test_an_archive_that_is_none_is_refused_before_a_job_is_made(
    asked: Any, command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = asked()
    assert program.main([command, *SERVER, "--archive", name]) == 1
    assert answers.calls == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fasti-spark: the archive must ")


def test_an_archive_goes_to_the_server_by_its_full_name(asked: Any) -> None:
    answers = asked(IDLE)
    assert program.main(["archive", *SERVER, "--archive", "s3://bucket/a/"]) == 0
    assert answers.calls[0][2]["archive"] == "s3://bucket/a"


def test_an_expiry_archives_first(asked: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answers = asked(IDLE, NONE_BEHIND)
    assert program.main(["expire", *SERVER]) == 0
    assert [body["kind"] for _, _, body in answers.calls] == ["archive", "expire"]
    assert "no slice is behind retention" in capsys.readouterr().out


def test_an_expiry_of_a_server_without_an_archive_only_drops(asked: Any) -> None:
    answers = asked(NO_ARCHIVE, NONE_BEHIND)
    assert program.main(["expire", *SERVER]) == 0
    assert [body["kind"] for _, _, body in answers.calls] == ["archive", "expire"]
    asked(NO_ARCHIVE)
    assert program.main(["expire", *SERVER, "--archive", "/elsewhere"]) == 1


def test_a_commit_whose_answer_was_lost_is_looked_up(asked: Any, pauses: list[float]) -> None:
    job = Job("j", "archive", "archiving", "t")
    view = {"id": "j", "kind": "archive", "state": "publishing", "manifest": msgspec.to_builtins(MANIFEST)}
    wrong_state = Refused(409, "wrong-state", "the job is publishing")
    answers = asked(Unreachable("no answer"), wrong_state, view)
    assert Remote(SERVER[1]).record(job, Report("append", 0, 900_000)) == MANIFEST
    assert [method for method, _, _ in answers.calls] == ["POST", "POST", "GET"]
    assert answers.calls[0][2]["archived"] == {"kind": "append", "end_ms": 900_000}
    asked(wrong_state, {**view, "state": "aborted"})
    with pytest.raises(Refused, match="wrong-state"):
        Remote(SERVER[1]).record(job, Report("append", 0, 900_000))


def test_a_day_that_has_few_files_is_not_compacted_for_ever(
    asked: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "_check_machine", lambda _: None)
    monkeypatch.setattr(program, "run", lambda *_: "nothing to do: 2026-12-01 has few files already")
    answers = asked({"id": "j", "kind": "compact", "state": "compacting"})
    assert program.main(["compact", *SERVER]) == 0
    assert len(answers.calls) == 1
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_verify_says_what_is_wrong_a_line_each(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["verify", "--archive", str(tmp_path / "mistyped")]) == 1
    assert capsys.readouterr().out == f"{tmp_path}/mistyped is no archive: it has no manifests\n"
    (tmp_path / MARKER).write_text(json.dumps({"version": 2, "timeline": "0" * 32}))
    assert program.main(["verify", "--archive", str(tmp_path)]) == 0
    (tmp_path / "date=2026-12-01").mkdir()
    (tmp_path / "date=2026-12-01" / "x.parquet").touch()
    assert program.main(["verify", "--archive", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[1:] == [f"{tmp_path}/date=2026-12-01/x.parquet belongs to no commit"]
    assert said.err == f"fasti-spark: {tmp_path}: 1 fault\n"
    assert program.main(["verify", "--archive", "relative\n"]) == 1


@pytest.mark.parametrize("answer", [{"hello": 1}, [1], {"id": "j", "slices": [{"a": 1}]}, {"slices": 1}])
@pytest.mark.parametrize("command", [["archive"], ["split", "--overfull"], ["split", "--slice", "0"]])
def test_another_kind_of_server_is_no_server_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: Any, command: list[str]
) -> None:
    monkeypatch.setattr(program, "_check_machine", lambda _: None)
    opener = SimpleNamespace(open=lambda *_, **__: BytesIO(msgspec.json.encode(answer)))
    monkeypatch.setattr(remote_module, "build_opener", lambda *_: opener)
    assert program.main([*command, *SERVER]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fasti-spark: http://127.0.0.1:9 answers, but not as a fasti server does: ")
