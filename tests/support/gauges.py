"""What /proc tells of a process."""

import time
from pathlib import Path


class Gauges:
    """Of one that runs. Raises RuntimeError, OSError when it has ended."""

    @property
    def pid(self) -> int:
        raise NotImplementedError

    def cpu_s(self) -> float:
        """Processor time so far, user and system, of all its threads."""
        return cpu_s(self.pid)

    def wait_s(self) -> float:
        """How long its main thread was ready to run and another process had the processor."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    def rss_bytes(self) -> int:
        """Resident memory."""
        return self._told("status", "VmRSS:") << 10

    def peak_bytes(self) -> int:
        """Largest resident memory, since its start or `forget_peak`."""
        return self._told("status", "VmHWM:") << 10

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def disk_bytes(self) -> int:
        """What it has had written to disks."""
        return self._told("io", "write_bytes:")

    def _told(self, file: str, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
        raise RuntimeError("the process has ended")


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, to the nanosecond (/proc knows hundredths of a second).

    The clock's number is Linux's for "all threads of this process", see clock_getcpuclockid(3).
    """
    return time.clock_gettime(~pid << 3 | 2)
