"""Text as it comes out of tokens: stop strings, held text, characters of several tokens; and what is kept of it."""

import pytest

from hotdraft.pipeline.replay.sample import GUESSED, missed
from hotdraft.serving.engine.detokenizer import Detokenizer
from hotdraft.serving.engine.output import Output
from hotdraft.serving.messages.request import GenerationRequest, OutputDelta, SamplingParams, TokenLogprob
from tests.models import tiny_tokenizer
from tests.unit.serving.rounds import a_round

TOKENIZER = tiny_tokenizer()
EOS = 256
[OTHER_END] = TOKENIZER("~").input_ids


class Spoken:
    def __init__(self, record: bool = True, **params: object) -> None:
        self.deltas: list[OutputDelta] = []
        request = GenerationRequest("r", (1, 2), SamplingParams(**{"max_tokens": 100, **params}), record=record)
        detokenizer = Detokenizer(TOKENIZER.backend_tokenizer, {EOS, OTHER_END})
        self.output = Output(request, self.deltas.append, detokenizer, eos_id=EOS)

    def say(self, text: str, *extra: int) -> str | None:
        """One round of the text's tokens, the end if one of those is among them; the reason if it ended."""
        token_ids = [*TOKENIZER(text).input_ids, *extra]
        ends = "stop" if {EOS, OTHER_END} & set(extra) else None
        reason = self.output.take(a_round(token_ids), 0, len(token_ids), 1) or ends
        self.output.send(reason)
        return reason

    @property
    def texts(self) -> list[str]:
        return [delta.text for delta in self.deltas]


def test_text_is_sent_as_it_comes() -> None:
    spoken = Spoken()
    assert spoken.say("Hello") is None
    assert spoken.say(" you") is None
    assert spoken.say("!", EOS) == "stop"
    assert spoken.texts == ["Hello", " you", "!"]
    assert [delta.finish_reason for delta in spoken.deltas] == [None, None, "stop"]
    assert spoken.deltas[-1].token_ids[-1] == EOS


def test_a_stop_string_across_rounds_is_never_seen() -> None:
    spoken = Spoken(stop=("<end>", "###"))
    assert spoken.say("so <e") is None
    assert spoken.texts == ["so "]
    assert spoken.say("n") is None
    assert spoken.texts == ["so "], "still held"
    assert spoken.say("d> and more") == "stop"
    assert "".join(spoken.texts) == "so "
    assert spoken.output.output_ids == TOKENIZER("so <end>").input_ids


def test_a_stop_string_that_the_last_unfinished_character_completes_is_cut_off_too() -> None:
    spoken = Spoken(stop=("b\ufffd",))
    spoken.say("ab", *TOKENIZER("é").input_ids[:1])
    assert spoken.texts == ["a"], "the character may go on"
    spoken.say("", EOS)
    assert "".join(spoken.texts) == "a"


def test_text_held_in_vain_is_sent_after_all() -> None:
    spoken = Spoken(stop=("<end>",))
    spoken.say("a <e")
    spoken.say("gg <en")
    assert spoken.texts == ["a ", "<egg "]
    assert spoken.say("", EOS) == "stop"
    assert "".join(spoken.texts) == "a <egg <en"


def test_the_earliest_of_several_stop_strings_cuts() -> None:
    spoken = Spoken(stop=("cd", "bcd", "x"))
    assert spoken.say("abcdx") == "stop"
    assert spoken.texts == ["a"]


def test_the_last_delta_says_which_stop_string_ended_the_answer() -> None:
    spoken = Spoken(stop=("###", "<end", "nd>"))
    for piece in ("so <e", "n", "d> and ###"):
        spoken.say(piece)
    assert [delta.stop_reason for delta in spoken.deltas] == [None, "<end"]


@pytest.mark.parametrize(
    ("stop", "end", "reason"), [((), EOS, None), ((), OTHER_END, OTHER_END), (("o",), OTHER_END, "o")]
)
def test_the_last_delta_says_which_token_ended_it_but_for_the_end_of_sequence_token(
    stop: tuple[str, ...], end: int, reason: str | int | None
) -> None:
    spoken = Spoken(stop=stop)
    spoken.say("s")
    spoken.say("o", end)
    assert [delta.stop_reason for delta in spoken.deltas] == [None, reason]
    assert "".join(spoken.texts) == ("s" if stop else "so")


@pytest.mark.parametrize(
    ("stop", "text"), [("b", "abcde"), ("c", "abcde"), ("d", "abc"), ("cd", "ab"), ("bc", "abcde")]
)
def test_a_stop_string_ends_nothing_that_has_not_its_least_tokens(stop: str, text: str) -> None:
    spoken = Spoken(stop=stop, min_tokens=3)
    for piece in ("ab", "cd", "e"):
        if spoken.say(piece):
            break
    else:
        spoken.say("", EOS)
    assert "".join(spoken.texts) == text


def test_characters_of_several_tokens_are_sent_whole() -> None:
    spoken = Spoken()
    tokens = TOKENIZER("né☃").input_ids
    assert len(tokens) == 6
    for token in tokens:
        spoken.output.send(spoken.output.take(a_round([token]), 0, 1, 1))
    assert spoken.texts == ["n", "é", "☃"]
    assert [len(delta.token_ids) for delta in spoken.deltas] == [1, 2, 3]


def test_a_character_cut_off_by_the_end_is_told_as_transformers_does() -> None:
    spoken = Spoken(stop=("<end>",))
    tokens = TOKENIZER("né☃").input_ids[:-1]
    spoken.output.take(a_round(tokens), 0, len(tokens), 1)
    spoken.output.send(None)
    spoken.output.send("length")
    assert spoken.texts == ["né", "\ufffd"]
    assert "".join(spoken.texts) == TOKENIZER.decode(tokens, skip_special_tokens=True)


def test_no_more_is_taken_than_the_engine_says() -> None:
    spoken = Spoken()
    spoken.output.take(a_round(TOKENIZER("abcdef").input_ids), 0, 4, 1)
    spoken.output.send("length")
    assert spoken.texts == ["abcd"]
    assert len(spoken.deltas[-1].token_ids) == spoken.deltas[-1].stats.completion_tokens == 4


def test_an_end_from_outside_sends_what_was_held() -> None:
    spoken = Spoken(stop=("<end>",))
    spoken.say("a <en")
    spoken.output.send("cancelled")
    assert spoken.texts == ["a ", "<en"]
    assert spoken.deltas[-1].finish_reason == spoken.output.finish_reason == "cancelled"


def test_what_was_guessed_is_counted_apart() -> None:
    spoken = Spoken(max_tokens=9)
    spoken.output.take(a_round([70, 71, 72, 73], accepted=2, guessed=1, log=True), 0, 3, 3)
    spoken.output.take(a_round([73, 74, 75], accepted=0, guessed=2, log=True), 0, 1, 3)
    stats = spoken.output.stats()
    assert (stats.guessed_tokens, stats.accepted_guesses) == (1 + 2, 1)
    assert (stats.drafted_tokens, stats.examined_tokens, stats.accepted_tokens) == (2, 2, 1)
    assert (stats.first_examined, stats.first_accepted) == (1, 1), "of the other round nothing drafted was examined"
    sample = spoken.output.sample()
    assert sample is not None
    assert sample.drafted_ids.tolist() == [GUESSED, 9, 9, GUESSED]
    assert sample.accepted.tolist() == [False, True, False, False]
    assert sample.rejected.tolist() == [False, False, True, False]


def test_what_came_after_a_second_choice_is_not_the_drafts_to_answer_for() -> None:
    spoken = Spoken(max_tokens=9)
    spoken.output.take(a_round([70, 71, 72, 73], accepted=1, log=True, came=0), 0, 3, 3)
    stats = spoken.output.stats()
    assert (stats.completion_tokens, stats.drafted_tokens) == (3, 3)
    assert (stats.examined_tokens, stats.accepted_tokens) == (2, 1)
    sample = spoken.output.sample()
    assert sample is not None
    assert sample.drafted_ids.tolist() == [9, 9, GUESSED]
    assert missed(sample.drafted_ids, sample.accepted).tolist() == [False, True, False]


def test_counts_and_the_recorded_sample_agree() -> None:
    spoken = Spoken(max_tokens=5)
    spoken.output.take(a_round([70, 71, 72, 73], accepted=1, log=True), 0, 2, 3)
    spoken.output.take(a_round([73, 0, 75, 76], log=True), 0, 3, 4)
    stats = spoken.output.stats()
    assert (stats.rounds, stats.completion_tokens, stats.draft_version) == (2, 5, 4)
    assert (stats.drafted_tokens, stats.examined_tokens, stats.accepted_tokens) == (3 + 3, 2 + 3, 1 + 3)
    assert (stats.first_examined, stats.first_accepted) == (2, 2)
    sample = spoken.output.sample()
    assert sample is not None
    assert sample.output_ids.tolist() == [70, 71, 73, 0, 75]
    assert sample.drafted_ids.tolist() == [9, 9, 73, 0, 75]
    assert sample.accepted.tolist() == [True, False, True, True, True]
    assert sample.draft_versions.tolist() == [3, 3, 4, 4, 4]
    assert sample.target_top_ids.shape == (5, 4)


@pytest.mark.parametrize(
    ("length", "stop", "accepted", "examined"),
    [(1, (), 1, 1), (3, (), 3, 3), (4, (), 3, 3), (4, ("b",), 2, 2), (4, ("d",), 3, 3)],
)
def test_only_what_is_in_the_answer_counts_as_accepted(
    length: int, stop: tuple[str, ...], accepted: int, examined: int
) -> None:
    """Three drafted tokens and the bonus, all accepted, of which `max_tokens` or a stop string cuts some off."""
    spoken = Spoken(stop=stop)
    spoken.output.take(a_round(TOKENIZER("abcd").input_ids, log=True), 0, length, 1)
    stats, sample = spoken.output.stats(), spoken.output.sample()
    assert sample is not None
    assert (stats.drafted_tokens, stats.examined_tokens, stats.accepted_tokens) == (3, examined, accepted)
    assert stats.accepted_tokens == sample.accepted.sum() <= stats.completion_tokens


def test_a_rejected_token_that_was_cut_off_was_not_examined() -> None:
    spoken = Spoken()
    spoken.output.take(a_round([70, 71, 72, 73], accepted=2), 0, 2, 1)
    stats = spoken.output.stats()
    assert (stats.drafted_tokens, stats.examined_tokens, stats.accepted_tokens) == (3, 2, 2)


def test_a_stop_string_cuts_the_sample_too() -> None:
    spoken = Spoken(stop=("b",))
    tokens = TOKENIZER("abcd").input_ids
    assert spoken.output.take(a_round(tokens, log=True), 0, 4, 1) == "stop"
    sample = spoken.output.sample()
    assert sample is not None
    assert sample.output_ids.tolist() == tokens[:2]
    assert len(sample.target_top_ids) == len(sample.drafted_ids) == len(sample.accepted) == 2


def test_who_asks_not_to_be_recorded_is_not() -> None:
    spoken = Spoken(record=False)
    spoken.output.take(a_round([70, 71], log=True), 0, 2, 3)
    assert (spoken.output.sample(), spoken.output.left_out) == (None, "store")


@pytest.mark.parametrize(
    "params",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"repetition_penalty": 1.1},
        {"logit_bias": {5: 1}},
        {"min_tokens": 1},
    ],
    ids=str,
)
def test_a_penalised_answer_is_not_recorded(params: dict[str, object]) -> None:
    spoken = Spoken(**params)
    spoken.output.take(a_round([70, 71], log=True), 0, 2, 3)
    assert (spoken.output.sample(), spoken.output.left_out) == (None, next(iter(params)))


def test_logprobs_go_with_the_tokens_they_are_of() -> None:
    spoken = Spoken(stop=("d",), logprobs=2)
    tokens = TOKENIZER("abcde").input_ids
    for start, length in ((0, 1), (1, 4)):
        part = tokens[start : start + length]
        reason = spoken.output.take(a_round(part, log=True), 0, length, 1)
        spoken.output.send(reason)
    assert [delta.logprobs for delta in spoken.deltas] == [
        (TokenLogprob(tokens[0], -5.0, ((0, -1.0), (1, -2.0))),),
        tuple(TokenLogprob(tokens[1 + n], -5.0 - n, ((0, -1.0), (1, -2.0))) for n in range(3)),
    ]


def test_what_a_stop_strings_last_token_began_is_cut_off_with_it() -> None:
    spoken = Spoken(stop=("END",))
    assert spoken.say("hi EN") is None
    spoken.output._detokenizer.step = lambda token: "D"  # type: ignore[method-assign]
    spoken.output._detokenizer.finish = lambda: "�"  # type: ignore[method-assign]
    assert spoken.say("x") == "stop"
    assert "".join(spoken.texts) == "hi "
