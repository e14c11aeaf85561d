"""The examples in the library's docstrings, run as written on the real pair."""

import doctest
from pathlib import Path

import pytest

import hotdraft.distillation
import hotdraft.llm


@pytest.mark.slow
@pytest.mark.parametrize("module", [hotdraft.llm, hotdraft.distillation], ids=lambda module: module.__name__)
def test_the_examples_work(module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(module, optionflags=doctest.REPORT_ONLY_FIRST_FAILURE)
    assert results.attempted > 0
    assert results.failed == 0


def test_names_are_imported_when_they_are_used(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="no attribute 'llm_'"):
        _ = hotdraft.llm_
    assert {getattr(hotdraft, name).__name__ for name in hotdraft.__all__} == set(hotdraft.__all__)
