"""How forwards are made alike, so that few graphs do for all: what is added is computed and thrown away."""

from collections.abc import Callable
from dataclasses import dataclass

from hotdraft.serving.models.slots import KEY_BLOCK

MOST_TOKENS = 256
"""Of a row, beyond which a forward computes long enough to hide its launches."""
EXACT_TOKENS = 5
"""Up to which a row's tokens are left as many as they are."""
LEAST_KEYS = 256
"""To read as many takes next to no time beside reading a layer's weights."""


@dataclass(frozen=True)
class Padding:
    """Rows, the tokens of a prompt, and keys come in powers of two.

    Further rows read a token at `last`, which no request has; a row's first token is read as often as it takes.
    """

    num_slots: int
    max_length: int
    """Of a slot."""
    places: int
    """Positions of it that the model has."""

    @property
    def last(self) -> int:
        return self.places - 1

    def rows(self, count: int) -> int:
        return min(self.power(count), self.num_slots)

    def tokens(self, count: int) -> int:
        return count if count <= EXACT_TOKENS else self.power(count)

    def key_length(self, length: int) -> int:
        return min(max(self.power(-(-length // KEY_BLOCK)) * KEY_BLOCK, LEAST_KEYS), self.max_length)

    def every(self, number: Callable[[int], int], most: int) -> list[int]:
        """What `number`, one of the above, makes of all counts up to `most`."""
        return sorted({number(count) for count in range(1, most + 1)})

    @staticmethod
    def power(count: int) -> int:
        """Of two, the least that is no less."""
        return 1 << (count - 1).bit_length()
