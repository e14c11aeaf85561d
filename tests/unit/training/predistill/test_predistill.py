import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.draft_vocabulary import read_vocabulary
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.models.names import read_cut
from hotdraft.pipeline.replay.buffer import ReplayBuffer, is_held_out
from hotdraft.pipeline.store.connection import open_client
from hotdraft.training.drafts.draft_init import cut_layers
from hotdraft.training.predistill.make import EXPERIMENT, evaluate, predistill
from tests.models import tiny_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


def test_figures_by_domain(make_llama, serve):
    target = make_llama(1, layers=1, scale=0.3)
    samples = serve(target, 6, domain="a", top_k=64) + serve(target, 3, domain="b", top_k=64, seed=5)
    figures, by_position = evaluate(target, samples, 200)
    assert sum(values["positions"] for values in by_position.values()) == sum(
        len(sample.output_ids) for sample in samples
    )
    assert {domain: values["prompts"] for domain, values in figures.items()} == {"all": 9, "a": 6, "b": 3}
    for values in figures.values():
        assert values["greedy_agreement"] == pytest.approx(1.0, abs=0.02)  # float16 may tie two tokens
        assert values["overlap"] == pytest.approx(1.0, abs=2e-3)

    shuffled = np.random.default_rng(0).permutation(64)
    wrong = evaluate(target, serve(target, 6, domain="a", top_k=64, permutation=shuffled), 200)[0]
    assert wrong["all"]["greedy_agreement"] < 0.2
    assert wrong["all"]["overlap"] < 0.5


def test_a_cut_learns_and_is_stored_small(make_llama, serve, tmp_path, empty_mlflow_db):
    target = make_llama(1, layers=2, scale=0.3)
    with torch.no_grad():  # without attention it is a table of 64 next tokens: learnt in seconds
        for layer in target.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    target.save_pretrained(tmp_path / "target")
    tiny_tokenizer().save_pretrained(tmp_path / "target")
    (tmp_path / "run").mkdir()
    shutil.copy(empty_mlflow_db, tmp_path / "run")
    config = HotdraftConfig(
        target=str(tmp_path / "target"), dtype="float32", device="cpu", run_dir=tmp_path / "run",
        replay={"held_out_fraction": 0.2},
        predistill={
            "layers": [0], "max_steps": 60, "batch_tokens": 512, "learning_rate": 1e-2, "warmup_steps": 5,
            "validation_steps": 20,
        },
    )  # fmt: skip
    buffer = ReplayBuffer(config.replay_url)
    samples = serve(target, 80)
    before_it_was_made_anew = serve(make_llama(2, layers=2, scale=0.3), 80, prefix="former")
    buffer.append([*before_it_was_made_anew, *samples])
    kinds = {"answers of the target": [sample.request_id for sample in samples]}
    predistill(config, buffer, tmp_path / "draft", kinds=kinds, slim=True)

    held_out = [sample for sample in samples if is_held_out(sample.prompt_ids, 0.2)]
    untrained = evaluate(cut_layers(target, [0]), held_out, 512)[0]["all"]
    trained = evaluate(load_causal_lm(str(tmp_path / "draft")), held_out, 512)[0]["all"]
    assert trained["overlap"] > untrained["overlap"] + 0.1
    assert trained["greedy_agreement"] > untrained["greedy_agreement"] + 0.1
    card = (tmp_path / "draft" / "README.md").read_text()
    expected = f"| all | {len(held_out)} | {trained['greedy_agreement']:.3f} | {trained['overlap']:.3f} |"
    assert expected in card
    assert "80 prompts" in card
    cut = read_cut(tmp_path / "draft")
    assert cut is not None
    assert (cut.base, cut.layers) == (config.target, [0])
    stored = load_file(tmp_path / "draft" / "model.safetensors")
    assert not [name for name in stored if "embed_tokens" in name or "lm_head" in name]

    ranking = read_vocabulary(tmp_path / "draft", 64)
    assert ranking is not None
    said = Counter(int(token) for s in samples for token in [*s.output_ids, *s.target_top_ids[:, 0]])
    asked = {int(token) for s in samples for token in s.prompt_ids}
    assert ranking.tolist()[: len(said)] == sorted(said, key=lambda token: (-said[token], token))
    assert set(ranking.tolist()) == said.keys() | asked

    client = open_client(config)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["greedy_agreement/all"] == pytest.approx(trained["greedy_agreement"])
    assert torch.isfinite(torch.tensor(run.data.metrics["loss"]))
