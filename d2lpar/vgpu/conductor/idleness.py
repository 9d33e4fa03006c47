"""Whether a process waits for something that is no matter of the run: a lock, an event, a file.

Its turn is for others then. It does if it sleeps, and none of its threads has used the processor,
for as long as a busy machine may need to let one go on that could.
"""

from __future__ import annotations

import psutil

LOOKS = 4  # in a row that see nothing


class Idleness:
    """That of the process with this id, which somebody looks at now and then."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seconds = -1.0  # of the processor, that it has used so far
        self._looks = 0

    def lasts(self) -> bool:
        """Look at it; whether it has been idle for some time."""
        try:
            process = psutil.Process(self._pid)
            times = process.cpu_times()
            sleeps = process.status() == psutil.STATUS_SLEEPING
        except psutil.Error:
            return False
        seconds = times.user + times.system
        self._looks = self._looks + 1 if sleeps and seconds == self._seconds else 0
        self._seconds = seconds
        return self._looks >= LOOKS
