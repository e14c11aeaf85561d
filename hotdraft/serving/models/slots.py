"""The rows that requests run in: their committed tokens on the device, and on the host to compare beginnings by."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hotdraft.pipeline.system.transfer import sent

KEY_BLOCK = 64
"""Attention reads whole blocks of keys, so that shapes recur."""


class Slots:
    """A slot's row holds its committed tokens x[0..n-1], of `capacity` at most."""

    def __init__(self, num_slots: int, capacity: int, device: torch.device, *, reuse_prefixes: bool = True) -> None:
        self.num_slots = num_slots
        self.max_length = -(-capacity // KEY_BLOCK) * KEY_BLOCK
        self.device = device
        self.tokens = torch.zeros(num_slots, self.max_length, dtype=torch.int64, device=device)
        self.lengths = [0] * num_slots
        """n of each row."""
        self.device_lengths = torch.zeros(num_slots, 1, dtype=torch.int64, device=device)
        """The same, [num_slots, 1]."""
        self._prompt_lengths = torch.zeros_like(self.device_lengths)
        self._host_tokens = np.zeros((num_slots, self.max_length), np.int32)
        self._scopes = [""] * num_slots
        self._reuse_prefixes = reuse_prefixes

    def load(self, row: int, prompt_ids: Sequence[int], scope: str = "") -> np.ndarray:
        """Begin a row anew. How many of the prompt's first tokens [num_slots] each slot held until now.

        0 of those of another scope: how soon a prompt is read would tell of theirs.
        """
        length = len(prompt_ids)
        prompt = np.asarray(prompt_ids, np.int32)
        differs = self._host_tokens[:, :length] != prompt
        same = np.where(differs.any(1), differs.argmax(1), length)
        same[[other != scope for other in self._scopes]] = 0
        self._scopes[row] = scope
        self._host_tokens[row, :length] = prompt
        self.tokens[row, :length] = sent(prompt, torch.int64, self.device)
        self._prompt_lengths[row] = length
        self.rewind(row, length)
        return same if self._reuse_prefixes else np.zeros_like(same)

    def rewind(self, row: int, length: int) -> None:
        """Forget a row's tokens from `length` on."""
        self.lengths[row] = length
        self.device_lengths[row] = length

    def move(self, source: int, destination: int) -> None:
        """Copy a row over another."""
        length = self.lengths[source]
        self.tokens[destination, :length] = self.tokens[source, :length]
        self._host_tokens[destination] = self._host_tokens[source]
        self._scopes[destination] = self._scopes[source]
        self._prompt_lengths[destination] = self._prompt_lengths[source]
        self.rewind(destination, length)

    def append(self, positions: Tensor, token_ids: Tensor, counts: Tensor) -> None:
        """Commit on the device the first `counts` [B, 1] of token_ids [B, T], whose positions [B, T] are the next.

        `append_on_host` must follow with the same.
        """
        self.tokens[: len(token_ids)].scatter_(1, positions, token_ids)
        self.device_lengths[: len(token_ids)] += counts

    def commit(self, token_ids: Sequence[Sequence[int]]) -> None:
        """Commit each of the first rows' next tokens, where the device is the host."""
        tokens, lengths = self._as_arrays
        for row, new in enumerate(token_ids):
            start = self.lengths[row]
            tokens[row, start : start + len(new)] = new
            lengths[row] = start + len(new)
        self.append_on_host(token_ids)

    @cached_property
    def _as_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """`tokens` and `device_lengths`, in the same memory."""
        return self.tokens.numpy(), self.device_lengths.numpy()

    def write_ahead(self, token_ids: Tensor) -> None:
        """Put token_ids [B, T] behind what the first rows hold, without committing them."""
        rows, count = token_ids.shape
        positions = self.device_lengths[:rows] + torch.arange(count, device=self.device)
        self.tokens[:rows].scatter_(1, positions, token_ids)

    def held(self, row: int) -> np.ndarray:
        """int32 [n]: a row's committed tokens, a view."""
        return self._host_tokens[row, : self.lengths[row]]

    def append_on_host(self, token_ids: Sequence[Sequence[int] | np.ndarray]) -> None:
        for row, new in enumerate(token_ids):
            start = self.lengths[row]
            self._host_tokens[row, start : start + len(new)] = new
            self.lengths[row] = start + len(new)

    def answers(self, rows: int, ahead: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [B, L] of the first rows, `ahead` of what is committed with them, and where their answers start
        and end [B, 1]: views."""
        token_ids = self.tokens[:rows, : max(self.lengths[:rows]) + ahead]
        return token_ids, self._prompt_lengths[:rows], self.device_lengths[:rows]

    def key_length(self, length: int) -> int:
        """`length` in whole blocks."""
        return min(-(-length // KEY_BLOCK) * KEY_BLOCK, self.max_length)
