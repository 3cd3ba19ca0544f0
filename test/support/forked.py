"""Processes of a training as forks of a test program, which has loaded the libraries and computed nothing."""

import os
import select
import signal
import sys


def place_of(rank, processes, port):
    """Environment of one of several processes on this host, which find each other at the port."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }


class Forked:
    """A fork that runs `work`, and what it says.

    Args:
        work: called with a function that takes a text to say.
        others: forks made before, whose ends of pipes this one does not keep open.
        limit_s: seconds until it is ended; beyond them it hangs.
    """

    def __init__(self, work, others, limit_s):
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for end in (*(each.end for each in others), read):
                os.close(end)
            signal.alarm(limit_s)
            try:
                work(lambda text: os.write(write, text.encode()))
            finally:
                os.close(write)
            sys.exit(0)
        os.close(write)
        self.end, self._said = read, b""

    def text(self):
        return self._said.decode()

    def read(self, seconds=None):
        """Takes what it says until then; False at its end."""
        if seconds is not None and not select.select([self.end], [], [], max(seconds, 0))[0]:
            return True
        part = os.read(self.end, 1 << 16)
        self._said += part
        return bool(part)

    def read_all(self):
        while self.read():
            pass

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def status(self):
        """Waits for its end. Returns: its exit status, negative for a signal."""
        self.read_all()
        os.close(self.end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
