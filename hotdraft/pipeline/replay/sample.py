"""What serving tells training: one sample per finished request, free of torch."""

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

NOT_DRAFTED = -1
"""`drafted_ids` entry of a position that no draft token was proposed for (a bonus or a plain token)."""
GUESSED = -2
"""`drafted_ids` entry of a position that a token was proposed for without the draft: it was not asked."""
MIN_LOG_MASS = -30.0
"""The tail of a distribution whose mass outside the kept tokens rounds to 0."""
BY_POSITION = (
    "output_ids", "target_top_ids", "target_top_logprobs", "target_tail_logprob", "drafted_ids", "accepted",
    "draft_versions",
)  # fmt: skip
"""What a sample has of each of its output positions."""


@dataclass(frozen=True, slots=True)
class ReplaySample:
    """One served request with the target's distribution at every output position.

    Position i of the arrays belongs to `output_ids[i]`: the token that was emitted there, given
    the prompt and `output_ids[:i]`. Positions after the first rejection of a round never appear:
    their context was rejected.

    Shapes: P prompt tokens, N output tokens, K kept target tokens.
    """

    request_id: str
    created_at: float
    """Unix time, seconds, at which the request finished."""
    domain: str
    temperature: float
    """Sampling temperature of the request; 0 is greedy."""
    prompt_ids: np.ndarray
    """int32 [P]."""
    output_ids: np.ndarray
    """int32 [N]."""
    target_top_ids: np.ndarray
    """int32 [N, K]: the target's K likeliest tokens, likeliest first."""
    target_top_logprobs: np.ndarray
    """float16 [N, K]: their log-probs (natural log) at temperature 1, before any sampling filter."""
    target_tail_logprob: np.ndarray
    """float32 [N]: log of the probability mass outside the K tokens."""
    drafted_ids: np.ndarray
    """int32 [N]: the token the draft proposed, `NOT_DRAFTED`, or `GUESSED`, which what follows a second choice
    is too."""
    accepted: np.ndarray
    """bool [N]: the draft's proposal was accepted."""
    draft_versions: np.ndarray
    """int32 [N]: the adapter version that drafted; 0 is the draft without an adapter."""
    top_p: float = 1.0
    """Filters of the request, as in its sampling parameters; these values filter nothing."""
    top_k: int = 0
    min_p: float = 0.0
    salted: bool = False
    """Whether the request had a `cache_salt`: nobody else's tokens are guessed from its answer."""
    target_id: str = ""
    """Which models answered and drafted, as `pipeline.models.loading.weights_id` tells them; empty if not known."""
    draft_id: str = ""

    @property
    def nbytes(self) -> int:
        """Of its arrays."""
        values = (getattr(self, field.name) for field in fields(self))
        return sum(value.nbytes for value in values if isinstance(value, np.ndarray))

    @property
    def rejected(self) -> np.ndarray:
        """bool [N]: a token was proposed and refused, the positions with most to learn from."""
        return (self.drafted_ids >= 0) & ~self.accepted

    def part(self, positions: slice, prompt_ids: np.ndarray | None = None) -> Self:
        """These of its output positions alone, behind other prompt tokens where such are given."""
        answered = {name: getattr(self, name)[positions] for name in BY_POSITION}
        return replace(self, prompt_ids=self.prompt_ids if prompt_ids is None else prompt_ids, **answered)

    @property
    def read_tokens(self) -> np.ndarray:
        """int64 [P + N - 1]: what the models read of it; nothing is predicted after its last token."""
        return np.concatenate([self.prompt_ids, self.output_ids])[:-1].astype(np.int64)


def may_be_same(weights: str, other_weights: str) -> bool:
    """Whether two ids of models, as in a sample, may be of one: what is not known is taken for the same."""
    return not weights or not other_weights or weights == other_weights


def tells_of_draft(examined: int, output_tokens: int) -> bool:
    """Whether an answer shows what its draft is worth: its tokens were not just what nothing else had guessed."""
    return examined > 0 and 4 * examined >= output_tokens


def missed(drafted_ids: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """bool [N]: output positions of a request whose token the draft did not give.

    Its token was rejected, or the round drafted nothing, as rounds do when drafting does not pay: a draft
    too bad to be asked has most to learn. The token after an accepted one that was not drafted is the
    bonus of a round whose drafts were all accepted, and no miss; nor is what was guessed from text, or follows
    that. Shapes as in `ReplaySample`.
    """
    after_accepted = np.concatenate([[False], (accepted | (drafted_ids == GUESSED))[:-1]])
    return np.where(drafted_ids == NOT_DRAFTED, ~after_accepted, ~accepted & (drafted_ids != GUESSED))
