"""vLLM's objects as far as hotdraft touches them, with the signatures that releases 0.29 to 0.32 have."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

VOCAB = 16


def parallel_config(**told: Any) -> SimpleNamespace:
    defaults = {
        "data_parallel_size": 1,
        "data_parallel_size_local": 1,
        "data_parallel_index": 0,
        "data_parallel_external_lb": False,
        "data_parallel_hybrid_lb": False,
    }
    return SimpleNamespace(**{**defaults, **told})


def sampling_params(**told: Any) -> SimpleNamespace:
    defaults: dict[str, Any] = {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "max_tokens": 64,
        "min_tokens": 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": None,
        "structured_outputs": None,
        "allowed_token_ids": None,
        "bad_words": None,
        "stop_token_ids": [],
        "eos_token_id": None,
        "all_stop_token_ids": set(),
        "extra_args": {"hotdraft_client": "c"},
    }
    return SimpleNamespace(**{**defaults, **told})


def new_request(request_id: str, prompt_ids: list[int] | None = None, **told: Any) -> SimpleNamespace:
    return SimpleNamespace(
        req_id=request_id,
        prompt_token_ids=prompt_ids or [1, 2, 3],
        sampling_params=sampling_params(**told),
        mm_features=[],
        lora_request=None,
        prompt_embeds=None,
    )


@dataclass
class Scheduled:
    """`SchedulerOutput`."""

    scheduled_new_reqs: list[Any] = field(default_factory=list)
    finished_req_ids: set[str] = field(default_factory=set)
    preempted_req_ids: set[str] = field(default_factory=set)
    resumed: set[str] = field(default_factory=set)

    @property
    def scheduled_cached_reqs(self) -> SimpleNamespace:
        return SimpleNamespace(resumed_req_ids=self.resumed)


class RunnerV1:
    """`GPUModelRunner`: a step gives what `answers` says for the requests in the batch."""

    def __init__(self) -> None:
        self.input_batch = SimpleNamespace(req_ids=[], num_reqs=0)
        self.discard_request_mask = SimpleNamespace(np=np.zeros(8, bool))
        self.sampled: torch.Tensor | None = None
        self.told: list[Scheduled] = []

    def step(
        self, scheduled: Scheduled, drafted: dict[str, list[int]], sampled: list[list[int]], logits: torch.Tensor
    ) -> Any:
        self._update_states(scheduled)
        self.input_batch = SimpleNamespace(req_ids=list(drafted), num_reqs=len(drafted))
        width = max((len(row) for row in sampled), default=1)
        self.sampled = torch.tensor([row + [-1] * (width - len(row)) for row in sampled], dtype=torch.int32)
        metadata = None
        if any(drafted.values()):
            metadata = SimpleNamespace(
                num_draft_tokens=[len(row) for row in drafted.values()],
                draft_token_ids=torch.tensor(
                    [token for row in drafted.values() for token in row], dtype=torch.int32
                ),
            )
        return self._sample(logits, metadata)

    def _update_states(self, scheduler_output: Scheduled) -> None:
        self.told.append(scheduler_output)

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> SimpleNamespace:
        logits.fill_(float("nan"))  # vLLM's sampler may change them in place
        return SimpleNamespace(sampled_token_ids=self.sampled)


class SamplerV2:
    compute_nans = False

    def __init__(self, runner: "RunnerV2") -> None:
        self.runner = runner

    def __call__(self, logits: torch.Tensor, input_batch: Any) -> SimpleNamespace:
        logits.fill_(float("nan"))
        return SimpleNamespace(sampled_token_ids=self.runner.sampled, num_sampled=None)


class RejectionSamplerV2(SamplerV2):
    def __call__(
        self, logits: torch.Tensor, input_batch: Any, draft_logits: Any = None, invalid_drafts: Any = None
    ) -> SimpleNamespace:
        logits.fill_(float("nan"))
        return SimpleNamespace(sampled_token_ids=self.runner.sampled, num_sampled=self.runner.num_sampled)


class RunnerV2:
    """`v1/worker/gpu/model_runner.py`."""

    def __init__(self) -> None:
        self.batch_sharder = None
        self.sampler: Any = SamplerV2(self)
        self.rejection_sampler: Any = RejectionSamplerV2(self)
        self.sampled = self.num_sampled = torch.empty(0)
        self.unread: list[bool] = []

    def step(
        self, scheduled: Scheduled, drafted: dict[str, list[int]], sampled: list[list[int]], logits: torch.Tensor
    ) -> Any:
        self.finish_requests(scheduled)
        self.add_requests(scheduled)
        lengths = [len(row) + 1 for row in drafted.values()]
        fed = [token for row in drafted.values() for token in (VOCAB - 1, *row)]
        width = max((len(row) for row in sampled), default=1)
        self.sampled = torch.tensor([row + [0] * (width - len(row)) for row in sampled], dtype=torch.int32)
        self.num_sampled = torch.tensor([len(row) for row in sampled])
        unread = np.array([not row for row in sampled])
        batch = SimpleNamespace(
            req_ids=[*drafted, "padding"],
            num_reqs=len(drafted),
            num_draft_tokens=sum(lengths) - len(lengths),
            num_draft_tokens_per_req=np.array(lengths) - 1 if any(drafted.values()) else None,
            input_ids=torch.tensor(fed),
            logits_indices=torch.arange(len(fed)),
            cu_num_logits_np=np.cumsum([0, *lengths]),
            seq_lens_cpu_upper_bound=torch.full((len(drafted),), 10),
            prefill_len_np=np.where(unread, 20, 3),
        )
        if batch.num_draft_tokens:
            return self.rejection_sampler(logits, batch, draft_logits=None, invalid_drafts=None)
        return self.sampler(logits, batch)

    def add_requests(self, scheduler_output: Scheduled) -> None: ...

    def finish_requests(self, scheduler_output: Scheduled) -> None: ...
