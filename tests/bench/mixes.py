"""Five mixes of three attacks at once, on one server. See attacks.py."""

from functools import partial

from .attacks import long_stored_topics, slow_reader_qos_0, tiny_publishes
from .crowds import bursts, http_batches, many_headers, previews, subscribes_at_once, topic_tree, unread
from .scene import CUT, Attack, Scene, together
from .strangers import calls_without_a_key, dripped_bodies, large_connects, websocket_pings, wrong_keys


def _mix(name: str, story: str, *attacks: Attack) -> Attack:
    def mix(scene: Scene) -> str:
        remarks: list[str] = []

        def do(attack: Attack) -> None:
            try:
                remarks.append(f"{attack.__name__}: {attack(scene)}")
            except CUT as error:
                remarks.append(f"{attack.__name__}: ended by: {error}")

        together(partial(do, attack) for attack in attacks)
        return "; ".join(remarks)

    mix.__name__ = f"mix_of_{name}"
    mix.__doc__ = f"{story}: {', '.join(attack.__name__ for attack in attacks)}."
    return mix


MIXES: tuple[Attack, ...] = (
    _mix("strangers", "Without a key", websocket_pings, large_connects, dripped_bodies),
    _mix("calls", "Over HTTP", wrong_keys, calls_without_a_key, many_headers),
    _mix("subscribers", "What subscribers cost", subscribes_at_once, topic_tree, unread),
    _mix("publishers", "What publishers cost", bursts, tiny_publishes, long_stored_topics),
    _mix("memory", "What fills memory and threads", http_batches, slow_reader_qos_0, previews),
)
