"""What a pair weighs is what is served: a target in 8 bits weighs half."""

from pathlib import Path

import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.serving.benchmark.figures.report import Sizes


@pytest.mark.parametrize("target_weights", ["dtype", "int8"])
def test_weights_are_counted_in_the_form_that_they_are_served_in(
    target_weights: str, tiny_target: str, tmp_path: Path
) -> None:
    config = HotdraftConfig(target=tiny_target, run_dir=tmp_path, engine={"target_weights": target_weights})
    model = load_causal_lm(tiny_target)
    weights, looked_up = sum(p.numel() for p in model.parameters()), model.get_input_embeddings().weight.numel()
    read = weights if model.config.tie_word_embeddings else weights - looked_up
    sizes = Sizes.of(config, torch.bfloat16)
    if target_weights == "dtype":
        assert (sizes.weights, sizes.step) == (2 * weights, 2 * read)
    else:
        assert sizes.step == read * 17 // 16
        assert sizes.weights == sizes.step + 2 * looked_up
