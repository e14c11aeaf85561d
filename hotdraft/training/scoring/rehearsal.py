"""Older requests as the draft was best at them, so that one that learns something new stays there what it was.

Few old requests are left to rehearse with. Taught the target's own distributions again and again, a draft learns
these few by heart and loses the rest of their kind; taught a draft's, it is held where that is
(Li and Hoiem, 2016, Learning without Forgetting; Buzzega et al., 2020, Dark Experience Replay).
"""

from collections.abc import Callable, Sequence

from transformers import PreTrainedModel

from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.scoring.target_scores import ScoredText, score


def rehearsed(
    teacher_of: Callable[[str], PreTrainedModel], samples: Sequence[ReplaySample], top_k: int
) -> list[ReplaySample]:
    """`samples` in order, with the distributions of their domains' teachers in place of the target's.

    Of these `top_k` tokens. Their temperature is 1: nothing is to be made sharper than the teacher is.
    """
    teachers = [teacher_of(sample.domain) for sample in samples]
    together = sum(len(sample.prompt_ids) + len(sample.output_ids) for sample in samples)
    taught: dict[str, ReplaySample] = {}
    for teacher in set(teachers):
        texts = [
            ScoredText(s.request_id, s.domain, 1.0, s.prompt_ids, s.output_ids)
            for s, of_it in zip(samples, teachers, strict=True)
            if of_it is teacher
        ]
        taught.update((sample.request_id, sample) for sample in score(teacher, texts, top_k, together))
    return [taught[sample.request_id] for sample in samples]
