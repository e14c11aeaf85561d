"""What the step `lossless` finds wrong where all tokens are right."""

from collections.abc import Sequence
from typing import Any

import pytest

from hotdraft.gpu_check.checks import lossless
from hotdraft.gpu_check.plan import CheckPlan, Pair


@pytest.mark.parametrize(("beside_others", "wrong"), [(40, []), (41, []), (48, ["k = 4: what the draft proposes"])])
def test_a_draft_that_is_worth_less_beside_others_is_seen(
    monkeypatch: pytest.MonkeyPatch, beside_others: int, wrong: list[str]
) -> None:
    """As one whose first step reads the wrong rows: it costs no token."""

    def answer(decoder: object, prompts: Sequence[Any], k: int, tokens: int) -> tuple[list[list[int]], list[int]]:
        rounds = beside_others if k == 4 and len(prompts) > 1 else 40
        return [[1] * tokens for _ in prompts], [rounds] * len(prompts)

    monkeypatch.setattr(Pair, "read", lambda plan: Pair("small", "target", "draft", "here"))
    for name in ("make_decoder", "load_causal_lm"):
        monkeypatch.setattr(lossless, name, lambda *_, **__: None)
    monkeypatch.setattr(lossless, "answer", answer)
    monkeypatch.setattr(lossless, "_generated", lambda model, prompt: [1] * lossless.TOKENS)
    found = lossless.check(CheckPlan("work", "cpu", random=True, parameters=None))
    assert [says[: len("k = 4: what the draft proposes")] for says in found.wrong] == wrong
