"""Names of the domains that curves and counters are kept by. Clients choose them, so their number is bounded."""

from hotdraft.pipeline.store.connection import name_part

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
        if name not in self._known and len(self._known) == MAX_DOMAINS:
            return OTHER
        self._known.add(name)
        return name
