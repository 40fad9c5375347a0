"""mosquitto, a plain MQTT broker in C, its bounds out of the way. It acks from RAM: its persistence is a copy
of all that it has, every half hour or so, and is off here.
"""

from pathlib import Path

from . import Kind, program


def _arguments(folder: Path, port: int) -> list[object]:
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nset_tcp_nodelay true\n"
        "max_inflight_messages 1000\nmax_queued_messages 0\nlog_type error\n"
    )
    return ["-c", config]


MOSQUITTO = Kind("mosquitto", "in RAM", program("mosquitto", _arguments))
