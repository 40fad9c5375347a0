"""What a client can make a real server write into its log."""

import time
from pathlib import Path

import pytest

from server.codec.packets import Properties, Suback, Subscribe, SubscribeOptions
from server.observe.logs import BURST
from tests.support.encode import encode
from tests.support.mqtt import dial
from tests.support.server import serving

pytestmark = pytest.mark.process

REFUSED = 20_000
PORTION = 1_000


async def test_20_000_refused_subscriptions_are_a_few_lines(tmp_path: Path) -> None:
    wrong = Properties(user_properties=(("replay-from", "soon"),))
    packet = encode(Subscribe(1, (("a/b", SubscribeOptions(1)),), wrong), 5)
    # Not forked: the counts are written as the process ends.
    async with serving(tmp_path / "data", program=("server", "--log", "text")) as server:
        peer = await dial(server.mqtt)
        assert not (await peer.connect("evil")).reason
        begun, before = time.monotonic(), len(server.output)
        for _ in range(REFUSED // PORTION):
            peer.write(packet * PORTION)
            for _ in range(PORTION):
                assert (await peer.take(Suback)).reasons[0] >= 0x80
        windows = (time.monotonic() - begun) // 10 + 1
        written = server.output[before:]
        refused = [line for line in written.splitlines() if "subscription refused" in line]
        assert BURST <= len(refused) <= (BURST + 1) * windows
        assert "(evil), " in refused[0]
        assert len(written) < 10_000 * windows
        assert server.stop() == 0
        left_out = sum(
            int(line.partition("… and ")[2].split()[0].replace(",", ""))
            for line in server.output.splitlines()
            if "… and " in line
        )
        assert left_out + len([line for line in refused if "… and " not in line]) == REFUSED
