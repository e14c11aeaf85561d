"""What comes out token by token is what transformers makes of all of them."""

import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from tokenizers import Tokenizer, decoders, models
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast

from hotdraft.serving.engine.detokenizer import Detokenizer, special_ids
from tests.models import tiny_tokenizer

EOS = 256
A, SPACE_B = 256, 257


def byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2's: pieces of text with ▁ for a space, and bytes for what has no piece."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"a": A, "▁b": SPACE_B, "<unk>": 258}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def texts(tokenizer: PreTrainedTokenizerFast, token_ids: list[int], prompt_ids: Sequence[int] = ()) -> list[str]:
    """What each token brings, then what is left at the end."""
    backend = tokenizer.backend_tokenizer
    detokenizer = Detokenizer(backend, special_ids(backend), prompt_ids)
    return [*map(detokenizer.step, token_ids), detokenizer.finish()]


def whole(tokenizer: PreTrainedTokenizerFast, token_ids: list[int]) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=True)


@pytest.mark.parametrize("left_out", [1, 2, 3])
def test_a_character_that_is_not_finished(left_out: int) -> None:
    tokenizer = tiny_tokenizer()
    token_ids = tokenizer("né😀").input_ids[:-left_out]
    found = texts(tokenizer, token_ids)
    assert found[:3] == ["n", "", "é"]
    assert found[-1] == "\ufffd"
    assert "".join(found) == whole(tokenizer, token_ids)


def test_special_tokens_have_no_text() -> None:
    tokenizer = tiny_tokenizer()
    token_ids = tokenizer("ab").input_ids
    assert texts(tokenizer, [token_ids[0], EOS, token_ids[1], EOS]) == ["a", "", "b", "", ""]


def test_a_run_of_special_tokens_costs_no_more_with_its_length() -> None:
    detokenizer = Detokenizer(tiny_tokenizer().backend_tokenizer, {EOS})
    for token in (7, *[EOS] * 1000):
        detokenizer.step(token)
    assert len(detokenizer._ids) <= 1


def test_any_bytes() -> None:
    tokenizer = tiny_tokenizer()
    generator = random.Random(0)
    for _ in range(300):
        token_ids = [generator.randrange(257) for _ in range(12)]
        assert "".join(texts(tokenizer, token_ids)) == whole(tokenizer, token_ids)


def test_a_leading_space_is_that_of_the_whole_text() -> None:
    tokenizer = byte_fallback()
    token_ids = [SPACE_B, SPACE_B, A, *"日本".encode(), SPACE_B, 0xE6]
    found = texts(tokenizer, token_ids)
    assert found[:2] == ["b", " b"]
    assert "".join(found) == whole(tokenizer, token_ids) == "b ba日本 b\ufffd"


@pytest.mark.parametrize("tokenizer", [tiny_tokenizer(), byte_fallback()], ids=["bytes", "byte fallback"])
def test_an_answer_is_what_a_stream_of_its_prompt_goes_on_with(tokenizer: PreTrainedTokenizerFast) -> None:
    characters = [tokenizer(text).input_ids for text in ("n", " ", "é", "日", "😀")]
    pieces = [*characters, *([token] for token in range(256, len(tokenizer)))]
    generator = random.Random(0)
    for _ in range(300):
        prompt, answer = (
            [token for piece in generator.choices(pieces, k=generator.randrange(5)) for token in piece]
            for _ in range(2)
        )
        stream = DecodeStream(ids=prompt, skip_special_tokens=True)
        expected = [stream.step(tokenizer.backend_tokenizer, token) or "" for token in answer]
        assert texts(tokenizer, answer, prompt) == [*expected, ""]


def test_behind_a_prompt_that_ends_within_a_character_an_answer_begins_anew() -> None:
    tokenizer = byte_fallback()
    for prompt in ([A, 0xE6], [0x80] * 9):
        assert texts(tokenizer, [SPACE_B, A], prompt) == ["b", "a", ""]


def test_of_an_answer_that_never_begins_nothing_is_decoded() -> None:
    backend = Mock(wraps=tiny_tokenizer().backend_tokenizer)
    backend.decode.return_value = ""
    detokenizer = Detokenizer(backend, frozenset(), [7, 8])
    assert not backend.decode.called
    assert detokenizer.finish() == ""


def test_a_byte_that_breaks_the_character_before() -> None:
    """The whole text takes back what was told already; the stream of it goes on."""
    tokenizer = byte_fallback()
    token_ids = [*"日".encode(), 0xE6, A, SPACE_B]
    assert whole(tokenizer, token_ids) == "\ufffd\ufffd\ufffd\ufffda b"
    found = texts(tokenizer, token_ids)
    assert found[2] == "日"
    assert "".join(found).endswith("a b")


def test_bytes_that_are_no_character_are_told_as_they_come_and_not_kept() -> None:
    """A model that says nothing else, as a bias can have it, must not have all of them decoded again at each."""
    decoded = []

    class Counting:
        def __init__(self, tokenizer: Tokenizer) -> None:
            self._decode = tokenizer.decode

        def decode(self, ids: list[int], **options: bool) -> str:
            decoded.append(len(ids))
            return self._decode(ids, **options)

    tokenizer = byte_fallback()
    ids = [tokenizer.convert_tokens_to_ids("<0xF0>"), *[tokenizer.convert_tokens_to_ids("<0x80>")] * 400]
    counting: Any = Counting(tokenizer.backend_tokenizer)
    detokenizer = Detokenizer(counting, frozenset())
    pieces = [detokenizer.step(token) for token in ids]
    assert "".join(pieces) + detokenizer.finish() == whole(tokenizer, ids)
    assert max(decoded) < 32
    assert sum(map(bool, pieces)) > 300
