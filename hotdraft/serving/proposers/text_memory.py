"""Recent answers of many scopes within a bound: no scope sees another's, nor drives another's out."""

from collections import Counter, OrderedDict
from collections.abc import Sequence

import numpy as np

from hotdraft.serving.proposers.recent_text import BYTES_A_TOKEN, RecentText

MAX_SCOPES = 64
"""Beyond which the one that was not used for longest is forgotten, of the owner that has most, and not its own."""


class TextMemory:
    """Owners share the bound evenly, an owner's salts half of its share where it has text without: by powers of 2,
    so that few are moved when another comes."""

    def __init__(self, num_bytes: int) -> None:
        self._capacity = num_bytes // BYTES_A_TOKEN
        self._scopes: OrderedDict[str, RecentText] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        return sum(text.num_bytes for text in self._scopes.values())

    def of(self, scope: str) -> RecentText | None:
        """None for one that is not known."""
        return self._scopes.get(scope)

    def remember(self, scope: str, token_ids: Sequence[int] | np.ndarray) -> None:
        """Add an answer."""
        if not len(token_ids):
            return
        if scope not in self._scopes:
            self._admit(scope)
        self._scopes.move_to_end(scope)
        self._scopes[scope].append(token_ids)

    def _admit(self, scope: str) -> None:
        if len(self._scopes) == MAX_SCOPES:
            del self._scopes[self._least_used()]
        self._scopes[scope] = RecentText(0)  # it counts among those that share
        owners = Counter(map(_owner, self._scopes))
        for name, text in self._scopes.items():
            if text.capacity > (share := self._share(name, owners)):
                self._scopes[name] = _shrunk(text, share)
        self._scopes[scope] = RecentText(self._share(scope, owners))

    def _share(self, scope: str, owners: Counter[str]) -> int:
        """Tokens of a scope, by how many scopes each owner has."""
        owner = _owner(scope)
        share = self._capacity >> _halvings(len(owners))
        if owners[owner] == 1:
            return share
        if has_own := owner in self._scopes:
            share >>= 1
        return share if scope == owner else share >> _halvings(owners[owner] - has_own)

    def _least_used(self) -> str:
        owners = Counter(map(_owner, self._scopes))
        most = max(owners.values())
        of_most = [scope for scope in self._scopes if owners[_owner(scope)] == most]
        return next((scope for scope in of_most if scope != _owner(scope)), of_most[0])


def _owner(scope: str) -> str:
    return scope.partition(":")[0]


def _halvings(count: int) -> int:
    """Until each of so many has a part."""
    return (count - 1).bit_length()


def _shrunk(text: RecentText, capacity: int) -> RecentText:
    smaller = RecentText(capacity)
    smaller.append(text.newest(capacity)[:-1])
    return smaller
