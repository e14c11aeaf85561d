"""A server whose requests would run past a model's positions does not start, and says what would do."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, GPT2Config, GPT2LMHeadModel, PreTrainedConfig

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.models.names import ModelError
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.models.context_length import check_context_length
from hotdraft.training.drafts.hidden_state_init import new_hidden_state_draft
from tests.models import save, tiny_llama
from tests.unit.serving.clients import ask, greedy, request
from tests.unit.serving.decoders import GREEDY, PROMPTS, batch, greedy_reference, load, run, start
from tests.unit.serving.graphs.recorded import RecordedGraphs

POSITIONS = 70


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with a learned table of positions, one block of keys and a little more."""
    torch.manual_seed(5)
    config = GPT2Config(
        vocab_size=257, n_embd=32, n_layer=2, n_head=4, n_positions=POSITIONS, initializer_range=0.3,
        bos_token_id=None, eos_token_id=256,
    )  # fmt: skip
    return save(GPT2LMHeadModel(config).eval(), tmp_path_factory.mktemp("gpt2"))


def build(config: HotdraftConfig, target: str, draft: str | None, **engine: Any) -> Engine:
    changes = {"target": target, "draft": draft, "engine": config.engine.model_copy(update=engine)}
    return build_engine(config.model_copy(update=changes), None)


@pytest.mark.parametrize("k", [2, "auto"])
def test_a_request_may_use_all_positions_of_a_table(config: HotdraftConfig, table: str, k: Any) -> None:
    longest = POSITIONS - 4
    engine = build(config, table, table, k=k, max_k=4, max_guess=4, max_model_len=longest)
    engine.start()
    prompts = [(1, 2, 3), (7,) * (longest - 1), (9,) * 30]
    clients = [ask(engine, request(f"r{len(p)}", p, max_tokens=longest - len(p))) for p in prompts]
    for prompt, client in zip(prompts, clients, strict=True):
        assert client.wait().finish_reason == "length"
        assert client.ids == greedy(table, prompt, longest - len(prompt))
    engine.stop()


@pytest.mark.parametrize("role", ["target", "draft"])
def test_drafting_past_a_table_is_refused_at_the_start(
    config: HotdraftConfig, table: str, tiny_target: str, role: str
) -> None:
    pair = (table, tiny_target) if role == "target" else (tiny_target, table)
    with pytest.raises(
        ModelError, match=rf"the {role} .* has 70 positions.* 69 with up to 2 .*needs 71.* to 68 at"
    ):
        build(config, *pair, k=2, max_model_len=69)
    build(config, *pair, k=2, max_model_len=68)


def test_without_a_draft_the_whole_table_serves(config: HotdraftConfig, table: str) -> None:
    build(config, table, None, max_model_len=POSITIONS)
    with pytest.raises(ModelError, match=r"set engine\.max_model_len to 70 at most"):
        build(config, table, None, max_model_len=POSITIONS + 1)


LLAMA = AutoConfig.for_model("llama", max_position_embeddings=100)


def rotated(**rope: Any) -> PreTrainedConfig:
    config = AutoConfig.for_model("llama", max_position_embeddings=100)
    config.rope_parameters = {"rope_theta": 10000.0, **rope}
    return config


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (LLAMA, 100),
        (rotated(rope_type="linear", factor=3.0), 300),
        (rotated(rope_type="yarn", factor=4.0, original_max_position_embeddings=50), 200),
        (rotated(rope_type="yarn", factor=None, original_max_position_embeddings=25), 100),
        (rotated(rope_type="llama3", factor=8.0, original_max_position_embeddings=25), 100),
    ],
    ids=["plain", "linear", "yarn", "yarn without factor", "llama3"],
)
def test_a_rotating_target_serves_what_it_was_made_for(config: PreTrainedConfig, longest: int) -> None:
    check_context_length(("t", config), ("d", config), max_model_len=longest, proposed=4)
    with pytest.raises(ModelError, match=f"engine.max_model_len {longest + 1} needs .* to {longest} at most"):
        check_context_length(("t", config), None, max_model_len=longest + 1, proposed=0)


def test_a_rotating_draft_is_only_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    target = AutoConfig.for_model("llama", max_position_embeddings=500)
    with caplog.at_level(logging.WARNING):
        check_context_length(("t", target), ("d", LLAMA), max_model_len=200, proposed=4)
    assert "the draft 'd' has 100 positions" in caplog.text


def test_a_draft_with_a_window_needs_positions_for_that_alone(caplog: pytest.LogCaptureFixture) -> None:
    target = AutoConfig.for_model("llama", max_position_embeddings=5000)
    with caplog.at_level(logging.WARNING):
        check_context_length(("t", target), ("d", LLAMA), max_model_len=5000, proposed=4, draft_window=33)
    assert not caplog.text
    table = AutoConfig.for_model("gpt2", n_positions=100)
    with pytest.raises(
        ModelError, match=r"engine.draft_window 64 .* needs 196: set engine.draft_window to 32 at most"
    ):
        check_context_length(("t", target), ("d", table), max_model_len=5000, proposed=4, draft_window=64)


def test_a_model_without_a_limit_is_not_asked(tmp_path: Path) -> None:
    bloom = AutoConfig.for_model("bloom")
    check_context_length(("t", bloom), ("d", bloom), max_model_len=10**6, proposed=4)


def test_a_draft_that_reads_states_goes_with_its_target_and_has_no_window(
    config: HotdraftConfig, tiny_target: str, tmp_path: Path
) -> None:
    target = load_causal_lm(tiny_target)
    last = target.config.num_hidden_layers
    draft = save(new_hidden_state_draft(target, PredistillConfig(hidden_states=[last])), tmp_path / "draft")
    build(config, tiny_target, draft)
    with pytest.raises(ModelError, match=r"engine\.draft_window must be null, not 64"):
        build(config, tiny_target, draft, draft_window=64)
    smaller = save(tiny_llama(last - 1, seed=1), tmp_path / "smaller")
    with pytest.raises(ModelError, match=rf"from 1 to {last - 1} in ascending order, not \[{last}\]"):
        build(config, smaller, draft)
    narrow = save(tiny_llama(last, seed=1, heads=2), tmp_path / "narrow")
    with pytest.raises(ModelError, match=r"states of 32 numbers, .* have 16: it was made for another target"):
        build(config, narrow, draft)
    told = json.loads(Path(draft, "config.json").read_text())
    for spoiled in (None, [], "abc", 2, ["1"], [1.0], [0], [True], [2, 1]):
        Path(draft, "config.json").write_text(json.dumps({**told, "target_layers": spoiled}))
        with pytest.raises(ModelError, match=r"target_layers in the config\.json .* in ascending order, not "):
            build(config, tiny_target, draft)


def test_rows_that_fill_a_graph_read_no_position_that_a_table_lacks(table: str) -> None:
    """All that the table allows is asked for; slots are of whole blocks, and so longer."""
    decoder = build_decoder(
        load(table), load(table), num_slots=4, max_model_len=POSITIONS - 4, max_k=4, log_top_k=8,
        graphs=RecordedGraphs(),
    )  # fmt: skip
    start(decoder, PROMPTS[:3])
    assert run(decoder, [4, 2], batch([GREEDY] * 3), 3) == greedy_reference(table, PROMPTS[:3])
