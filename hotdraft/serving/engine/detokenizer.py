"""Text out of tokens as they come.

The library's own `DecodeStream` raises where a byte token breaks a character that was whole before, as
the decoders of Llama 2 and Mistral have it, and at the end it keeps an unfinished character to itself.
"""

from collections.abc import Sequence, Set
from itertools import islice

from tokenizers import Tokenizer

UNFINISHED = "\ufffd"
"""What a decoder makes of bytes that are no character, or not yet."""
LONGEST = 4
"""Bytes of a character, and so tokens that it may wait for."""


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that are no text, which takes milliseconds where thousands were added."""
    return frozenset(token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special)


class Detokenizer:
    """Each token is decoded behind those of the last text: some decoders treat a first token differently."""

    def __init__(self, tokenizer: Tokenizer, silent: Set[int], prompt_ids: Sequence[int] = ()) -> None:
        """`silent` tokens have no text. The first token is decoded behind `prompt_ids`, which are not told.

        They are first decoded when it comes: most of many answers may never begin.
        """
        self._tokenizer = tokenizer
        self._silent = silent
        self._ids: list[int] = []
        """Those of the last text, then those whose text is yet to come."""
        self._known = 0
        """How many of them are of the last text."""
        self._known_text = ""
        self._prompt_ids: Sequence[int] | None = prompt_ids

    def _begin_after(self, prompt_ids: Sequence[int]) -> None:
        """As few of its last tokens are kept as end with a whole character; none if there is no such end."""
        for token in islice((token for token in reversed(prompt_ids) if token not in self._silent), LONGEST):
            self._ids.insert(0, token)
            text = self._decode()
            if not text.endswith(UNFINISHED):
                self._known, self._known_text = len(self._ids), text
                return
        self._ids.clear()

    def step(self, token: int) -> str:
        """The text that a token completes; nothing while its character may go on, and for a silent token."""
        if self._prompt_ids is not None:
            self._begin_after(self._prompt_ids)
            self._prompt_ids = None
        if token in self._silent:  # kept, a long run of them would be decoded again at each
            return ""
        self._ids.append(token)
        text = self._decode()
        if len(text) <= len(self._known_text):
            return ""
        if not text.endswith(UNFINISHED):
            return self._take(text, len(self._ids))
        # what is no character and never will be is not kept, or all of it would be decoded again at each token
        for waiting in range(LONGEST, 2 * LONGEST):
            settled = len(self._ids) - waiting
            if settled > self._known and text.startswith(part := self._decode(settled)):
                return self._take(part, settled)
        return ""

    def _take(self, text: str, settled: int) -> str:
        """What is new in `text`, that of the first `settled` ids."""
        new = text[len(self._known_text) :]
        del self._ids[: self._known]
        self._known = settled - self._known
        self._known_text = self._decode(self._known)
        return new

    def finish(self) -> str:
        """What is left when no token follows: an unfinished character is U+FFFD."""
        return self._decode()[len(self._known_text) :]

    def _decode(self, first: int | None = None) -> str:
        return self._tokenizer.decode(self._ids[:first], skip_special_tokens=False)
