"""How this interpreter starts ``hotdraft`` in a child process."""

import os
import sys

# -P: an ML project's own `hotdraft` or `datasets` folder must not stand before the installed ones.
MODULE = (sys.executable, "-P", "-m")


def hotdraft_command(*arguments: str) -> list[str]:
    """``hotdraft ARGUMENTS …``."""
    return [*MODULE, "hotdraft", *arguments]


def on_leash(command: list[str], niceness: int = 0) -> list[str]:
    """`command`, which yields the CPU as `niceness` says and ends with the thread that starts it."""
    return [*MODULE, "hotdraft.pipeline.processes.leash", str(os.getpid()), str(niceness), *command]
