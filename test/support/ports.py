"""Ports for tests whose processes find each other by MASTER_PORT."""

import socket


def free_port():
    """A port of this host that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
