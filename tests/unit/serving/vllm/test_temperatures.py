"""A vLLM that loses temperatures is mended, one that keeps them is left as it is."""

from types import SimpleNamespace

import torch
from torch import Tensor

from hotdraft.serving.vllm.worker.temperatures import expand_batch_to_tokens, keep_temperatures


def as_vllm_cpu_does(x: Tensor, cu_num_tokens: Tensor, num_tokens: int, *_: int) -> Tensor:
    return torch.full((num_tokens,), -9.8e26)


def test_only_what_loses_them_is_mended() -> None:
    broken = SimpleNamespace(expand_batch_to_tokens=as_vllm_cpu_does)
    assert keep_temperatures(broken)
    assert not keep_temperatures(broken)
    assert not keep_temperatures(SimpleNamespace(expand_batch_to_tokens=expand_batch_to_tokens))


def test_each_request_has_its_own_as_often_as_it_has_positions() -> None:
    spans = torch.tensor([3, 3, 5, 6], dtype=torch.int32)
    spread = expand_batch_to_tokens(torch.tensor([0.5, 9.0, 0.0, 0.8]), spans, 6, 0, 1)
    assert torch.equal(spread, torch.tensor([0.5, 0.5, 0.5, 1.0, 1.0, 0.8]))
