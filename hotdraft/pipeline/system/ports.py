"""TCP ports of this machine."""

import socket


def free_port() -> int:
    """A TCP port that nothing on this machine listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
