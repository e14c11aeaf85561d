"""Speculation changes nothing but the speed: token for token what transformers' greedy gives."""

import pytest
import torch
from transformers import PreTrainedModel

from pipeline.models import load_causal_lm
from serving.attention import ATTENTION, register_attention
from serving.decoder import SpeculativeDecoder
from serving.logits import SamplingBatch
from serving.request import SamplingParams

PROMPTS = [[1], [5, 6, 7], list(range(10, 50)), [9, 9, 9, 9, 9, 9]]
NEW_TOKENS = 24
GREEDY = SamplingParams(temperature=0)


def load(path: str) -> PreTrainedModel:
    register_attention()
    return load_causal_lm(path, attn_implementation=ATTENTION)


def make_decoder(target: str, draft: str | None, max_k: int = 4) -> SpeculativeDecoder:
    return SpeculativeDecoder(
        load(target),
        load(draft) if draft else None,
        num_slots=len(PROMPTS),
        max_model_len=100,
        max_k=max_k,
        log_top_k=8,
    )


def start(decoder: SpeculativeDecoder, prompts: list[list[int]], chunk: int = 7) -> None:
    for row, prompt in enumerate(prompts):
        decoder.load(row, prompt)
        while not decoder.prefill(row, chunk, with_draft=decoder.draft is not None):
            pass


def batch(params: list[SamplingParams], seeds: list[int] | None = None) -> SamplingBatch:
    return SamplingBatch.of(params, seeds or list(range(len(params))), torch.device("cpu"))


def run(decoder: SpeculativeDecoder, ks: list[int], sampling: SamplingBatch, rows: int) -> list[list[int]]:
    """Rounds with the k of `ks` in turn until every row has `NEW_TOKENS`."""
    outputs: list[list[int]] = [[] for _ in range(rows)]
    turn = 0
    while min(map(len, outputs)) < NEW_TOKENS:
        outcome = decoder.round(rows, ks[turn % len(ks)], sampling, log=False)
        turn += 1
        for row in range(rows):
            outputs[row] += outcome.token_ids[row, : outcome.num_accepted[row] + 1].tolist()
    return [output[:NEW_TOKENS] for output in outputs]


def greedy_reference(target: str, prompts: list[list[int]]) -> list[list[int]]:
    model = load_causal_lm(target)
    outputs = []
    for prompt in prompts:
        ids = model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        outputs.append(ids[0, len(prompt) :].tolist())
    return outputs


@pytest.mark.parametrize("ks", [[0], [1], [2], [4], [3, 0, 0, 2, 1, 0, 4]], ids=str)
@pytest.mark.parametrize("draft", ["other", "itself"])
def test_greedy_equals_transformers(tiny_target: str, tiny_draft: str, ks: list[int], draft: str) -> None:
    decoder = make_decoder(tiny_target, tiny_draft if draft == "other" else tiny_target)
    start(decoder, PROMPTS)
    outputs = run(decoder, ks, batch([GREEDY] * len(PROMPTS)), len(PROMPTS))
    assert outputs == greedy_reference(tiny_target, PROMPTS)


def test_another_architecture(tiny_neox_target: str, tiny_draft: str) -> None:
    decoder = make_decoder(tiny_neox_target, tiny_draft)
    start(decoder, PROMPTS)
    outputs = run(decoder, [3], batch([GREEDY] * len(PROMPTS)), len(PROMPTS))
    assert outputs == greedy_reference(tiny_neox_target, PROMPTS)


def test_a_draft_that_is_the_target_is_always_accepted(tiny_target: str) -> None:
    decoder = make_decoder(tiny_target, tiny_target)
    start(decoder, PROMPTS)
    sampling = batch([GREEDY] * len(PROMPTS))
    for k in (3, 4, 0, 2, 0, 0, 3):  # a stale draft cache after k = 0 would show here
        outcome = decoder.round(len(PROMPTS), k, sampling, log=False)
        assert outcome.num_accepted.tolist() == [k] * len(PROMPTS)


def test_a_round_that_could_leave_its_slot_is_refused(tiny_target: str) -> None:
    decoder = make_decoder(tiny_target, tiny_target)
    longest = decoder.max_length - 4
    start(decoder, [[3] * longest])
    sampling = batch([GREEDY])
    assert decoder.round(1, 3, sampling, log=False).num_accepted.tolist() == [3]
    with pytest.raises(AssertionError, match="fit their slots"):
        decoder.round(1, 0, sampling, log=False)


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
    first = decoder.round(4, 2, sampling, log=False)
    decoder.move(3, 0)
    outputs = run(decoder, [2], batch([GREEDY]), 1)[0]
    committed = first.token_ids[3, : first.num_accepted[3] + 1].tolist()
    reference = greedy_reference(tiny_target, PROMPTS[3:])[0]
    assert (committed + outputs)[:NEW_TOKENS] == reference


def test_target_log_is_the_targets_distribution(tiny_target: str, tiny_draft: str) -> None:
    decoder = make_decoder(tiny_target, tiny_draft)
    start(decoder, PROMPTS[1:2])
    # a hot temperature: what is logged must not depend on it
    outcome = decoder.round(1, 2, batch([SamplingParams(temperature=5.0, top_k=4)]), log=True)
    context = torch.tensor([PROMPTS[1]])
    with torch.no_grad():
        logits = load_causal_lm(tiny_target)(context).logits[0, -1]
    expected = logits.log_softmax(-1).topk(8)
    log = outcome.target_log
    assert log is not None
    assert log.top_ids[0, 0].tolist() == expected.indices.tolist()
    torch.testing.assert_close(torch.from_numpy(log.top_logprobs[0, 0]).float(), expected.values, atol=5e-3, rtol=0)
    assert log.tail_logprob[0, 0] == pytest.approx((1 - expected.values.exp().sum()).log().item(), abs=1e-3)
