"""Run with PARENT, NICE and COMMAND … it becomes that command, which yields the CPU and dies with its parent.

A `preexec_fn` could do the same, but Python calls it between fork and exec in a copy of a
threaded process, where it may deadlock, and it costs the faster vfork.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when the thread of `parent` that started it ends; elsewhere do nothing."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew
        sys.exit(1)


if __name__ == "__main__":
    parent, niceness, *command = sys.argv[1:]
    die_with_parent(int(parent))
    os.nice(int(niceness))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error.strerror}")
