"""The blocking client is the async one without `await`: the same names, the same arguments, the same values.

It is generated, and has to be what `sdk/generate.py` writes today. What that wrote is compared by what Python
knows of the classes, name for name. An `async def` stands beside a `def`, an async iterator beside an
iterator.
"""

import ast
import inspect
import pydoc
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self, get_args, get_origin, get_type_hints

import pytest

import fasti
import fasti.testing
from fasti import (
    admin,
    delivery,
    endpoints,
    entries,
    groups,
    messages,
    pull,
    schedules,
    subscribe,
    sync,
)
from fasti.blocking import Facade
from sdk import generate

CLASSES = (
    *(fasti.Client, messages.Messages, messages.Message, messages.ByKey, schedules.Schedules),
    *(admin.Sessions, admin.Slices, admin.Server, entries.Dead, entries.Retries, admin.Jobs, admin.Cluster),
    *(admin.Timeline, groups.Groups, endpoints.Endpoints, pull.Pull, pull.Pulled),
    *(subscribe.Subscription, delivery.Delivery),
)
TWINS: dict[type, type] = {kind: getattr(sync, kind.__name__) for kind in CLASSES}
SPELLED = {"aclose": "close"}
SPELLED |= {f"__a{name}__": f"__{name}__" for name in ("iter", "next", "enter", "exit")}
"""What Python or the standard library calls otherwise where there is no `await`."""
PROTOCOLS = {*SPELLED, *SPELLED.values(), "__eq__", "__repr__"}


def own_names(cls: type) -> set[str]:
    """What a user may touch, and the protocols that the class takes part in."""
    spoken = {name for name in PROTOCOLS if getattr(cls, name, None) is not getattr(object, name, None)}
    return {name for name in dir(cls) if not name.startswith("_")} | spoken


def blocking(kind: Any) -> Any:
    """What the blocking client gives where the async one gives this."""
    if get_origin(kind) is AsyncIterator:
        return Iterator[tuple(blocking(inner) for inner in get_args(kind))]
    return TWINS.get(kind, kind)


def shape(function: Callable[..., Any]) -> tuple[list[inspect.Parameter], Any]:
    """Its arguments with defaults and resolved types, and what it gives."""
    hints = get_type_hints(function)
    arguments = inspect.signature(function).parameters.items()
    return [p.replace(annotation=hints.get(name)) for name, p in arguments], hints.get("return")


def attribute(cls: type, name: str) -> tuple[list[inspect.Parameter] | None, Any]:
    """The arguments and the answer of a method; None and the type of a field or a property."""
    found = inspect.getattr_static(cls, name)
    if inspect.isfunction(found):
        return shape(found)
    hints = get_type_hints(found.fget) if isinstance(found, property) else get_type_hints(cls)
    return None, hints["return" if isinstance(found, property) else name]


def is_told(cls: type, name: str) -> bool:
    """Whether an editor has anything to show of it; of a dataclass's field the class tells."""
    found = inspect.getattr_static(cls, name)
    return bool(found.__doc__) or not (inspect.isfunction(found) or isinstance(found, property))


def test_the_blocking_client_is_what_the_generator_writes() -> None:
    """Compared as syntax trees, which have docstrings and no format: `make style` looks at that."""
    there, written = generate.TARGET.read_text(encoding="utf-8"), generate.written()
    assert there.partition("\n")[0] == written.partition("\n")[0]
    assert ast.dump(ast.parse(there)) == ast.dump(ast.parse(written)), "run: python -m sdk.generate"


def test_durations_are_read_as_the_server_reads_them() -> None:
    assert generate.DURATIONS.read_text(encoding="utf-8") == generate.durations(), (
        "run: python -m sdk.generate"
    )


def test_type_checkers_are_told_of_every_public_name() -> None:
    there, told = ast.parse(generate.STUB.read_text(encoding="utf-8")), ast.parse(generate.stub())
    assert ast.dump(there) == ast.dump(told), "run: python -m sdk.generate"
    assert {
        name for name in fasti.__all__ if getattr(fasti, name).__name__.rpartition(".")[2] != name
    } == set()
    with pytest.raises(AttributeError, match="'fasti' has no attribute 'Clinet'"):
        getattr(fasti, "Clinet")  # noqa: B009 - as a typing error it would not be seen


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], str]:
    """What would be written if a text in a file of the async client were another."""
    monkeypatch.setattr(generate, "SDK", shutil.copytree(generate.SDK, tmp_path / "fasti"))
    monkeypatch.setattr(generate, "module", generate.Module)

    def change(file: str, old: str, new: str) -> str:
        source = (generate.SDK / file).read_text(encoding="utf-8")
        assert source.count(old) == 1
        (generate.SDK / file).write_text(source.replace(old, new), encoding="utf-8")
        return generate.written()

    return change


def test_an_option_is_written_once(changed: Callable[[str, str, str], str]) -> None:
    """One more in the async client is one more in the blocking one."""
    method = "def delete(self, name: str,"
    changed("groups.py", "import GroupOptions", "import GroupOptions, Misfire")
    written = changed("groups.py", method, f"{method} fires: Misfire | None,")
    assert f"{method} fires: Misfire | None," in written
    assert "self._inner.delete(name, fires, filter, undone=undone)" in written
    assert "MessageOptions, Misfire, RetrySelection" in written


def test_an_answer_that_has_no_blocking_form_is_refused(changed: Callable[[str, str, str], str]) -> None:
    method = "async def get(self, message_id: str) ->"
    with pytest.raises(AssertionError, match=r"Messages\.get: .* tuple\[Message, \.\.\.\]"):
        changed("messages.py", f"{method} Message:", f"{method} tuple[Message, ...]:")


def test_help_shows_the_same_of_both() -> None:
    for one, other in TWINS.items():
        for name in sorted(own_names(one) & own_names(other) - PROTOCOLS):
            functions = [inspect.getattr_static(cls, name) for cls in (one, other)]
            if inspect.isfunction(functions[0]):
                shown = [pydoc.plain(pydoc.render_doc(f, "%s")).partition("\n\n")[2] for f in functions]
                told = [text.removeprefix("async ").replace("AsyncIterator", "Iterator") for text in shown]
                for spelled in generate.SAID.items():
                    told[0] = told[0].replace(*spelled)
                assert told[0] == told[1], name


EACH = pytest.mark.parametrize(("one", "other"), TWINS.items(), ids=lambda cls: cls.__name__)


@EACH
def test_both_have_the_same_names(one: type, other: type) -> None:
    assert {SPELLED.get(name, name) for name in own_names(one)} == own_names(other)


@EACH
def test_each_name_means_the_same(one: type, other: type) -> None:
    for name in sorted(own_names(one) - PROTOCOLS - SPELLED.keys()):
        arguments, answer = attribute(one, name)
        assert (arguments, blocking(answer)) == attribute(other, name), name


@EACH
def test_an_editor_shows_in_both_what_each_does(one: type, other: type) -> None:
    names = sorted(own_names(one) & own_names(other) - PROTOCOLS)
    methods = [name for name in names if inspect.isfunction(inspect.getattr_static(one, name))]
    assert [name for cls in (one, other) for name in methods if not is_told(cls, name)] == []
    assert [name for name in names if is_told(one, name) and not is_told(other, name)] == []


@EACH
def test_the_blocking_one_is_never_awaited(one: type, other: type) -> None:
    found = [inspect.getattr_static(other, name) for name in sorted(own_names(other))]
    assert not any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in found)


class Member:
    """Of an object of the async client: a value, or a call that knows what it was given."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.given: tuple[tuple[object, ...], dict[str, object]] = (), {}

    def __call__(self, *args: object, **named: object) -> Self:
        self.given = args, named
        return self


class Inner:
    def __getattr__(self, name: str) -> Member:
        self.last = Member(name)
        return self.last


class Straight:
    """A loop in which nothing has to be waited for; `waited`: how often it was asked to."""

    waited = 0

    def run(self, work: object) -> object:
        self.waited += 1
        return work

    def iterate(self, work: object) -> Iterator[object]:
        return iter([self.run(work)])


@pytest.mark.parametrize(
    "other", [cls for cls in TWINS.values() if issubclass(cls, Facade) and cls is not sync.Client]
)
def test_each_call_goes_on_with_all_that_it_was_given(other: type) -> None:
    """To the call of the same name; what that answers is given back, as it is or in its blocking form."""
    inner, one = Inner(), next(one for one, twin in TWINS.items() if twin is other)
    made = other(loop := Straight(), inner)
    for name in [name for name in vars(other) if not name.startswith("_")]:
        if isinstance(inspect.getattr_static(other, name), property):
            assert (getattr(made, name), inner.last.name) == (inner.last, name)
            continue
        parameters = inspect.signature(getattr(made, name)).parameters.values()
        given = {p.name: f"<{p.name}>" for p in parameters}
        by_name = {p.name: given[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
        loop.waited = 0
        answer = getattr(made, name)(*[text for key, text in given.items() if key not in by_name], **by_name)
        answer = next(answer) if isinstance(answer, Iterator) and not isinstance(answer, other) else answer
        args, named = inner.last.given
        asked = inspect.signature(getattr(one, inner.last.name)).bind(inner, *args, **named)
        assert asked.arguments == {"self": inner, **given}, name
        assert SPELLED.get(inner.last.name, inner.last.name) == name
        call, (_, gives) = getattr(one, inner.last.name), attribute(one, inner.last.name)
        assert loop.waited == (inspect.iscoroutinefunction(call) or get_origin(gives) is AsyncIterator), name
        assert (answer is None) == (attribute(other, name)[1] is type(None)), name
        assert any(found is answer for found in (None, made, inner.last)) or answer._inner is inner.last, name


def test_a_value_is_compared_hashed_and_shown_as_what_is_behind_it() -> None:
    with sync.Client() as c:
        one, twin, other = (c.messages.by_key(key) for key in ("sync", "sync", "other"))
        assert one == twin != other
        assert hash(one) == hash(twin)
        assert "'sync'" in repr(one)


def test_the_clients_are_made_and_built_alike() -> None:
    assert shape(fasti.Client.__init__) == shape(sync.Client.__init__)
    one, other = fasti.Client(), sync.Client()
    with other:
        parts = {name: type(part) for name, part in vars(one).items() if not name.startswith("_")}
        assert {name: TWINS[kind] for name, kind in parts.items()} == {
            name: type(part) for name, part in vars(other).items() if not name.startswith("_")
        }


def test_every_class_of_the_blocking_client_is_compared() -> None:
    assert {getattr(sync, name) for name in sync.__all__} == set(TWINS.values())


def test_what_a_server_for_tests_does_is_done_without_an_event_loop_too() -> None:
    verbs = dict(inspect.getmembers(fasti.testing.FastiServer, inspect.iscoroutinefunction))
    verbs = {name: verb for name, verb in verbs.items() if not name.startswith("_")}
    assert verbs.keys() >= {"advance", "advance_to", "restart"}
    for name, verb in verbs.items():
        assert shape(verb) == shape(getattr(fasti.testing.FastiServer, f"{name}_sync")), name
