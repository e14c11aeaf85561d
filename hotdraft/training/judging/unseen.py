"""Requests that came while a job trained: no candidate has seen them, so it can be judged on them.

Test, then train (prequential: Dawid, 1984). Held-out prompts are few; these cost no time. A client that asks the
same again and again, be it with another nonce, tells nothing new: such requests are left out.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from hotdraft.pipeline.replay.sample import ReplaySample

SHINGLE = 3
"""Tokens that are compared together."""
ALIKE = 0.7
"""Jaccard similarity of shingles, of prompts and of answers, from which on a request was asked before."""


def unlike(samples: Sequence[ReplaySample], known: Iterable[tuple[np.ndarray, np.ndarray]]) -> list[ReplaySample]:
    """`samples` without those that ask what one of `known` (prompt [P], answer [N]), or a newer one of them, asks.

    The same prompt asks the same, whatever the answer. So does a prompt of nearly the same tokens with nearly the
    same answer: one without the other may be a long common instruction, or a question with few possible answers.
    """
    index = _Index(samples)
    left_out = np.zeros(len(samples), bool)
    for prompt_ids, output_ids in known:
        left_out |= index.alike(prompt_ids, output_ids)
    for place in reversed(range(len(samples))):
        if not left_out[place]:
            left_out[:place] |= index.alike(samples[place].prompt_ids, samples[place].output_ids)[:place]
    return [sample for sample, out in zip(samples, left_out, strict=True) if not out]


class _Index:
    """Which of some requests have which shingles."""

    def __init__(self, samples: Sequence[ReplaySample]) -> None:
        self._prompts = [sample.prompt_ids.tobytes() for sample in samples]
        self._asked = _Shingles([sample.prompt_ids for sample in samples])
        self._answered = _Shingles([sample.output_ids for sample in samples])

    def alike(self, prompt_ids: np.ndarray, output_ids: np.ndarray) -> np.ndarray:
        """bool [R]: which of the requests ask what this one asks."""
        prompt = np.ascontiguousarray(prompt_ids, np.int32).tobytes()
        nearly = self._answered.alike(output_ids)
        if nearly.any():  # few are, and prompts are long
            nearly &= self._asked.alike(prompt_ids)
        return np.array([prompt == other for other in self._prompts], bool) | nearly


class _Shingles:
    """Which of some texts have which shingles.

    Those that the same texts have are counted together, as of a long common instruction.
    """

    def __init__(self, texts: Sequence[np.ndarray]) -> None:
        sets = [_shingles(text) for text in texts]
        self._sizes = np.array([len(shingles) for shingles in sets], int)
        owners: dict[bytes, list[int]] = {}
        for owner, shingles in enumerate(sets):
            for shingle in shingles:
                owners.setdefault(shingle, []).append(owner)
        groups: dict[tuple[int, ...], int] = {}
        self._group = {shingle: groups.setdefault(tuple(of), len(groups)) for shingle, of in owners.items()}
        self._owners = [np.array(group) for group in groups]

    def alike(self, ids: np.ndarray) -> np.ndarray:
        """bool [R]: which of the texts are as `ids`, or nearly."""
        shingles = _shingles(ids)
        shared = np.zeros(len(self._sizes), int)
        for group, count in Counter(self._group[shingle] for shingle in shingles & self._group.keys()).items():
            shared[self._owners[group]] += count
        return shared >= ALIKE * (self._sizes + len(shingles) - shared)


def _shingles(ids: np.ndarray) -> set[bytes]:
    """All runs of `SHINGLE` tokens; of fewer tokens, the one run that they are."""
    tokens = np.ascontiguousarray(ids, np.int32).tobytes()
    width = SHINGLE * 4
    return {tokens[start : start + width] for start in range(0, max(4, len(tokens) - width + 4), 4)}
