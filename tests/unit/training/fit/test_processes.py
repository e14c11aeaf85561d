import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.integration.processes import wait_for

ROOT = Path(__file__).parents[4]
INTERRUPTED = """
from hotdraft.training.fit.processes import in_processes
from tests.unit.training.fit.test_processes import never_ends
try:
    in_processes(never_ends, 2, "cpu")
except KeyboardInterrupt:
    print("interrupted")
"""


def never_ends(device: torch.device) -> None:
    time.sleep(600)


def children_of(pid: int) -> list[int]:
    """Training processes among them."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_is_told_by_nobody_but_the_process_that_began_them(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        children = wait_for("two processes", lambda: len(found := children_of(process.pid)) == 2 and found)
        time.sleep(0.3)  # into their imports
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60) == ("interrupted\n", "")
    finally:
        process.kill()
    assert not any(Path(f"/proc/{child}").exists() for child in children)
