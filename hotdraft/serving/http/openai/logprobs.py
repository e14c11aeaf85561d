"""Log-probabilities as OpenAI's two endpoints tell them."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hotdraft.serving.engine.detokenizer import UNFINISHED, Detokenizer
from hotdraft.serving.messages.prompt_encoder import decode
from hotdraft.serving.messages.request import TokenLogprob

Logprob = Annotated[float, AfterValidator(lambda logprob: max(logprob, -9999.0))]
"""JSON has no infinity: a token that cannot be has vLLM's floor."""
MAX_TOLD = 2**19
"""Log-probs that several answers to one request may ask for together; one answer may ask for all it can have."""
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}


class TopLogprob(BaseModel):
    token: str
    logprob: Logprob
    bytes: list[int] | None
    """None where nobody knows those of a part of a character."""


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


class TokenTexts:
    """How a tokenizer's tokens read within a text, special ones included."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        # some decoders write no space before a first word: "Paris" and " Paris" would read alike
        self._before = tokenizer("a", add_special_tokens=False).input_ids
        self._length = len(decode(tokenizer, self._before))
        self.of = lru_cache(2**16)(self._of)

    def bytes_of(self, token_id: int) -> list[int] | None:
        text = self.of(token_id)
        if UNFINISHED not in text:
            return list(text.encode())
        piece = self._tokenizer.backend_tokenizer.id_to_token(token_id) or ""
        if byte := _BYTE_PIECE.fullmatch(piece):
            return [int(byte[1], 16)]
        return [_BYTES[character] for character in piece] if piece and _BYTES.keys() >= set(piece) else None

    def _of(self, token_id: int) -> str:
        return decode(self._tokenizer, [*self._before, token_id])[self._length :]


class TextOffsets:
    """Where the tokens of a text begin in it, as they come; those of a character not told yet, where all that waits
    to be told does."""

    def __init__(self, detokenizer: Detokenizer, start: int = 0) -> None:
        self._detokenizer = detokenizer
        self._length = start

    def following(self, token_ids: Sequence[int]) -> list[int]:
        offsets = []
        for token_id in token_ids:
            offsets.append(self._length)
            self._length += len(self._detokenizer.step(token_id))
        return offsets


def prompt_offsets(tokenizer: PreTrainedTokenizerBase, text: str, add_special_tokens: bool) -> list[int]:
    """Where the tokens of a prompt begin in its `text`; those that were added to it, where the next one does."""
    offsets, length = list[int](), 0
    for start, end in tokenizer(
        text, add_special_tokens=add_special_tokens, return_offsets_mapping=True
    ).offset_mapping:
        offsets.append(start if end else length)
        length = max(length, end)
    return offsets


def chat_logprobs(tokens: Sequence[TokenLogprob], texts: TokenTexts) -> ChatLogprobs:
    """Of a message's tokens: an answer's, so that none is without a log-probability."""

    def told(token_id: int, logprob: float | None) -> dict[str, Any]:
        return {"token": texts.of(token_id), "logprob": logprob, "bytes": texts.bytes_of(token_id)}

    return ChatLogprobs(
        content=[
            ContentLogprob(
                **told(token.token_id, token.logprob),
                top_logprobs=[TopLogprob(**told(*likely)) for likely in token.top],
            )
            for token in tokens
        ]
    )


def text_logprobs(tokens: Sequence[TokenLogprob], texts: TokenTexts, offsets: list[int]) -> TextLogprobs:
    """Of a text's tokens, which begin at the characters `offsets` of it.

    As OpenAI does, each token's own log-probability stands among the likeliest even if it is not one of them. Of
    tokens that read alike, as parts of a character do, the likeliest stands there.
    """
    return TextLogprobs(
        tokens=[texts.of(token.token_id) for token in tokens],
        token_logprobs=[token.logprob for token in tokens],
        top_logprobs=[_likeliest(token, texts) for token in tokens],
        text_offset=offsets,
    )


def _likeliest(token: TokenLogprob, texts: TokenTexts) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    told = dict[str, float]()
    for other, logprob in (*token.top, (token.token_id, token.logprob)):
        text = texts.of(other)
        told[text] = max(told.get(text, logprob), logprob)
    return told
