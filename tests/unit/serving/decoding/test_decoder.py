"""Speculation changes nothing but the speed: token for token what transformers' greedy gives."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models.transformers_runner import TransformersRunner
from hotdraft.serving.proposers.draft_model import MAX_MISSED
from hotdraft.serving.proposers.plan import ProposalPlan
from tests.models import save, tiny_llama
from tests.unit.serving.decoders import (
    GREEDY,
    NEW_TOKENS,
    PROMPTS,
    batch,
    greedy_reference,
    make_decoder,
    run,
    start,
)


@pytest.mark.parametrize("ks", [[0], [1], [2], [4], [3, 0, 0, 2, 1, 0, 4]], ids=str)
@pytest.mark.parametrize("draft", ["other", "itself"])
def test_greedy_equals_transformers(tiny_target: str, tiny_draft: str, ks: list[int], draft: str) -> None:
    decoder = make_decoder(tiny_target, tiny_draft if draft == "other" else tiny_target)
    start(decoder, PROMPTS)
    outputs = run(decoder, ks, batch([GREEDY] * len(PROMPTS)), len(PROMPTS))
    assert outputs == greedy_reference(tiny_target, PROMPTS)


@pytest.mark.parametrize("draft", ["other", "itself"])
def test_another_architecture(tiny_neox_target: str, tiny_draft: str, draft: str) -> None:
    decoder = make_decoder(tiny_neox_target, tiny_draft if draft == "other" else tiny_neox_target)
    assert isinstance(decoder.target.runner, TransformersRunner)
    start(decoder, PROMPTS)
    outputs = run(decoder, [3, 0, 0, 2], batch([GREEDY] * len(PROMPTS)), len(PROMPTS))
    assert outputs == greedy_reference(tiny_neox_target, PROMPTS)


@pytest.mark.parametrize("width", [36, 48])
def test_a_draft_of_another_width_leaves_nothing_where_the_target_is_padded(tmp_path: Path, width: int) -> None:
    target, draft = save(widened(1, width), tmp_path / "target"), save(widened(2, 64), tmp_path / "draft")
    decoder = make_decoder(target, draft)
    start(decoder, PROMPTS)
    outputs = run(decoder, [3, 0, 0, 2], batch([GREEDY] * len(PROMPTS)), len(PROMPTS))
    assert outputs == greedy_reference(target, PROMPTS)


def test_what_is_no_number_is_gone_from_the_padding_with_its_request(tmp_path: Path) -> None:
    model = widened(1, 36)
    with torch.no_grad():
        model.get_input_embeddings().weight[9] = torch.nan
    target = save(model, tmp_path)
    decoder = make_decoder(target, None)
    start(decoder, [[9, 9]])
    assert not decoder.round(ProposalPlan.uniform(1, 0), batch([GREEDY]), log=False).target_is_sound.any()
    decoder.discard(0)
    start(decoder, PROMPTS[1:3])
    outputs = run(decoder, [0], batch([GREEDY] * 2), 2)
    assert outputs == greedy_reference(target, PROMPTS[1:3])


def widened(seed: int, hidden_size: int) -> PreTrainedModel:
    """Heads of 16 whatever the hidden size."""
    config = tiny_llama(2, seed).config
    config.hidden_size, config.head_dim = hidden_size, 16
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("k", [1, 3])
def test_a_draft_with_a_part_of_the_vocabulary(tiny_target: str, k: int) -> None:
    """The target as its own draft: it is accepted exactly until the target says a token that it does not know."""
    reference = greedy_reference(tiny_target, PROMPTS)
    said = sorted({token for output in reference for token in output})
    known = torch.tensor(said[: len(said) // 2])
    decoder = make_decoder(tiny_target, tiny_target, draft_vocabulary=known)
    start(decoder, PROMPTS)
    outputs: list[list[int]] = [[] for _ in PROMPTS]
    counts = set()
    while min(map(len, outputs)) < NEW_TOKENS - k:
        outcome = decoder.round(ProposalPlan.uniform(len(PROMPTS), k), batch([GREEDY] * len(PROMPTS)), log=False)
        assert np.isin(outcome.proposed_ids[:, :k], known).all()
        for row, output in enumerate(outputs):
            new = outcome.token_ids[row, : outcome.num_accepted[row] + 1].tolist()
            following = reference[row][len(output) : len(output) + k]
            if len(following) == k:
                unknown = [token not in known for token in following]
                assert outcome.num_accepted[row] == (unknown.index(True) if any(unknown) else k)
                counts.add(int(outcome.num_accepted[row]))
            output += new
    assert {0, k} <= counts
    assert [output[:NEW_TOKENS] for output in outputs] == [
        expected[: len(output)] for expected, output in zip(reference, outputs, strict=True)
    ]


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("target", ["tiny_target", "tiny_neox_target"])
def test_greedy_with_a_trimmed_draft_equals_transformers(
    request: pytest.FixtureRequest, tiny_draft: str, target: str, k: int
) -> None:
    folder = request.getfixturevalue(target)
    decoder = make_decoder(folder, tiny_draft, draft_vocabulary=torch.arange(0, 257, 5))
    start(decoder, PROMPTS)
    outputs = run(decoder, [k], batch([GREEDY] * len(PROMPTS)), len(PROMPTS))
    assert outputs == greedy_reference(folder, PROMPTS)


@pytest.mark.parametrize("model", ["tiny_target", "tiny_neox_target"])
@pytest.mark.parametrize("gap", [0, 1, 5, MAX_MISSED - 1, MAX_MISSED, MAX_MISSED + 1, MAX_MISSED + 9])
def test_a_draft_that_is_the_target_is_always_accepted(
    request: pytest.FixtureRequest, model: str, gap: int
) -> None:
    """A stale draft cache after rounds with k = 0 would show here."""
    path = request.getfixturevalue(model)
    decoder = make_decoder(path, path)
    start(decoder, PROMPTS)
    sampling = batch([GREEDY] * len(PROMPTS))
    for k in (3, *[0] * gap, 4, 2, 0, 1):
        outcome = decoder.round(ProposalPlan.uniform(len(PROMPTS), k), sampling, log=False)
        assert outcome.num_accepted.tolist() == [k] * len(PROMPTS)


@pytest.mark.parametrize("with_proposer", [True, False])
def test_after_a_gap_the_draft_proposes_what_it_would_have(
    tiny_target: str, tiny_draft: str, with_proposer: bool
) -> None:
    """Rows that missed different amounts draft what a decoder drafts that begins with their tokens."""
    decoder = make_decoder(tiny_target, tiny_draft)
    start(decoder, PROMPTS, with_proposer=with_proposer)
    late = [11, 12, 13]
    for count, rounds in ((3, MAX_MISSED - 10), (4, 15)):  # the last row misses less
        for _ in range(rounds):
            decoder.round(ProposalPlan.uniform(count, 0), batch([GREEDY] * count), log=False)
        if count == 3:
            decoder.load(3, late)
            assert decoder.prefill(3, 100, with_proposer=False)
    missed = [decoder.slots.lengths[row] - 2 - decoder.proposer.lengths[row] for row in range(4)]
    assert min(missed) < MAX_MISSED < max(missed)
    committed = [decoder.slots.tokens[row, : decoder.slots.lengths[row]].tolist() for row in range(4)]
    fresh = make_decoder(tiny_target, tiny_draft)
    start(fresh, committed)
    for k in (4, 2):
        found = decoder.round(ProposalPlan.uniform(4, k), batch([GREEDY] * 4), log=False)
        wanted = fresh.round(ProposalPlan.uniform(4, k), batch([GREEDY] * 4), log=False)
        assert found.proposed_ids.tolist() == wanted.proposed_ids.tolist()
        assert found.token_ids.tolist() == wanted.token_ids.tolist()


@pytest.mark.parametrize("kept", [0, 1, 5])
def test_rewinding_forgets(tiny_target: str, kept: int) -> None:
    decoder = make_decoder(tiny_target, tiny_target)
    start(decoder, PROMPTS)
    lengths = list(decoder.slots.lengths)
    reference = greedy_reference(tiny_target, PROMPTS)
    run(decoder, [3], batch([GREEDY] * 4), 4)
    for row, length in enumerate(lengths):
        decoder.rewind(row, length + kept)
    run(decoder, [4, 0, 2], batch([SamplingParams(temperature=2.0)] * 4), 4)  # something else altogether
    for row, length in enumerate(lengths):
        decoder.rewind(row, length + kept)
    for k in (3, 0, 4):
        assert (
            decoder.round(ProposalPlan.uniform(4, k), batch([GREEDY] * 4), log=False).num_accepted.tolist()
            == [k] * 4
        )
    for row, length in enumerate(lengths):
        assert decoder.slots.tokens[row, length : length + kept + 10].tolist() == reference[row][: kept + 10]


def test_a_probe_disturbs_nobody(tiny_target: str) -> None:
    decoder = make_decoder(tiny_target, tiny_target)
    start(decoder, PROMPTS)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        expected = load_causal_lm(tiny_target)(ids).logits[0, -5:]
    for k in (3, 0, 4):
        torch.testing.assert_close(decoder.proposer.logits(ids, 5), expected, atol=1e-5, rtol=1e-5)
        outcome = decoder.round(ProposalPlan.uniform(len(PROMPTS), k), batch([GREEDY] * len(PROMPTS)), log=False)
        assert outcome.num_accepted.tolist() == [k] * len(PROMPTS)


def test_a_round_that_could_leave_its_slot_is_refused(tiny_target: str) -> None:
    decoder = make_decoder(tiny_target, tiny_target)
    longest = decoder.slots.max_length - 4
    start(decoder, [[3] * longest])
    sampling = batch([GREEDY])
    assert decoder.round(ProposalPlan.uniform(1, 3), sampling, log=False).num_accepted.tolist() == [3]
    with pytest.raises(AssertionError, match="fit their slots"):
        decoder.round(ProposalPlan.uniform(1, 0), sampling, log=False)


def test_sampled_text_depends_on_the_seed_alone(tiny_target: str, tiny_draft: str) -> None:
    params = SamplingParams(temperature=0.8, top_k=20)
    together = make_decoder(tiny_target, tiny_draft)
    start(together, PROMPTS)
    outputs = run(together, [2], batch([params] * 4, [7, 8, 9, 10]), 4)

    alone = make_decoder(tiny_target, tiny_draft)
    start(alone, PROMPTS[2:3])
    assert run(alone, [2], batch([params], [9]), 1)[0] == outputs[2]

    start(alone, PROMPTS[2:3])
    assert run(alone, [2], batch([params], [11]), 1)[0] != outputs[2]


def test_move_takes_a_request_along(tiny_target: str, tiny_draft: str) -> None:
    decoder = make_decoder(tiny_target, tiny_draft)
    start(decoder, PROMPTS)
    sampling = batch([GREEDY] * 4)
    first = decoder.round(ProposalPlan.uniform(4, 2), sampling, log=False)
    decoder.move(3, 0)
    outputs = run(decoder, [2], batch([GREEDY]), 1)[0]
    committed = first.token_ids[3, : first.num_accepted[3] + 1].tolist()
    reference = greedy_reference(tiny_target, PROMPTS[3:])[0]
    assert (committed + outputs)[:NEW_TOKENS] == reference


def test_target_log_is_the_targets_distribution(tiny_target: str, tiny_draft: str) -> None:
    decoder = make_decoder(tiny_target, tiny_draft)
    start(decoder, PROMPTS[1:2])
    # a hot temperature: what is logged must not depend on it
    outcome = decoder.round(ProposalPlan.uniform(1, 2), batch([SamplingParams(temperature=5.0, top_k=4)]), log=True)
    context = torch.tensor([PROMPTS[1]])
    with torch.no_grad():
        logits = load_causal_lm(tiny_target)(context).logits[0, -1]
    expected = logits.log_softmax(-1).topk(8)
    log = outcome.target_log
    assert log is not None
    assert log.top_ids[0, 0].tolist() == expected.indices.tolist()
    torch.testing.assert_close(torch.from_numpy(log.top_logprobs[0, 0]), expected.values, atol=1e-5, rtol=0)
    assert log.tail_logprob[0, 0] == pytest.approx((1 - expected.values.exp().sum()).log().item(), abs=1e-3)
    assert log.token_logprobs is None
