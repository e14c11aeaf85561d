"""A job's draft is where it is told, takes no more of a GPU than it may, and reads what it does where it serves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.draft_window import first_read
from hotdraft.training.judging import served_draft
from hotdraft.training.judging.served_draft import ServedDraft


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


def test_what_it_does_on_a_long_prompt_is_told_by_what_it_reads_of_it(make_llama, serve):
    (sample,) = serve(make_llama(0, scale=0.3), 1)
    sample = sample.part(slice(4))
    before, last = np.arange(9), sample.prompt_ids
    window, whole = (ServedDraft(make_llama(1, scale=0.3), "", None, None, window) for window in (len(last), None))
    long = replace(sample, prompt_ids=np.concatenate([before, last]).astype(np.int32))

    def chances(draft, sample):
        [told] = draft.chances(None, [sample], 100)
        return told

    np.testing.assert_array_equal(chances(window, long), chances(whole, sample))
    assert not np.allclose(chances(whole, long), chances(whole, sample))
    assert len(long.prompt_ids) > 2 * len(last)


def test_what_it_does_on_a_long_answer_is_told_by_what_is_read_as_it_grows(make_llama, serve):
    window = 2
    (sample,) = serve(make_llama(0, scale=0.3), 1)
    every, start = np.concatenate([sample.prompt_ids, sample.output_ids]), len(sample.prompt_ids)
    served, whole = (ServedDraft(make_llama(1, scale=0.3), "", None, None, window) for window in (window, None))
    first, behind = first_read(start, window), []
    for at in range(len(sample.output_ids)):
        if start + at - first > 3 * window:
            first = start + at - window
        behind.append(sample.part(slice(at, at + 1), every[first : start + at]))
    [told] = served.chances(None, [sample], 100)
    np.testing.assert_allclose(told, np.concatenate(whole.chances(None, behind, 100)), atol=1e-5)
    assert not np.allclose(told, whole.chances(None, [sample], 100)[0])
