"""The gaps a swap leaves in a stream are measured, however fast the stream and slow the swap."""

from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.benchmark import swap_gap
from hotdraft.serving.engine.engine import Engine


def test_a_stream_that_ends_before_its_swaps_is_asked_again(
    engine: Engine, config: HotdraftConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swap_gap, "TOKENS_PER_SWAP", 1)
    monkeypatch.setattr(swap_gap, "SWAPS", 2)
    engine.between_rounds(engine.k_choice.measure_costs).result()
    found = swap_gap.measure_swaps(engine, config, tmp_path)
    assert found["worst_gap_swapping_seconds"] >= found["worst_stall_seconds"] > 0
