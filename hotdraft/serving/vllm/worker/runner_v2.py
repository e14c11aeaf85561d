"""The seams in vLLM's newer model runner (`v1/worker/gpu/model_runner.py`).

`add_requests` and `finish_requests` are told the schedule; `sampler(logits, input_batch)` and, where something was
drafted, `rejection_sampler(logits, input_batch, ...)` get the target's logits, the grammar's mask applied, and give
the tokens. Their parameters are checked before anything is put in their place.
"""

from collections.abc import Callable
from typing import Any

import torch

from hotdraft.serving.vllm.worker.recording import Recording
from hotdraft.serving.vllm.worker.seams import SeamError, check_parameters, put_before

REJECTION_PARAMETERS = ["logits", "input_batch", "draft_logits", "invalid_drafts"]
"""The last of them came with 0.32."""


def fits(runner: Any) -> bool:
    """Whether `runner` is of this kind."""
    return hasattr(runner, "rejection_sampler") and hasattr(runner, "add_requests")


def attach(runner: Any, recording: Recording) -> Callable[[], None]:
    """Have `recording` follow `runner`; the result takes that back. Raises `SeamError` for an unknown runner."""
    if getattr(runner, "batch_sharder", None) is not None:
        raise SeamError("this runner samples in shards of the batch, which is not recorded")
    check_parameters(runner.add_requests, ["scheduler_output"])
    check_parameters(runner.finish_requests, ["scheduler_output"])
    check_parameters(runner.sampler.__call__, ["logits", "input_batch"], may_have_more=True)
    if runner.rejection_sampler is not None:
        told = check_parameters(runner.rejection_sampler.__call__, REJECTION_PARAMETERS[:3], may_have_more=True)
        if not set(told) <= set(REJECTION_PARAMETERS):
            raise SeamError(f"the rejection sampler takes {', '.join(told)}")

    def begins(scheduler_output: Any) -> None:
        recording.schedule(scheduler_output.scheduled_new_reqs, [], [])

    def ends(scheduler_output: Any) -> None:
        preempted = getattr(scheduler_output, "preempted_req_ids", None) or ()
        recording.schedule([], list(scheduler_output.finished_req_ids), list(preempted))

    undo = [
        put_before(runner, "add_requests", lambda *told: recording.guarded(lambda: begins(*told))),
        put_before(runner, "finish_requests", lambda *told: recording.guarded(lambda: ends(*told))),
    ]
    samplers = runner.sampler, runner.rejection_sampler
    runner.sampler = _Followed(samplers[0], recording)
    runner.rejection_sampler = None if samplers[1] is None else _Followed(samplers[1], recording)

    def detach() -> None:
        for one in undo:
            one()
        runner.sampler, runner.rejection_sampler = samplers

    return detach


class _Followed:
    """A sampler as it was, whose calls are recorded."""

    def __init__(self, sampler: Any, recording: Recording) -> None:
        self._sampler = sampler
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def __call__(self, logits: torch.Tensor, input_batch: Any, *more: Any, **named: Any) -> Any:
        recording, requests = self._recording, input_batch.req_ids[: input_batch.num_reqs]
        drafts = _num_drafted(input_batch)
        begun = recording.guarded(lambda: recording.begin(requests, drafts, logits))
        output = self._sampler(logits, input_batch, *more, **named)
        if begun is not None:
            recording.guarded(lambda: recording.finish_pass(begun, *_drawn(input_batch, drafts, output)))
        return output


def _num_drafted(batch: Any) -> list[int]:
    drafts = batch.num_draft_tokens_per_req
    return [0] * batch.num_reqs if drafts is None else drafts[: batch.num_reqs].tolist()


def _drawn(batch: Any, drafts: list[int], output: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A request's rows are the token before its drafts, then these, at `logits_indices` of the input."""
    fed = batch.input_ids[batch.logits_indices]
    starts = batch.cu_num_logits_np[: batch.num_reqs].tolist()
    rows = [start + 1 + place for start, number in zip(starts, drafts, strict=True) for place in range(number)]
    drafted = fed[torch.tensor(rows, dtype=torch.long, device=fed.device)]
    sampled, counts = output.sampled_token_ids, output.num_sampled
    if counts is None:
        read = torch.from_numpy(batch.seq_lens_cpu_upper_bound.numpy()[: batch.num_reqs] >= batch.prefill_len_np)
        counts = read.to(sampled.device).int()
    return drafted, sampled, counts
