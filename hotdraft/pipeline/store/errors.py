"""What the adapter registry refuses."""


class RegistryError(ValueError):
    """A request the registry cannot meet: an unknown version, no champion to roll back, no files."""


class UnknownVersionError(RegistryError):
    """No such version."""


class ChampionMovedError(RegistryError):
    """Another version serves than the one that a decision was made about."""


class ChampionPinnedError(RegistryError):
    """A person chose the champion, so nothing but a person moves it."""
