"""What a server can take of a request."""

from dataclasses import dataclass

from hotdraft.serving.messages.request import GenerationRequest, ParameterError


@dataclass(frozen=True)
class Limits:
    max_model_len: int
    vocab_size: int
    max_logprobs: int
    """Likeliest tokens that a request may ask for at a position."""

    def check(self, request: GenerationRequest) -> None:
        """Raise ValueError for a prompt that is empty or leaves no room for `max_tokens`, for a token in it, to be
        biased or to stop at that the models do not know, for more log-probs than `max_logprobs`, and for a domain
        that is no text."""
        if not isinstance(request.domain, str):  # it would end the round, and all requests in it
            raise ValueError(f"the domain must be a text, not {request.domain!r}")
        prompt, wanted = len(request.prompt_ids), request.params.max_tokens
        if prompt == 0:
            raise ValueError("the prompt is empty: at least one token is needed")
        if prompt + wanted > self.max_model_len:
            raise ValueError(
                f"this model's maximum context length is {self.max_model_len} tokens, and the request has "
                f"{prompt} in the prompt and up to {wanted} to generate"
            )
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self.vocab_size:
            raise ValueError(f"the prompt has token ids outside 0..{self.vocab_size - 1}")
        named = {
            "logit_bias": (token_id for token_id, _ in request.params.biases),
            "stop_token_ids": request.params.stop_token_ids or (),
        }
        for field, token_ids in named.items():
            if any(token_id >= self.vocab_size for token_id in token_ids):
                raise ParameterError(field, f"has token ids outside 0..{self.vocab_size - 1}")
        for field in ("logprobs", "prompt_logprobs"):
            number = getattr(request.params, field)
            if number is not None and number > self.max_logprobs:
                raise ValueError(f"{field} must be at most {self.max_logprobs} on this server, not {number}")
