"""Hosts on one machine: network namespaces, and between them a wire with a delay, losses and a rate.

The wire is a thread of this process. Each host's only device is a TUN whose packets it takes and hands on, so that
nothing but root and /dev/net/tun is needed, no module of the kernel either. Each host has process numbers and a name of
its own.
"""

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import selectors
import shutil
import struct
import subprocess
import threading
import time
from pathlib import Path

DEVICE = "wire0"  # in each host
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def missing():
    """What this machine lacks for hosts, or None."""
    if os.geteuid() != 0:
        return "hosts need root"
    for command in ("ip", "unshare", "nsenter"):
        if shutil.which(command) is None:
            return f"hosts need the command {command}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "hosts need /dev/net/tun"
    try:
        with Hosts(1):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"hosts cannot be made here: {error}"


class Hosts:
    """With-block: `count` hosts, the n-th of which is reached at address(n) from all others."""

    def __init__(self, count, delay_s=0.0, loss=0.0, bytes_per_s=None, seed=1):
        self._names = [f"abele-{os.getpid()}-{host}" for host in range(count)]
        self._delay_s, self._loss, self._bytes_per_s = delay_s, loss, bytes_per_s
        self._random = random.Random(seed)
        self._cut = set()
        self._wires = []
        self._inits = []
        self._running = []

    def address(self, host):
        return f"10.77.0.{host + 1}"

    def __enter__(self):
        try:
            for host, name in enumerate(self._names):
                _ip("netns", "add", name)
                self._wires.append(_tun(name))
                _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", DEVICE)
                for device in ("lo", DEVICE):
                    _ip("-n", name, "link", "set", device, "up")
                self._inits.append(_init(name, f"host{host}"))
        except BaseException:
            self._remove()
            raise
        self._stop, self._stopping = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        for host in range(len(self._inits)):
            self.kill(host)
        for process in self._running:
            process.wait()
            if process.stdout:
                process.stdout.close()
        os.close(self._stopping)
        self._thread.join()
        os.close(self._stop)
        self._remove()

    def start(self, host, command, **popen):
        """A Popen of a program on the host."""
        process = subprocess.Popen(["nsenter", "--all", "--target", _child(self._inits[host]), *command], **popen)
        self._running.append(process)
        return process

    def kill(self, host):
        """Ends all that runs on the host, as a cut of its power would."""
        self._inits[host].kill()
        self._inits[host].wait()

    def cut(self, host):
        """From now on nothing reaches the host, nor anything of it the others. Nobody is told."""
        self._cut.add(host)

    def _remove(self):
        for init in self._inits:
            init.kill()
            init.wait()
        for wire in self._wires:
            os.close(wire)
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def _carry(self):
        """The wire, until the block ends."""
        selector = selectors.DefaultSelector()
        selector.register(self._stop, selectors.EVENT_READ)
        for host, wire in enumerate(self._wires):
            selector.register(wire, selectors.EVENT_READ, host)
        free = [0.0] * len(self._wires)  # when each host's line can take the next packet
        due, count = [], 0
        while True:
            for key, _ in selector.select(max(0.0, due[0][0] - time.monotonic()) if due else None):
                if key.data is None:
                    return
                packet = _read(key.fd)
                to = packet[19] - 1 if len(packet) >= 20 and packet[0] >> 4 == 4 else -1
                if not 0 <= to < len(self._wires) or self._cut & {to, key.data} or self._random.random() < self._loss:
                    continue
                now = time.monotonic()
                begin = max(now, free[key.data])
                free[key.data] = begin + (len(packet) / self._bytes_per_s if self._bytes_per_s else 0.0)
                heapq.heappush(due, (free[key.data] + self._delay_s, count, to, packet))
                count += 1
            while due and due[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(due)
                if to not in self._cut:
                    with contextlib.suppress(OSError):  # the host's queue is full: lost, as elsewhere
                        os.write(self._wires[to], packet)


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _init(namespace, name):
    """The first process of a host. The others end with it."""
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
    first = ["sh", "-c", 'hostname "$0"; echo; exec sleep infinity', name]
    process = subprocess.Popen(["ip", "netns", "exec", namespace, *inside, *first], stdout=subprocess.PIPE)
    is_there = process.stdout.readline()
    process.stdout.close()
    if not is_there:
        process.wait()
        raise OSError(f"no first process of {name}")
    return process


def _child(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]


def _tun(namespace):
    """A file of the packets of the namespace's DEVICE. It belongs to the namespace of the thread that makes it."""
    made = []

    def make():
        with Path("/run/netns", namespace).open() as where:
            if _libc.setns(where.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        wire = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(wire, _TUNSETIFF, struct.pack("16sH", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        made.append(wire)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not made:
        raise OSError(f"no network device in {namespace}")
    return made[0]


def _read(wire):
    try:
        return os.read(wire, 1 << 16)
    except (BlockingIOError, OSError):
        return b""
