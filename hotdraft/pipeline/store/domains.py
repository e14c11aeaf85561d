"""Names of the domains that curves and counters are kept by. Clients choose them, so their number is bounded."""

import re

MAX_DOMAINS = 32  # each is a curve and two counters for ever
OTHER = "other"


class DomainNames:
    """The first `MAX_DOMAINS` domains keep their names, as far as MLflow takes them; all others are `other`.

    Whoever hears of the same domains in the same order gives them the same names.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def name(self, domain: str) -> str:
        name = name_part(domain)
        if name not in self._known and len(self._known) >= MAX_DOMAINS:  # several threads may ask
            return OTHER
        self._known.add(name)
        return name


def name_part(text: str) -> str:
    """Any text, a client's domain for one, as a part of a metric or tag name that MLflow accepts."""
    return re.sub(r"[^\w-]", "_", text, flags=re.ASCII)[:100] or "default"
