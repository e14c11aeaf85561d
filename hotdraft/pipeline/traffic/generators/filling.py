"""Fill templates with words and numbers."""

import random
import re
from collections.abc import Callable

from hotdraft.pipeline.traffic.generators.words import WORDS

SLOT = re.compile(r"\{(\d+)-(\d+)\}|\{([a-z_]+)\d*\}")


def fill(template: str, rng: random.Random) -> str:
    """`template` with every `{3-40}` a number of that range and every `{city}` a word of that list.

    Each number is drawn anew. A named slot keeps its word (`{person}` twice is one person), and
    `{person}` and `{person2}` are different words of the same list.
    """
    chosen: dict[str, str] = {}

    def replacement(slot: re.Match[str]) -> str:
        low, high, words = slot.groups()
        if words is None:
            return str(rng.randint(int(low), int(high)))
        if slot[0] not in chosen:
            chosen[slot[0]] = rng.choice([word for word in WORDS[words] if word not in chosen.values()])
        return chosen[slot[0]]

    return SLOT.sub(replacement, template)


def distinct(count: int, seed: int | str, make: Callable[[random.Random], str]) -> list[str]:
    """`count` different texts drawn from `make`.

    Raises `ValueError` when `make` repeats itself too often to yield so many.
    """
    rng = random.Random(seed)
    texts: dict[str, None] = {}
    for _ in range(20 * count):
        if len(texts) == count:
            break
        texts[make(rng)] = None
    if len(texts) < count:
        raise ValueError(f"only {len(texts)} distinct prompts found where {count} were asked for")
    return list(texts)
