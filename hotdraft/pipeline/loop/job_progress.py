"""How far a running job's training is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class JobProgress:
    step: int
    steps: int
    """Of the whole training, unless its budget of time ends it before."""
    loss: float | None
    """Of the last step; None if it is not finite."""
    seconds_left: float | None
    """Of training, as an estimate; None while its speed is not known. 0 when it has ended: the gate is next."""

    @property
    def has_ended(self) -> bool:
        """Whether training has, so that the job is being judged."""
        return self.seconds_left == 0

    def __str__(self) -> str:
        loss = "" if self.loss is None else f", loss {self.loss:.3f}"
        left = f", about {self.seconds_left:.0f} s left" if self.seconds_left else ""
        return f"step {self.step} of {self.steps}{loss}{', being judged' if self.has_ended else left}"
