import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from tests.unit.pipeline.replay.test_replay import make_sample

before = os.listdir("/proc/self/task")
buffer = ReplayBuffer(sys.argv[1])
for number in range(40):
    buffer.append([make_sample(f"r{number}")])
assert ReplayBuffer(sys.argv[1]).size().requests == 40
assert os.listdir("/proc/self/task") == before
"""


def test_to_keep_samples_takes_no_thread_more_without_which_arrow_would_end_the_process(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert any(path.name.endswith(".merged.parquet") for path in tmp_path.iterdir())
