"""What is recorded of a request that vLLM serves, and where its answer ends.

The worker sees sampling parameters and tokens, not the client; what the front end knows travels in
`SamplingParams.extra_args`, which is what `vllm_xargs` of a request becomes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from hotdraft.serving.messages.request import DEFAULT_DOMAIN, UNRECORDED_DOMAIN

DOMAIN, STORE, CLIENT, SALTED = "hotdraft_domain", "hotdraft_store", "hotdraft_client", "hotdraft_salted"
"""Keys of `extra_args`: the traffic's tag, 0 where nothing is to be kept, a digest of who asks, 1 for a salt."""
_SWITCH = TypeAdapter(bool)

_NEUTRAL = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "logit_bias": None,
    "structured_outputs": None,
    "allowed_token_ids": None,
    "bad_words": None,
    "logits_processors": None,
    "thinking_token_budget": None,
}
"""Parameters with which an answer does not follow the recorded logits, and their values that do nothing."""


@dataclass(frozen=True)
class ServedRequest:
    """A request as a worker knows it when it begins."""

    request_id: str
    prompt_ids: Sequence[int]
    domain: str
    client: str
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seeded: bool
    max_tokens: int | None
    stop_ids: frozenset[int]
    left_out: str | None
    """Why its tokens are not recorded; None if they are."""
    salted: bool

    @classmethod
    def of(cls, new: Any) -> Self | None:
        """Of vLLM's `NewRequestData`; None for one without tokens to read or to generate, or that is back.

        The second runner hands a request that was preempted on as a new one, with what it said before to be read.
        One without `CLIENT`, as vLLM makes them of a beam search, is not kept: its client could not say so.
        """
        params, prompt_ids = new.sampling_params, new.prompt_token_ids
        if params is None or not prompt_ids:
            return None
        if len(getattr(new, "prefill_token_ids", None) or prompt_ids) != len(prompt_ids):
            return None
        extra = params.extra_args or {}
        is_kept = CLIENT in extra and not says_no(extra.get(STORE, 1))
        left_out = _left_out(params, new) if is_kept else "store"
        return cls(
            request_id=new.req_id,
            prompt_ids=prompt_ids,
            domain=str(extra.get(DOMAIN) or DEFAULT_DOMAIN) if is_kept else UNRECORDED_DOMAIN,
            client=str(extra.get(CLIENT, "")),
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=max(params.top_k, 0),
            min_p=params.min_p,
            seeded=params.seed is not None,
            max_tokens=params.max_tokens,
            # not `all_stop_token_ids`, which has ends of text that `ignore_eos` goes past
            stop_ids=frozenset({*(params.stop_token_ids or ()), params.eos_token_id} - {None}),
            left_out=left_out,
            salted=bool(extra.get(SALTED)),
        )

    def length(self, output_ids: Sequence[int]) -> int:
        """Of the answer in `output_ids`: a pass gives tokens beyond the end too."""
        ends = (place + 1 for place, token in enumerate(output_ids) if token in self.stop_ids)
        return min(next(ends, len(output_ids)), self.max_tokens or len(output_ids))


def says_no(store: object) -> bool:
    """Whether a client wrote, in a way that our own server takes as well, that nothing is to be kept."""
    try:
        return not _SWITCH.validate_python(store)
    except ValidationError:
        return False


def _left_out(params: Any, new: Any) -> str | None:
    for name, neutral in _NEUTRAL.items():
        value = getattr(params, name, neutral)
        if value != neutral and value:
            return name
    if getattr(new, "lora_request", None) is not None:
        return "lora"
    if getattr(new, "mm_features", None):
        return "multimodal"
    return "prompt_embeds" if getattr(new, "prompt_embeds", None) is not None else None
