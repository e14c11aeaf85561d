"""What a new draft is worth is told of the draft alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotdraft.answering import speed
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.traffic.generators.arithmetic import arithmetic
from hotdraft.training.predistill.finished_draft import PredistillResult


class Looked(Exception):  # noqa: N818 -- no error: it ends the measuring
    pass


def test_what_was_answered_a_turn_before_is_not_guessed_from(
    tiny_target: str, tiny_draft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prompt is answered again and again, and text would know the answer from then on."""
    config = HotdraftConfig(
        target=tiny_target,
        run_dir=tmp_path,
        replay={"held_out_fraction": 0.9},
        engine={"max_model_len": 512},
        predistill={"max_tokens": 8},
    )
    assert config.engine.guesses

    @contextmanager
    def started(engine: Any) -> Iterator[None]:
        assert engine.k_choice.guessing is None
        assert engine.decoder.proposer is not None
        raise Looked
        yield

    monkeypatch.setattr(speed, "started", started)
    outcome = PredistillResult({}, {}, 1.0, "run")
    with pytest.raises(Looked):
        speed.show_speed_up(config, Path(tiny_draft), outcome, list(arithmetic(8, seed=0)))


def test_without_a_prompt_that_fits_there_is_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "load_tokenizer", lambda name: None)
    monkeypatch.setattr(speed, "answer_requests", lambda config, tokenizer, prompts: {})
    assert speed.answer_speed(HotdraftConfig(target="t", draft="d"), arithmetic(3, seed=0)) is None
