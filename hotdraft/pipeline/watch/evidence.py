"""What requests say of an adapter version: how many of rounds' first drafted tokens came, by client and kind.

Only requests of one kind are comparable between versions: one domain, prompts and answers of about one length,
about one temperature, with a seed or without, which costs acceptance. What a request's answer is does not depend on
the draft, so that its length tells the kind as well: right after a swap only short answers are finished.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_TAG_LENGTH = 5000  # some databases hold no more of a tag


@dataclass(frozen=True)
class Tally:
    """Sums over requests of their rates of accepted among first drafted tokens."""

    requests: int = 0
    total: float = 0.0
    squares: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.requests + other.requests, self.total + other.total, self.squares + other.squares)

    @property
    def is_possible(self) -> bool:
        """Of rates between 0 and 1, as far as they were rounded."""
        return self.requests > 0 and 0 <= self.squares <= self.total + 1e-3 <= self.requests + 2e-3


Evidence = Mapping[tuple[str, str], Tally]
"""By client and kind."""


def kind_of(
    domain: str, prompt_tokens: int, completion_tokens: int, temperature: float, *, seeded: bool = False
) -> str:
    """Of a request: prompts apart by a factor of 4, answers by one of 16; temperature 0, to 0.5, to 1, above."""
    warmth = sum(temperature > bound for bound in (0.0, 0.5, 1.0))
    lengths = f"{prompt_tokens.bit_length() // 2:x}{completion_tokens.bit_length() // 4:x}"
    return f"{short_digest(domain)}{lengths}{warmth}{'s' if seeded and temperature > 0 else ''}"


def short_digest(text: str) -> str:
    """24 bits: enough to tell clients apart, too few to tell which of all addresses one has."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:6]


def summed(parts: Iterable[Evidence]) -> dict[tuple[str, str], Tally]:
    found: dict[tuple[str, str], Tally] = {}
    for part in parts:
        for key, tally in part.items():
            found[key] = found.get(key, Tally()) + tally
    return found


def to_tag(opened: float, evidence: Evidence) -> str:
    """JSON of at most `MAX_TAG_LENGTH` characters, for the trial that was opened then.

    Where not all fits, each client keeps the kinds that it asked for most: none crowds out another.
    """
    by_client: dict[str, list[tuple[str, Tally]]] = {}
    for (client, kind), tally in sorted(evidence.items(), key=lambda item: -item[1].requests):
        by_client.setdefault(client, []).append((kind, tally))
    ranked = sorted(
        (rank, -tally.requests, client, kind)
        for client, kinds in by_client.items()
        for rank, (kind, tally) in enumerate(kinds)
    )
    content: dict[str, dict[str, list[float]]] = {}
    left = MAX_TAG_LENGTH - 80
    for _, _, client, kind in ranked:
        tally = evidence[client, kind]
        entry = [tally.requests, round(tally.total, 4), round(tally.squares, 4)]
        left -= len(json.dumps({kind: entry})) + (0 if client in content else len(json.dumps(client)) + 4)
        if left < 0:
            break
        content.setdefault(client, {})[kind] = entry
    return json.dumps({"opened": opened, "evidence": content})


def from_tag(tag: str, opened: float) -> dict[tuple[str, str], Tally]:
    """Nothing if it is of another trial. Raises ValueError for what `to_tag` did not write."""
    try:
        content = json.loads(tag)
        if content["opened"] != opened:
            return {}
        found = {
            (client, kind): Tally(int(requests), float(total), float(squares))
            for client, kinds in content["evidence"].items()
            for kind, (requests, total, squares) in kinds.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"no evidence of a trial: {error!r}") from error
    if not all(tally.is_possible for tally in found.values()):
        raise ValueError("sums that no rates between 0 and 1 have")
    return found
