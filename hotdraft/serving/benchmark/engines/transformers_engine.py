"""transformers' `generate`: plain in padded batches, and assisted generation, which takes one request."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from hotdraft.serving.benchmark.engines.engine import (
    DRAFTED_TOKENS,
    PLAIN,
    EngineSettings,
    Mode,
    RunResult,
    Speculation,
)


class TransformersEngine:
    """The target as transformers loads it, with the draft as `assistant_model`."""

    name = "transformers"
    version = transformers.__version__

    def __init__(self, settings: EngineSettings) -> None:
        torch.set_num_threads(settings.threads)
        dtype = getattr(torch, settings.dtype)
        load = partial(_load, dtype=dtype, device=settings.device)
        self._target = load(settings.target_folder)
        self._draft = load(settings.draft_folder) if settings.draft_folder is not None else None

    def modes(self, concurrency: int) -> list[Mode]:
        assisted = [Mode("speculative", k) for k in DRAFTED_TOKENS]
        return [PLAIN, *assisted] if concurrency == 1 and self._draft is not None else [PLAIN]

    def run(self, mode: Mode, prompts: list[list[int]], max_tokens: int, concurrency: int) -> RunResult:
        options: dict[str, Any] = {}
        if mode.kind == "speculative":
            assert self._draft is not None
            assert isinstance(mode.k, int)
            self._draft.generation_config.num_assistant_tokens = mode.k
            options["assistant_model"] = self._draft
        outputs: list[list[int]] = []
        token_times: list[list[float]] = []
        told: list[Speculation] = []
        started = time.perf_counter()
        for first in range(0, len(prompts), concurrency):
            batch = prompts[first : first + concurrency]
            ids, mask = (tensor.to(self._target.device) for tensor in left_padded(batch))
            clock = _Clock()
            with torch.inference_mode():
                generated = self._target.generate(
                    ids, attention_mask=mask, max_new_tokens=max_tokens, streamer=clock, **options
                )
            outputs += generated[:, ids.shape[1] :].tolist()
            token_times += [clock.token_times] * len(batch)
            if isinstance(mode.k, int):
                told.append(speculation(clock.tokens, mode.k))
        seconds = time.perf_counter() - started
        rounds, drafted, accepted = (
            sum(getattr(t, name) for t in told) for name in ("rounds", "drafted", "accepted")
        )
        return RunResult(seconds, outputs, token_times, Speculation(rounds, drafted, accepted) if told else None)


class _Clock(BaseStreamer):
    """Hears of every step's tokens, the prompt first."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        """Tokens of each step for one request."""
        self.token_times: list[float] = []
        self._started = time.perf_counter()
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        count = value.shape[-1] if value.ndim == 2 else 1  # assisted: [1, tokens]; plain: one token of each row
        self.tokens.append(count)
        self.token_times += [time.perf_counter() - self._started] * count

    def end(self) -> None: ...


def speculation(tokens: list[int], k: int) -> Speculation:
    """What a request did whose rounds gave `tokens`; transformers drafts no further than the last token but one."""
    left = sum(tokens)
    drafted = 0
    for count in tokens:
        drafted += min(k, left - 1)
        left -= count
    return Speculation(len(tokens), drafted, sum(tokens) - len(tokens))


def left_padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [B, L] and mask [B, L] of prompts that all end in the last column."""
    length = max(map(len, prompts))
    ids = torch.tensor([[0] * (length - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


def _load(folder: Path, dtype: torch.dtype, device: str) -> Any:
    """In eval mode, greedy, and blind to the end of the text."""
    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=dtype).to(device).eval()
    model.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    return model
