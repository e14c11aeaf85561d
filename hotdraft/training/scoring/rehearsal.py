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
    taught = []
    for s in samples:
        text = ScoredText(s.request_id, s.domain, 1.0, s.prompt_ids, s.output_ids)
        together = len(s.prompt_ids) + len(s.output_ids)
        taught.extend(score(teacher_of(s.domain), [text], top_k, batch_tokens=together))
    return taught
