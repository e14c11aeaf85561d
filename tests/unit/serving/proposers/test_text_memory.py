"""Scopes keep to themselves and to the bound."""

import numpy as np
import pytest

from hotdraft.serving.proposers.recent_text import BYTES_A_TOKEN, END, RecentText
from hotdraft.serving.proposers.text_memory import MAX_SCOPES, TextMemory

LIMIT = 1024 * BYTES_A_TOKEN


def held(memory: TextMemory, scope: str) -> list[int]:
    text = memory.of(scope)
    return [] if text is None else text.newest(10**9).tolist()


def test_no_scope_has_anothers_text() -> None:
    memory = TextMemory(LIMIT)
    memory.remember("a", [1, 2, 3])
    memory.remember("b", [4, 5])
    memory.remember("b:salt", [6])
    memory.remember("c", [])
    assert [held(memory, scope) for scope in ("a", "b", "b:salt")] == [[1, 2, 3, -1], [4, 5, -1], [6, -1]]
    assert memory.of("c") is None


def test_one_that_writes_much_drives_nobody_out() -> None:
    memory = TextMemory(LIMIT)
    memory.remember("small", [7] * 20)
    for _ in range(100):
        memory.remember("large", range(100))
    assert held(memory, "small") == [*[7] * 20, -1]


def test_the_bound_holds_for_any_number_of_scopes_and_the_newest_text_stays() -> None:
    memory = TextMemory(LIMIT)
    for number in range(MAX_SCOPES + 20):
        scope = f"owner{number}"
        memory.remember(scope, np.arange(2000))
        assert memory.num_bytes <= LIMIT
        assert held(memory, scope)[-3:] == [1998, 1999, -1]
    assert memory.of("owner0") is None
    assert memory.of("owner30") is not None


def test_a_scope_that_comes_has_another_keep_its_newest_answers_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests wait for it."""
    memory, append, appended = TextMemory(LIMIT), RecentText.append, []
    for number in range(200):
        memory.remember("one", [number] * 4)

    def noted(text: RecentText, token_ids: np.ndarray) -> None:
        appended.append(len(token_ids))
        append(text, token_ids)

    monkeypatch.setattr(RecentText, "append", noted)
    memory.remember("two", [7, 8])
    kept = [token for number in range(200) for token in [*[number] * 4, END]][-512:]
    assert held(memory, "one") == kept
    assert appended == [len(kept) - 1, 2]


@pytest.mark.parametrize("others", ["", "one", "another"])
def test_many_salts_shrink_their_owners_share_alone_and_leave_half_of_that(others: str) -> None:
    memory = TextMemory(LIMIT)
    for _ in range(40):
        memory.remember("one", range(50))
    before = len(held(memory, "one"))
    for number in range(3 * MAX_SCOPES):
        memory.remember(f"{others}:{number}", [1, 2, 3])
        assert memory.num_bytes <= LIMIT
    assert len(held(memory, "one")) > 0.45 * before


def test_who_takes_many_scopes_loses_its_own() -> None:
    memory = TextMemory(LIMIT)
    memory.remember("patient", [1, 2, 3])
    for number in range(3 * MAX_SCOPES):
        memory.remember(f"greedy:{number}", [number])
    assert held(memory, "patient") == [1, 2, 3, -1]
