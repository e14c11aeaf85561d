"""What proposes tokens for the target to verify."""

from dataclasses import dataclass

from torch import Tensor

from hotdraft.serving.sampling.distributions import Distributions


@dataclass(frozen=True)
class Proposal:
    """What the draft proposes for B rows."""

    token_ids: Tensor
    """int64 [B, k]."""
    distributions: Distributions | None
    """What they were drawn from; None if k = 0, or if every row is greedy or seeded."""
    sound: Tensor
    """bool [B, 1]: whether all of the draft's logits were."""
