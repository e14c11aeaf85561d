"""Older requests as the draft was best at them, so that one that learns something new stays there what it was.

Few old requests are left to rehearse with. Taught the target's own distributions again and again, a draft learns
these few by heart and loses the rest of their kind; taught a draft's, it is held where that is
(Li and Hoiem, 2016, Learning without Forgetting; Buzzega et al., 2020, Dark Experience Replay).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.byte_cache import ByteCache
from hotdraft.training.batches.sound_rows import KEPT_BYTES
from hotdraft.training.scoring.target_scores import ScoredText, score


@dataclass(frozen=True)
class Teacher:
    version: int
    """Of its adapter; 0 is none."""
    model: PreTrainedModel


TeacherOf = Callable[[str], Teacher]
"""By domain."""


class Rehearsal:
    """What teachers say of older requests, each asked once: few are there to rehearse, and they come again."""

    def __init__(self) -> None:
        self._kept = ByteCache[tuple[int, str], ReplaySample](KEPT_BYTES)
        """By version and request."""

    def taught(self, teacher_of: TeacherOf, samples: Sequence[ReplaySample], top_k: int) -> list[ReplaySample]:
        """`samples` in order, with the distributions of their domains' teachers in place of the target's.

        Of these `top_k` tokens. Their temperature is 1: nothing is to be made sharper than the teacher is.
        """
        teachers = [teacher_of(sample.domain) for sample in samples]
        keys = [(teacher.version, sample.request_id) for teacher, sample in zip(teachers, samples, strict=True)]
        taught = {key: sample for key in keys if (sample := self._kept.get(key)) is not None}
        for version, model in {teacher.version: teacher.model for teacher in teachers}.items():
            missing = [
                sample for sample, key in zip(samples, keys, strict=True) if key[0] == version and key not in taught
            ]
            found = rehearsed(model, missing, top_k) if missing else []
            for sample in found:
                taught[version, sample.request_id] = sample
                self._kept.keep((version, sample.request_id), sample)
        return [taught[key] for key in keys]

    def forget(self) -> None:
        self._kept.clear()


def rehearsed(teacher: PreTrainedModel, samples: Sequence[ReplaySample], top_k: int) -> list[ReplaySample]:
    """`samples` in order, with the distributions of `teacher`."""
    together = sum(len(sample.prompt_ids) + len(sample.output_ids) for sample in samples)
    texts = [ScoredText(s.request_id, s.domain, 1.0, s.prompt_ids, s.output_ids) for s in samples]
    return list(score(teacher, texts, top_k, together))
