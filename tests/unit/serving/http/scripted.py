"""An engine that says what it is told to, and a server in front of it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from hotdraft.serving.engine.waiting import QueueFullError
from hotdraft.serving.graphs.recurring import GraphCounts
from hotdraft.serving.messages.request import (
    FinishReason,
    GenerationRequest,
    OutputDelta,
    RequestStats,
    TokenLogprob,
)
from hotdraft.serving.models.runner import Computation

WORDS = ["<unk>", "<s>", "system:", "user:", "assistant:", "hello", "there", "be", "brief"]
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' and loop.first %}{{ raise_exception('must start with the user') }}{% endif %}"
    "{{ m.role + ': ' + m.content + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
DRAFT_VERSION = 7


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", chat_template=TEMPLATE)


@dataclass
class ScriptedEngine:
    """Says `script`, a word a delta, from a thread of its own; then `ending`, or waits for a cancel if None."""

    script: tuple[str, ...] = ("Hi", "", " you", " there")
    ending: FinishReason | None = "stop"
    stop_reason: str | int | None = None
    refusal: Exception | None = None
    room: int = 1000
    """Requests it takes."""
    most_at_once: int = 1000
    """Of one client's call."""
    tokenizer: PreTrainedTokenizerFast = field(default_factory=make_tokenizer)
    special_ids: frozenset[int] = frozenset({0})
    max_model_len: int = 64
    draft_version: int = DRAFT_VERSION
    num_running: int = 0
    num_waiting: int = 0
    num_slots: int = 4
    is_alive: bool = True
    fatal_error: str | None = None
    failures: dict[str, int] = field(default_factory=dict)
    computations: dict[str, Computation] = field(
        default_factory=lambda: {"target": Computation("native", "avx2", "float32")}
    )
    stalls: int = 0
    graphs: GraphCounts = field(default_factory=GraphCounts)
    sampling_defaults: dict[str, float] = field(default_factory=dict)
    is_draining: bool = False
    requests: list[GenerationRequest] = field(default_factory=list)
    cancelled: dict[str, threading.Event] = field(default_factory=dict)

    def check_room(self, client: str, count: int) -> None:
        if self.most_at_once < count:
            raise QueueFullError("no room for all")

    def submit(self, request: GenerationRequest, on_delta: Callable[[OutputDelta], None]) -> None:
        if self.refusal:
            raise self.refusal
        if len(self.requests) == self.room:
            raise QueueFullError("no room")
        self.requests.append(request)
        self.cancelled[request.request_id] = threading.Event()
        threading.Thread(target=self._speak, args=(request, on_delta), daemon=True).start()

    def cancel(self, request_id: str) -> None:
        self.cancelled[request_id].set()

    def _speak(self, request: GenerationRequest, on_delta: Callable[[OutputDelta], None]) -> None:
        prompt = self._logprobs(request.prompt_ids, request.params.prompt_logprobs, None)
        for count, word in enumerate(self.script, start=1):
            said = self._logprobs((count,), request.params.logprobs, -0.5 * count)
            on_delta(OutputDelta(word, (count,), None, self._stats(request, count), said, prompt))
            prompt = None
        ending = self.ending
        if ending is None:
            self.cancelled[request.request_id].wait(10)
            ending = "cancelled"
        last = self._logprobs((0,), request.params.logprobs, -3.0)
        stats = self._stats(request, len(self.script) + 1)
        on_delta(OutputDelta("!", (0,), ending, stats, last, stop_reason=self.stop_reason))

    def _logprobs(
        self, token_ids: tuple[int, ...], wanted: int | None, logprob: float | None
    ) -> tuple[TokenLogprob, ...] | None:
        """Each token's own is `logprob`, or that of the tokens before it; the likeliest are tokens 5, 6, ..."""
        if wanted is None:
            return None
        top = tuple((5 + rank, -0.1 * (rank + 1)) for rank in range(wanted))
        if logprob is not None:
            return tuple(TokenLogprob(token, logprob, top) for token in token_ids)
        first, *others = token_ids
        return (TokenLogprob(first, None, ()), *(TokenLogprob(token, -1.0, top) for token in others))

    def _stats(self, request: GenerationRequest, tokens: int) -> RequestStats:
        return RequestStats(
            prompt_tokens=len(request.prompt_ids),
            completion_tokens=tokens,
            rounds=2,
            drafted_tokens=6,
            examined_tokens=5,
            accepted_tokens=4,
            first_examined=2,
            first_accepted=2,
            guessed_tokens=2,
            accepted_guesses=1,
            draft_version=self.draft_version,
            queued_seconds=0.0,
            time_to_first_token=0.1,
            total_seconds=0.2,
        )

    def wait_for_cancel(self, timeout: float = 5.0) -> bool:
        deadline = time.monotonic() + timeout
        while not self.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.cancelled[self.requests[-1].request_id].wait(timeout)


USER = [{"role": "user", "content": "hello there"}]
