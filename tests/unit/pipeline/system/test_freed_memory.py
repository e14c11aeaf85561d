import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hotdraft.pipeline.system.freed_memory import page_out

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is paged out")
MEGABYTES = 64


def mapped_megabytes() -> float:
    return int(re.search(r"RssFile:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def test_what_a_file_has_leaves_memory_and_comes_again_unchanged(tmp_path):
    save_file({"weight": torch.arange(MEGABYTES << 18, dtype=torch.int32)}, tmp_path / "weights.safetensors")
    weight = safe_open(tmp_path / "weights.safetensors", "pt").get_tensor("weight")
    assert weight.sum() > 0
    before = mapped_megabytes()
    page_out([weight])
    assert mapped_megabytes() < before - 0.9 * MEGABYTES
    assert torch.equal(weight, torch.arange(MEGABYTES << 18, dtype=torch.int32))


def test_what_no_file_has_stays():
    weight = torch.arange(1 << 20)
    page_out([weight, torch.arange(3)])
    assert torch.equal(weight, torch.arange(1 << 20))
