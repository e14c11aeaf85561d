"""Older requests as the champion sees them, so that a draft that learns something new stays there what it was.

Few old requests are left to rehearse with. Taught the target's own distributions again and again, a draft learns
these few by heart and loses the rest of their kind; taught the champion's, it is held where it is
(Li and Hoiem, 2016, Learning without Forgetting; Buzzega et al., 2020, Dark Experience Replay).
"""

from collections.abc import Sequence

from transformers import PreTrainedModel

from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.scoring.target_scores import ScoredText, score


def rehearsed(champion: PreTrainedModel, samples: Sequence[ReplaySample], top_k: int) -> list[ReplaySample]:
    """`samples` in order, with the champion's distributions, of its `top_k` tokens, in place of the target's.

    Their temperature is 1: nothing is to be made sharper than the champion is.
    """
    texts = [ScoredText(s.request_id, s.domain, 1.0, s.prompt_ids, s.output_ids) for s in samples]
    together = sum(len(s.prompt_ids) + len(s.output_ids) for s in samples)
    return list(score(champion, texts, top_k, batch_tokens=together))
