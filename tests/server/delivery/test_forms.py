"""How many filters of one owner can match one topic."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.delivery.quota import LEVELS_MAX, Forms
from tests.support.rig import Rig
from timeline.filters import Trie, matches

LEVELS = st.sampled_from(["a", "b", "+", ""])
FILTERS = st.lists(LEVELS, min_size=1, max_size=5).map("/".join)


@pytest.mark.long
@given(st.lists(st.tuples(FILTERS, st.booleans()), max_size=60), st.lists(LEVELS, min_size=1, max_size=5))
def test_of_one_form_one_filter_matches(found: list[tuple[str, bool]], levels: list[str]) -> None:
    filters = {f"{text}/#" if is_open else text for text, is_open in found}
    topic = "/".join("a" if level == "+" else level for level in levels)
    forms = Forms()
    for text in filters:
        forms.add("A", text)
    fitting = [text for text in filters if "+" in text and matches(text, topic)]
    assert len(fitting) <= len(forms._counts.get("A", ()))
    for text in filters:
        forms.discard("A", text)
    assert not forms._counts
    assert not forms._levels


def test_an_owner_has_all_forms_of_a_few_levels_and_not_of_many() -> None:
    forms, trie = Forms(), Trie[str, int]()
    taken = 0
    for levels in product("a+", repeat=12):
        text = "/".join(levels)
        if forms.has_room("A", text):
            forms.add("A", text)
            trie.add(text, "A", 0)
            taken += 1
    assert taken == LEVELS_MAX // 12 + 1  # a/a/.../a has no form
    assert len(trie.holders("/".join("a" * 12))) == taken
    assert forms.has_room("A", "b/" * 11 + "+"), "its form is there"
    assert forms.has_room("A", "a/b/c")
    assert forms.has_room("B", "+/" * 20 + "a")
    forms.move("A", "B", "/".join("a" * 11 + "+"))
    assert forms.has_room("A", "+/" * 11 + "+"), "there is room again"


@pytest.mark.parametrize("level", [4, 5])
def test_a_filter_beyond_is_refused(rig: Rig, level: int) -> None:
    """2^16 filters that all match one topic made each new topic take 131 ms."""
    refused = 0x97 if level == 5 else 0x80
    texts = ["/".join(levels) + "/#" for levels in product("a+", repeat=11)]
    peer, others = rig.connected("s", level), rig.connected("t", level)
    few = LEVELS_MAX // 12
    assert peer.subscribe(*texts[1 : few + 1], qos=0) == (0,) * few
    assert others.subscribe(texts[few + 1], "a/b", "b/+/#", texts[1], qos=0) == (refused, 0, 0, 0)
    assert rig.core.sessions.quota.refused == 1
    peer.unsubscribe(texts[2])
    assert others.subscribe(texts[few + 1], qos=0) == (0,)
    peer.drop()
    others.drop()
    assert not rig.core.sessions.quota._forms._levels


def test_so_is_a_group_beyond(rig: Rig) -> None:
    """It stays when its members go, so it counts by itself."""
    texts = [f"$share/g{n}/" + "/".join(levels) for n, levels in enumerate(product("a+", repeat=12))]
    few = LEVELS_MAX // 12
    for at in range(1, few + 2, 100):
        peer, wanted = rig.lasting("s"), texts[at : min(at + 100, few + 1)]
        assert peer.subscribe(*wanted, qos=1) == (1,) * len(wanted)
    assert peer.subscribe(texts[few + 1], "$share/other/" + texts[1].split("/", 2)[2], qos=1) == (0x97, 1)
    assert rig.core.groups.refused == 1
