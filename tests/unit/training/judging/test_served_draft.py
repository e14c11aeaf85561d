"""A job's draft is where it is told, and takes no more of a GPU than it may."""

import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.training.judging import served_draft


@pytest.mark.parametrize(
    ("distill", "limited"),
    [
        ({"device": "cuda:1", "memory_fraction": 0.3}, [(0.3, 1)]),
        ({"device": "cuda", "memory_fraction": 0.3}, [(0.3, None)]),
        ({"device": "cuda:1"}, []),
        ({"device": "cpu", "memory_fraction": 0.3}, []),
    ],
)
def test_a_jobs_share_of_a_gpus_memory_is_bounded_before_it_loads(distill, limited, monkeypatch, tmp_path):
    def load(name, *, dtype, device):
        assert (device, calls) == (torch.device(distill["device"]), limited)
        raise InterruptedError

    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *told: calls.append(told))
    monkeypatch.setattr(served_draft, "load_causal_lm", load)
    config = HotdraftConfig(
        target="t", draft="d", dtype="float32", device="cuda:0", run_dir=tmp_path, distill=distill
    )
    with pytest.raises(InterruptedError):
        served_draft.load_draft("d", config)
