import platform
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hotdraft.pipeline.system.freed_memory import give_back, page_out

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is paged out")
MEGABYTES = 64


def megabytes(kind: str) -> float:
    return int(re.search(rf"{kind}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def test_what_a_file_has_leaves_memory_and_comes_again_unchanged(tmp_path):
    save_file({"weight": torch.arange(MEGABYTES << 18, dtype=torch.int32)}, tmp_path / "weights.safetensors")
    weight = safe_open(tmp_path / "weights.safetensors", "pt").get_tensor("weight")
    assert weight.sum() > 0
    before = megabytes("RssFile")
    page_out([weight])
    assert megabytes("RssFile") < before - 0.9 * MEGABYTES
    assert torch.equal(weight, torch.arange(MEGABYTES << 18, dtype=torch.int32))


def test_what_no_file_has_stays():
    weight = torch.arange(1 << 20)
    page_out([weight, torch.arange(3)])
    assert torch.equal(weight, torch.arange(1 << 20))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries give back by themselves")
def test_what_is_freed_between_what_stays_goes_back_to_the_system():
    blocks = [bytearray(1000) for _ in range(MEGABYTES << 10)]
    stays = blocks[::1000]
    before = megabytes("RssAnon")
    del blocks
    assert megabytes("RssAnon") > before - 0.1 * MEGABYTES
    give_back()
    assert megabytes("RssAnon") < before - 0.8 * MEGABYTES
    assert len(stays) == 66
