"""Log-probabilities as OpenAI's two endpoints tell them."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel

from hotdraft.serving.messages.request import TokenLogprob

Logprob = Annotated[float, AfterValidator(lambda logprob: max(logprob, -9999.0))]
"""JSON has no infinity: a token that cannot be has vLLM's floor."""
TokenText = Callable[[int], str]
"""The text of one token, special ones included."""


class TopLogprob(BaseModel):
    token: str
    logprob: Logprob
    bytes: list[int]


class ContentLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ContentLogprob]


class TextLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[Logprob | None]
    """None for the first token of an echoed prompt."""
    top_logprobs: list[dict[str, Logprob] | None]
    text_offset: list[int]


def chat_logprobs(tokens: Sequence[TokenLogprob], text_of: TokenText) -> ChatLogprobs:
    """Of a message's tokens: an answer's, so that none is without a log-probability."""

    def told(token_id: int, logprob: float | None) -> dict[str, Any]:
        text = text_of(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return ChatLogprobs(
        content=[
            ContentLogprob(
                **told(token.token_id, token.logprob),
                top_logprobs=[TopLogprob(**told(*likely)) for likely in token.top],
            )
            for token in tokens
        ]
    )


def text_logprobs(tokens: Sequence[TokenLogprob], text_of: TokenText, offset: int = 0) -> TextLogprobs:
    """Of a text's tokens, the first of which begins at character `offset` of the choice.

    As OpenAI does, each token's own log-probability stands among the likeliest even if it is not one of them. Of
    tokens that read alike, as parts of a character do, the likeliest stands there.
    """
    texts = [text_of(token.token_id) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return TextLogprobs(
        tokens=texts,
        token_logprobs=[token.logprob for token in tokens],
        top_logprobs=[_likeliest(token, text_of) for token in tokens],
        text_offset=offsets,
    )


def _likeliest(token: TokenLogprob, text_of: TokenText) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    told = dict[str, float]()
    for other, logprob in (*token.top, (token.token_id, token.logprob)):
        text = text_of(other)
        told[text] = max(told.get(text, logprob), logprob)
    return told
