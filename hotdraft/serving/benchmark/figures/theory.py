"""What theory lets an engine hope for, from figures measured in the same run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RoundFigures:
    """One batch size: costs in seconds, and what drafting gave."""

    plain_round_seconds: float
    draft_step_seconds: float
    drafted_per_round: float
    """k; the mean over a request's rounds where it varies."""
    mean_acceptance_length: float
    """Tokens a round."""

    @property
    def cost_ratio(self) -> float:
        """c: a draft step's time over a plain round's."""
        return self.draft_step_seconds / self.plain_round_seconds


def predicted_speed_up(figures: RoundFigures) -> float:
    """Tokens a second over plain decoding's, if verifying k+1 tokens costs no more than decoding one.

    Leviathan et al. (2023), theorem 3.8: (1 − α^(k+1)) / ((1 − α)(ck + 1)). The part with α is the
    mean acceptance length under their assumption of independent positions; the measured length
    stands in its place here.
    """
    return figures.mean_acceptance_length / (figures.cost_ratio * figures.drafted_per_round + 1)


def engine_efficiency(achieved_speed_up: float, figures: RoundFigures) -> float:
    """The share of the predicted speed-up that was achieved."""
    return achieved_speed_up / predicted_speed_up(figures)


def bandwidth_share(token_seconds: float, weight_bytes: int, bytes_per_second: float) -> float:
    """How near plain decoding comes to reading the weights at full speed, once for each step of the batch.

    `token_seconds` is the time between two tokens of one request, `weight_bytes` what a step reads.
    """
    return weight_bytes / token_seconds / bytes_per_second
