"""The seams in vLLM's older model runner (`v1/worker/gpu_model_runner.py`, and the CPU's, which inherits it).

`_update_states(scheduler_output)` says which requests begin and end, `_sample(logits, spec_decode_metadata)` has
the target's logits, the grammar's mask applied, and gives the tokens. Both are private: their parameters are
checked before anything is put in their place.
"""

from collections.abc import Callable
from typing import Any

import torch

from hotdraft.serving.vllm.worker.recording import Recording
from hotdraft.serving.vllm.worker.seams import check_parameters, put_before, put_in_place

PLACEHOLDER = -1
"""vLLM's token for what a pass did not give."""


def fits(runner: Any) -> bool:
    """Whether `runner` is of this kind."""
    return hasattr(runner, "_sample") and hasattr(runner, "_update_states")


def attach(runner: Any, recording: Recording) -> Callable[[], None]:
    """Have `recording` follow `runner`; the result takes that back. Raises `SeamError` for an unknown runner."""
    check_parameters(runner._update_states, ["scheduler_output"])
    check_parameters(runner._sample, ["logits", "spec_decode_metadata"])

    def schedule(scheduler_output: Any) -> None:
        resumed = scheduler_output.scheduled_cached_reqs.resumed_req_ids
        recording.schedule(
            scheduler_output.scheduled_new_reqs, list(scheduler_output.finished_req_ids), list(resumed)
        )

    def sample(logits: Any, spec_decode_metadata: Any) -> Any:
        batch = runner.input_batch
        begun = recording.guarded(
            lambda: recording.begin(batch.req_ids, _num_drafted(batch, spec_decode_metadata), logits)
        )
        output = original_sample(logits, spec_decode_metadata)
        if begun is not None:
            recording.guarded(lambda: recording.finish_pass(begun, *_drawn(runner, spec_decode_metadata, output)))
        return output

    original_sample = runner._sample
    undo = [
        put_before(runner, "_update_states", lambda *told: recording.guarded(lambda: schedule(*told))),
        put_in_place(runner, "_sample", sample),
    ]

    def detach() -> None:
        for one in undo:
            one()

    return detach


def _num_drafted(batch: Any, metadata: Any) -> list[int]:
    return [0] * batch.num_reqs if metadata is None else metadata.num_draft_tokens


def _drawn(runner: Any, metadata: Any, output: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    sampled = output.sampled_token_ids
    counts = (sampled != PLACEHOLDER).sum(-1)
    unread = runner.discard_request_mask.np[: len(sampled)]
    if unread.any():
        counts = counts.masked_fill(torch.from_numpy(unread.astype(bool)).to(counts.device), 0)
    drafted = sampled.new_empty(0) if metadata is None else metadata.draft_token_ids
    return drafted, sampled, counts
