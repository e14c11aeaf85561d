"""Text as it comes out of tokens: stop strings, held text, characters of several tokens."""

import numpy as np
import pytest

from serving.decoder import Round, TargetLog
from serving.request import GenerationRequest, OutputDelta, SamplingParams
from serving.sequence import Sequence
from tests.conftest import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
EOS = 256


def a_round(token_ids: list[int], accepted: int | None = None, log: bool = False) -> Round:
    """A round of one row that commits all of `token_ids`, or the first `accepted + 1`."""
    length = len(token_ids)
    drafted = [*token_ids[:-1], -1] if accepted is None else [9] * (length - 1) + [-1]
    top = np.tile(np.arange(4, dtype=np.int32), (1, length, 1))
    return Round(
        token_ids=np.array([token_ids]),
        num_accepted=np.array([length - 1 if accepted is None else accepted]),
        drafted_ids=np.array([drafted], np.int32),
        target_log=TargetLog(top, top.astype(np.float16), np.zeros((1, length), np.float32)) if log else None,
    )


class Spoken:
    def __init__(self, record: bool = True, **params: object) -> None:
        self.deltas: list[OutputDelta] = []
        request = GenerationRequest("r", (1, 2), SamplingParams(**{"max_tokens": 100, **params}), record=record)
        self.sequence = Sequence(
            request,
            self.deltas.append,
            seed=0,
            tokenizer=TOKENIZER.backend_tokenizer,
            eos_ids=frozenset({EOS}),
        )

    def say(self, text: str, *extra: int) -> str | None:
        """One round of the text's tokens; the reason if it ended."""
        reason = self.sequence.commit(a_round([*TOKENIZER(text).input_ids, *extra]), 0, 1)
        self.sequence.send(reason)
        return reason

    @property
    def texts(self) -> list[str]:
        return [delta.text for delta in self.deltas]


def test_text_is_sent_as_it_comes():
    spoken = Spoken()
    assert spoken.say("Hello") is None
    assert spoken.say(" you") is None
    assert spoken.say("!", EOS) == "stop"
    assert spoken.texts == ["Hello", " you", "!"]
    assert [delta.finish_reason for delta in spoken.deltas] == [None, None, "stop"]
    assert spoken.deltas[-1].token_ids[-1] == EOS


def test_a_stop_string_across_rounds_is_never_seen():
    spoken = Spoken(stop=("<end>", "###"))
    assert spoken.say("so <e") is None
    assert spoken.texts == ["so "]
    assert spoken.say("n") is None
    assert spoken.texts == ["so "], "still held"
    assert spoken.say("d> and more") == "stop"
    assert "".join(spoken.texts) == "so "
    assert spoken.sequence.output_ids == TOKENIZER("so <end>").input_ids


def test_text_held_in_vain_is_sent_after_all():
    spoken = Spoken(stop=("<end>",))
    spoken.say("a <e")
    spoken.say("gg <en")
    assert spoken.texts == ["a ", "<egg "]
    assert spoken.say("", EOS) == "stop"
    assert "".join(spoken.texts) == "a <egg <en"


def test_the_earliest_of_several_stop_strings_cuts():
    spoken = Spoken(stop=("cd", "bcd", "x"))
    assert spoken.say("abcdx") == "stop"
    assert spoken.texts == ["a"]


def test_characters_of_several_tokens_are_sent_whole():
    spoken = Spoken()
    tokens = TOKENIZER("né☃").input_ids
    assert len(tokens) == 6
    for token in tokens:
        spoken.sequence.send(spoken.sequence.commit(a_round([token]), 0, 1))
    assert spoken.texts == ["n", "é", "☃"]
    assert [len(delta.token_ids) for delta in spoken.deltas] == [1, 2, 3]


@pytest.mark.parametrize(("ignore_eos", "reason", "length"), [(False, "stop", 3), (True, "length", 5)])
def test_the_end_within_a_round_drops_what_follows(ignore_eos, reason, length):
    spoken = Spoken(max_tokens=5, ignore_eos=ignore_eos)
    assert spoken.say("ab", EOS, 70, 71, 72) == reason
    assert len(spoken.sequence.output_ids) == length
    assert len(spoken.deltas[-1].token_ids) == length
    assert spoken.deltas[-1].stats.completion_tokens == length


def test_an_end_from_outside_sends_what_was_held():
    spoken = Spoken(stop=("<end>",))
    spoken.say("a <en")
    spoken.sequence.send("cancelled")
    assert spoken.texts == ["a ", "<en"]
    assert spoken.deltas[-1].finish_reason == "cancelled"


def test_counts_and_the_recorded_sample_agree():
    spoken = Spoken(max_tokens=5)
    spoken.sequence.commit(a_round([70, 71, 72], accepted=1, log=True), 0, 3)
    spoken.sequence.commit(a_round([73, 74, 75, 76], log=True), 0, 4)
    stats = spoken.sequence.stats()
    assert (stats.rounds, stats.drafted_tokens, stats.accepted_tokens) == (2, 2 + 3, 1 + 3)
    sample = spoken.sequence.sample()
    assert sample is not None
    assert sample.output_ids.tolist() == [70, 71, 73, 74, 75]
    assert sample.drafted_ids.tolist() == [9, 9, 73, 74, 75]
    assert sample.accepted.tolist() == [True, False, True, True, True]
    assert sample.draft_versions.tolist() == [3, 3, 4, 4, 4]
    assert sample.target_top_ids.shape == (5, 4)


def test_who_asks_not_to_be_recorded_is_not():
    spoken = Spoken(record=False)
    spoken.sequence.commit(a_round([70, 71], log=True), 0, 3)
    assert spoken.sequence.sample() is None
