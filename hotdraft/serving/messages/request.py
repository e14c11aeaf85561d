"""What a client asks of the engine and what it hears back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

from hotdraft.serving.messages.stop_strings import StopStrings

FinishReason = Literal["stop", "length", "cancelled", "error"]
DEFAULT_DOMAIN = "default"
"""Of traffic that nobody tagged."""
UNRECORDED_DOMAIN = "unrecorded"
"""Of traffic that nothing is to be kept of, whatever its tag: metrics and MLflow would keep that."""
MAX_LOGPROBS = 20
"""Likeliest tokens that a request may ask for at a position, as OpenAI has it."""

MAX_BIASED = 300
"""Tokens that a request may bias."""
MAX_STOP_TOKENS = 128
"""Tokens beside its own that a request may be ended by."""
MODEL_TELLS = ("temperature", "top_p", "top_k", "min_p", "epsilon_cutoff", "eta_cutoff")
"""What a request leaves out of these is as the model's `generation_config.json` says."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-5, 100.0
"""The former is vLLM's as well, which has no latter."""
_WHOLE_NUMBERS = ("max_tokens", "min_tokens", "top_k")
_OR_NONE = ("seed", "logprobs", "prompt_logprobs")
"""Whole numbers likewise."""
_NEUTRAL = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": (),
    "min_tokens": 0,
}
"""What leaves the target's logits as they are."""


class ParameterError(ValueError):
    """A sampling parameter that cannot be: `param` is its name, with which the message begins."""

    def __init__(self, param: str, says: str) -> None:
        super().__init__(f"{param} {says}")
        self.param = param


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. Raises ValueError naming the field and what it may be."""

    max_tokens: int = 16
    temperature: float = 1.0
    """0 is greedy, and so is what is below `MIN_TEMPERATURE`: logits divided by it would overflow."""
    top_k: int = 0
    """0 keeps every token, and so does -1, as vLLM has it."""
    top_p: float = 1.0
    min_p: float = 0.0
    epsilon_cutoff: float = 0.0
    """What the other filters leave is cut below this probability; 0 is off (Hewitt et al., 2022)."""
    eta_cutoff: float = 0.0
    """The same, with a bound that falls where much is possible: min(eta, sqrt(eta) e^-entropy)."""
    seed: int | None = None
    """Equal seeds give equal text up to rounding, whatever the batch, the draft and k; None draws one."""
    stop: str | Sequence[str] | None = ()
    """One or several; none of them is in the text."""
    stop_token_ids: Sequence[int] | None = ()
    """Further tokens that end the answer, as vLLM has it: they are among its tokens and not in its text."""
    ignore_eos: bool = False
    min_tokens: int = 0
    """Before there are so many no token comes that ends answers, and no stop string ends this one."""
    presence_penalty: float = 0.0
    """Taken from the logits of the tokens that the answer has already, as OpenAI defines it."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit for each time that the answer has it."""
    repetition_penalty: float = 1.0
    """What the logits of tokens that prompt or answer have already are divided by, multiplied where negative (CTRL,
    Keskar et al., 2019); before the other penalties, as vLLM has it. Beyond its bounds logits would overflow."""
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    """Token ids, each with what is added to its logit; kept as pairs."""
    logprobs: int | None = None
    """None: not wanted. n: the log-probs of the answer's tokens, and at each of them the n likeliest tokens."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens."""

    def __post_init__(self) -> None:
        if self.stop is None or isinstance(self.stop, str):
            object.__setattr__(self, "stop", () if self.stop is None else (self.stop,))
        object.__setattr__(self, "stop_token_ids", _token_ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", tuple(dict(self.logit_bias).items()))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if 0 < self.temperature < MIN_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)
        for field in (*_WHOLE_NUMBERS, *_OR_NONE):
            number = getattr(self, field)
            if not (_is_whole(number) or (number is None and field in _OR_NONE)):
                raise ParameterError(field, f"must be a whole number, not {number!r}")
        checks = {
            "max_tokens": (self.max_tokens >= 1, "at least 1"),
            "min_tokens": (0 <= self.min_tokens <= self.max_tokens, f"from 0 to max_tokens, {self.max_tokens}"),
            "temperature": (0 <= self.temperature <= MAX_TEMPERATURE, f"between 0 and {MAX_TEMPERATURE:g}"),
            "top_k": (0 <= self.top_k < 2**31, "0 (off) or more, below 2^31"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p < 1, "at least 0 and below 1"),
            "epsilon_cutoff": (0 <= self.epsilon_cutoff < 1, "at least 0 and below 1"),
            "eta_cutoff": (0 <= self.eta_cutoff < 1, "at least 0 and below 1"),
            "seed": (self.seed is None or -(2**63) <= self.seed < 2**63, "a 64-bit integer"),
            "stop": (all(self.stop or ()), "non-empty strings"),
            "presence_penalty": (-2 <= self.presence_penalty <= 2, "between -2 and 2"),
            "frequency_penalty": (-2 <= self.frequency_penalty <= 2, "between -2 and 2"),
            "repetition_penalty": (0.01 <= self.repetition_penalty <= 100, "between 0.01 and 100"),
            "logprobs": _is_number_of_logprobs(self.logprobs),
            "prompt_logprobs": _is_number_of_logprobs(self.prompt_logprobs),
        }
        for field, (ok, allowed) in checks.items():
            if not ok:
                raise ParameterError(field, f"must be {allowed}, not {getattr(self, field)!r}")
        if len(self.logit_bias) > MAX_BIASED:
            raise ParameterError(
                "logit_bias", f"must be of at most {MAX_BIASED} tokens, not {len(self.logit_bias)}"
            )
        for token_id, added in self.biases:
            if token_id < 0 or not -100 <= added <= 100:
                allowed = "token ids from 0, each with -100 to 100"
                raise ParameterError("logit_bias", f"must be of {allowed}, not {token_id}: {added:g}")

    def ends(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """Tokens that end the answer, of a model with these `eos_ids`."""
        return frozenset(self.stop_token_ids or ()) | (frozenset() if self.ignore_eos else eos_ids)

    @property
    def stop_strings(self) -> StopStrings:
        return self.stop if isinstance(self.stop, StopStrings) else StopStrings(self.stop or ())

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """Those of `logit_bias`, which is kept so."""
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias

    @property
    def has_filters(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0 or self.has_cutoffs

    @property
    def has_cutoffs(self) -> bool:
        return self.epsilon_cutoff > 0 or self.eta_cutoff > 0

    @property
    def altered_by(self) -> str | None:
        """The first parameter, if any, by which tokens are drawn from other logits than the target's own."""
        return next((name for name, nothing in _NEUTRAL.items() if getattr(self, name) != nothing), None)

    @property
    def is_counted(self) -> bool:
        """Whether it matters which tokens came before."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1


def _is_whole(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


def _token_ids(stops: object) -> tuple[int, ...]:
    """Each once. Raises `ParameterError`."""
    several = () if stops is None else tuple(stops) if isinstance(stops, list | tuple) else (None,)
    if not all(_is_whole(token_id) and token_id >= 0 for token_id in several):
        raise ParameterError("stop_token_ids", f"must be a list of token ids, from 0, not {stops!r}")
    if len(several) > MAX_STOP_TOKENS:
        raise ParameterError("stop_token_ids", f"must be at most {MAX_STOP_TOKENS} tokens, not {len(several)}")
    return tuple(dict.fromkeys(several))


def _is_number_of_logprobs(number: int | None) -> tuple[bool, str]:
    return number is None or 0 <= number <= MAX_LOGPROBS, f"between 0 and {MAX_LOGPROBS}"


@dataclass(frozen=True)
class GenerationRequest:
    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    domain: str = DEFAULT_DOMAIN
    record: bool = True
    client: str = ""
    """Tells clients apart, see `serving.http.client_identity`; empty if nobody knows."""
    scope: str = ""
    """Answers to requests of the same scope may be guessed from, and what was read of their prompts be copied.

    Their owner, then a colon and a salt if any."""

    @property
    def is_salted(self) -> bool:
        return ":" in self.scope


@dataclass(frozen=True)
class TokenLogprob:
    """What the target thought of a token: at temperature 1, before penalties and filters."""

    token_id: int
    logprob: float | None
    """Natural log; None for a prompt's first token, which nothing precedes."""
    top: tuple[tuple[int, float], ...]
    """(token id, log-prob), likeliest first, as many as asked for."""


@dataclass(frozen=True)
class AnswerCounts:
    """What an answer came to, or several to one request as their sums."""

    completion_tokens: int
    rounds: int
    drafted_tokens: int
    """By the draft model, those after a rejection included."""
    examined_tokens: int
    """Drafted tokens up to and including the first rejected of each round, or the last that the request took."""
    accepted_tokens: int
    """Those of them that are in the answer."""
    first_examined: int
    """Rounds of which a drafted token was examined."""
    first_accepted: int
    """Those of them whose first drafted token is in the answer: what a draft is worth, however far it drafts."""


@dataclass(frozen=True)
class RequestStats(AnswerCounts):
    prompt_tokens: int
    guessed_tokens: int
    """Proposed from text, without a model."""
    accepted_guesses: int
    draft_version: int
    queued_seconds: float
    time_to_first_token: float | None
    total_seconds: float


COUNTED = ("completion_tokens", "drafted_tokens", "accepted_tokens", "guessed_tokens", "accepted_guesses")
"""Of it, what of several answers to one request is told as their sum."""


@dataclass(frozen=True)
class OutputDelta:
    """New text of a request. The last delta carries a `finish_reason`."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stats: RequestStats
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each of `token_ids`; None if they were not asked for."""
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each token of the prompt: in the first delta of a request that asked for them, else None."""
    stop_reason: str | int | None = None
    """In the last delta the stop string that ended the answer, or the token, if it is not the tokenizer's own."""
