"""The loop's parts inside a real vLLM: skipped where none is installed, run by `make test-vllm`."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency

from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.replay.buffer import ReplayBuffer, sample_from_row
from tests.integration.adapters import write_adapter
from tests.integration.vllm.scenario import Scenario
from tests.models import disturbed, save, tiny_llama

pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")
pytestmark = pytest.mark.slow

PROMPTS = [[7 * row + place for place in range(3 + row)] for row in range(12)]
GREEDY = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Heads of a size that vLLM's attention takes."""
    target = tiny_llama(layers=2, seed=1, heads=2, head_size=32)
    folder = tmp_path_factory.mktemp("pair")
    return save(target, folder / "target"), save(disturbed(target), folder / "draft")


@pytest.fixture(scope="module")
def adapters(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("adapters")
    return [str(write_adapter(folder / f"{seed}", pair[1], seed=seed, scale=0.1)) for seed in range(2)]


def scenario(pair: tuple[str, str], run_dir: Path, acts: list[dict[str, Any]], **told: Any) -> Scenario:
    options = {"dtype": "float32", **told.pop("options", {})}
    return Scenario(*pair, str(run_dir), acts, options=options, **told)


def samples(run_dir: Path) -> list[Any]:
    return [sample_from_row(row) for row in ReplayBuffer(str(run_dir / "replay")).load().with_format("numpy")]


def test_answers_stay_those_of_the_target_over_swaps_and_are_recorded_with_its_distributions(
    pair: tuple[str, str], adapters: list[str], tmp_path: Path
) -> None:
    greedy = {"generate": GREEDY, "prompts": PROMPTS}
    [plain, _] = scenario(pair, tmp_path / "plain", [greedy], speculate=False).play()
    swaps = [{"swap": 1, "folder": adapters[0]}, {"swap": 2, "folder": adapters[1]}, {"swap": 0}]
    acts = [greedy, *(act for swap in swaps for act in (swap, greedy))]
    *came, ended = scenario(pair, tmp_path / "live", acts).play()
    assert [one["live"] for one in came[1::2]] == [1, 2, 0]
    assert [one["tokens"] for one in came[::2]] == [plain["tokens"]] * 4
    assert not any(ended["failures"].values())

    recorded = samples(tmp_path / "live")
    assert len(recorded) == 4 * len(PROMPTS)
    assert Counter(int(one.draft_versions[-1]) for one in recorded) == {0: 24, 1: 12, 2: 12}
    model = load_causal_lm(pair[0])
    for one in recorded[:6]:
        ids = torch.tensor(np.concatenate([one.prompt_ids, one.output_ids]))[None].long()
        with torch.inference_mode():
            expected = model(ids).logits[0, len(one.prompt_ids) - 1 : -1].log_softmax(-1)
        got = expected.gather(-1, torch.tensor(one.target_top_ids).long()).numpy()
        np.testing.assert_allclose(one.target_top_logprobs, got, atol=0.02)
        assert one.output_ids.tolist() == expected.argmax(-1).tolist()
    drafted = [one for one in recorded if (one.drafted_ids >= 0).any()]
    assert len(drafted) == len(recorded)
    accepted = sum(one.accepted.sum() for one in recorded)
    assert 0 < accepted < sum((one.drafted_ids >= 0).sum() for one in recorded)


def test_drawn_answers_have_the_targets_distribution_over_swaps(
    pair: tuple[str, str], adapters: list[str], tmp_path: Path
) -> None:
    drawn = {
        "generate": {"temperature": 0.8, "max_tokens": 4, "ignore_eos": True, "n": 100},
        "prompts": PROMPTS[:3],
    }
    acts = [drawn, {"swap": 1, "folder": adapters[0]}, drawn, {"swap": 2, "folder": adapters[1]}, drawn]
    *came, _ = scenario(pair, tmp_path / "live", acts).play()
    plain = scenario(pair, tmp_path / "plain", [drawn] * 3, speculate=False).play()[:-1]
    for prompt in range(3):
        for position in (1, 3):
            ours, others = (
                Counter(tokens[position] for one in some if "tokens" in one for tokens in one["tokens"][prompt])
                for some in (came, plain)
            )
            assert sum(ours.values()) == sum(others.values()) == 300
            common = [token for token, count in (ours + others).items() if count >= 10]
            table = [[counts[token] for token in common] for counts in (ours, others)]
            for row, counts in zip(table, (ours, others), strict=True):
                row.append(sum(counts.values()) - sum(row))
            table_ = np.array(table)[:, np.array(table).sum(0) > 0]
            assert chi2_contingency(table_).pvalue > 1e-4


def test_every_rank_of_a_tensor_parallel_engine_swaps_and_one_records(
    pair: tuple[str, str], adapters: list[str], tmp_path: Path
) -> None:
    greedy = {"generate": GREEDY, "prompts": PROMPTS}
    acts = [greedy, {"swap": 1, "folder": adapters[0]}, greedy]
    *came, ended = scenario(pair, tmp_path, acts, options={"tensor_parallel_size": 2}).play()
    assert came[1]["live"] == 1
    assert came[0]["tokens"] == came[2]["tokens"]
    assert {one["worker"]: (one["version"], one["records"]) for one in ended["workers"]} == {
        "engine0-stage0-rank0": (1, True),
        "engine0-stage0-rank1": (1, False),
    }
    assert len(samples(tmp_path)) == 2 * len(PROMPTS)


def test_what_cannot_be_swapped_in_changes_nothing(
    pair: tuple[str, str], adapters: list[str], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    greedy = {"generate": GREEDY, "prompts": PROMPTS[:4]}
    spoiled = write_adapter(tmp_path / "spoiled", pair[1], seed=5, scale=0.1)
    probe = load_file(spoiled / "probe.safetensors")
    save_file({**probe, "logits": probe["logits"].flip(-1).contiguous()}, spoiled / "probe.safetensors")
    foreign = write_adapter(tmp_path / "foreign", pair[0], seed=5)
    acts = [
        {"swap": 1, "folder": adapters[0]},
        greedy,
        {"swap": 2, "folder": str(spoiled)},
        {"swap": 3, "folder": str(foreign)},
        {"swap": 4, "folder": str(tmp_path / "nowhere")},
        greedy,
    ]
    *came, ended = scenario(pair, tmp_path / "live", acts).play()
    assert "SwapError" in came[2]["error"]
    assert "total variation" in came[2]["error"]
    assert "trained on another base" in came[3]["error"]
    assert "missing" in came[4]["error"]
    assert [one["live"] for one in (came[0], *came[2:5])] == [1, 1, 1, 1]
    assert came[1]["tokens"] == came[5]["tokens"]
    assert ended["workers"][0]["version"] == 1
    versions = [int(one.draft_versions[-1]) for one in samples(tmp_path / "live")]
    assert versions == [1] * 8
