from dataclasses import replace

import numpy as np
import pytest
import torch

from hotdraft.training.batches.byte_cache import ByteCache
from hotdraft.training.batches.packing import pack
from hotdraft.training.scoring import rehearsal
from hotdraft.training.scoring.forward import OutputHead, hidden_states
from hotdraft.training.scoring.position_scores import position_scores
from hotdraft.training.scoring.rehearsal import Rehearsal, Teacher, rehearsed


def pull(model, samples):
    """Norm of the gradient by which `samples` would change `model`."""
    model.zero_grad()
    batch = pack(samples)
    scores = position_scores(
        hidden_states(model, batch), OutputHead(model), batch=batch, loss="forward_kl", measure=False,
        greedy_temperature=0.5,
    )  # fmt: skip
    scores.loss.backward()
    return torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm().item()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_champion_rehearses_what_it_says_itself(make_llama, serve, temperature):
    champion, target = make_llama(0, scale=0.3), make_llama(1, scale=0.3)
    samples = serve(target, 4, temperature=temperature)
    own = Rehearsal().taught(lambda _: Teacher(1, champion), samples, top_k=16)
    assert [sample.request_id for sample in own] == [sample.request_id for sample in samples]
    assert own[0].target_top_ids.shape == (len(samples[0].output_ids), 16)
    assert pull(champion, own) < 0.02 * pull(champion, samples)


def test_each_domain_has_a_teacher_of_its_own(make_llama, serve):
    teachers = [Teacher(version, make_llama(version, scale=0.3)) for version in (0, 1)]
    samples = [replace(s, domain=str(row % 2)) for row, s in enumerate(serve(make_llama(2, scale=0.3), 4))]
    together = Rehearsal().taught(lambda domain: teachers[int(domain)], samples, top_k=16)
    for sample, taught in zip(samples, together, strict=True):
        [alone] = rehearsed(teachers[int(sample.domain)].model, [sample], top_k=16)
        assert taught.request_id == sample.request_id
        assert np.array_equal(taught.target_top_ids, alone.target_top_ids)
        assert np.allclose(taught.target_top_logprobs, alone.target_top_logprobs, atol=1e-2)


def test_a_teacher_is_asked_once_and_a_new_champion_anew(make_llama, serve, monkeypatch):
    asked = []
    monkeypatch.setattr(rehearsal, "rehearsed", lambda *told: asked.append(len(told[1])) or rehearsed(*told))
    model, samples = make_llama(0), serve(make_llama(1), 3)
    learner = Rehearsal()
    for version, some in ((1, samples[:2]), (1, samples), (1, samples), (2, samples)):
        learner.taught(lambda _, version=version: Teacher(version, model), some, top_k=16)
    assert asked == [2, 1, 3]


def test_what_has_no_room_is_taught_all_the_same(make_llama, serve):
    learner, samples, teacher = Rehearsal(), serve(make_llama(1), 3), Teacher(0, make_llama(0))
    learner._kept = ByteCache(max_bytes=1)
    taught = learner.taught(lambda _: teacher, samples, top_k=16)
    assert [sample.request_id for sample in taught] == [sample.request_id for sample in samples]
