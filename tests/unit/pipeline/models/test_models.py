import json
import platform
import shutil
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from hotdraft.pipeline.models import names
from hotdraft.pipeline.models.draft_vocabulary import save_vocabulary
from hotdraft.pipeline.models.loading import (
    check_same_vocabulary,
    choose_device,
    choose_dtype,
    fingerprint,
    load_causal_lm,
    load_config_of,
    load_tokenizer,
    save_cut,
    weights_id,
)
from hotdraft.pipeline.models.names import Cut, HubAwayError, ModelError, local_folder, read_cut, resolve
from tests.models import save, tiny_llama, tiny_tokenizer

IDS = torch.arange(1, 9)[None]


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTDRAFT_CACHE", str(tmp_path / "cache"))


def test_names_are_folders_shipped_drafts_fetched_models_or_hub_ids(tmp_path, monkeypatch, tiny_target):
    assert resolve(tiny_target) == tiny_target
    monkeypatch.setattr(names, "SHIPPED_DRAFTS", tmp_path)
    (tmp_path / "shipped").mkdir()
    assert resolve("shipped") == str(tmp_path / "shipped")
    assert resolve("owner/name") == "owner/name"
    with pytest.raises(ModelError, match="hotdraft models fetch smollm2"):
        resolve("smollm2")
    (tmp_path / "cache" / "smollm2").mkdir(parents=True)
    assert resolve("smollm2") == str(tmp_path / "cache" / "smollm2")
    for missing in ("./nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c"):
        with pytest.raises(ModelError, match="no model folder at"):
            resolve(missing)


def test_a_folder_that_is_no_model_hides_no_known_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2", "smollm2-draft"):  # a run's folder, for one
        (tmp_path / name / "replay").mkdir(parents=True)
    assert names.is_to_be_fetched("smollm2")
    (tmp_path / "cache" / "smollm2").mkdir(parents=True)
    assert resolve("smollm2") == str(tmp_path / "cache" / "smollm2")
    assert resolve("smollm2-draft") == str(names.SHIPPED_DRAFTS / "smollm2-draft")
    (tmp_path / "smollm2" / "config.json").write_text("{}")
    assert resolve("smollm2") == "smollm2"
    assert resolve(".") == "."


def test_a_name_that_nothing_stands_for_says_what_was_tried():
    with pytest.raises(ModelError, match=r"'not a model!' is neither a local folder, nor one of smollm2"):
        load_causal_lm("not a model!")


@pytest.mark.parametrize("read", [local_folder, load_config_of])
@pytest.mark.parametrize(
    ("status", "code", "kind", "says"),
    [
        (404, "RepoNotFound", ModelError, r"'owner/name' is neither .* nor found on the hub$"),
        (403, "GatedRepo", ModelError, "cannot be had from the hub: 403"),
        (500, "", HubAwayError, "the hub does not answer: .*500"),
        (None, "", HubAwayError, "the hub does not answer: .*refused$"),
    ],
)
def test_a_wrong_name_is_told_from_a_hub_that_is_away_or_says_no(read, status, code, kind, says, monkeypatch):
    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        Thread(target=server.serve_forever, daemon=True).start()
        if status is None:
            server.shutdown()
            server.server_close()
        with pytest.raises(ModelError, match=says) as raised:
            read("owner/name")
        server.shutdown()
    assert raised.type is kind


def test_a_hub_behind_a_proxy_that_nothing_here_speaks_with_is_away(monkeypatch):
    def download(*_: object, **__: object) -> str:
        raise ImportError("Using SOCKS proxy, but the 'socksio' package is not installed.")

    monkeypatch.setattr(names, "snapshot_download", download)
    with pytest.raises(HubAwayError, match="the hub does not answer: Using SOCKS proxy"):
        local_folder("owner/name")


def test_broken_folders_are_errors_that_name_them(tmp_path, tiny_target):
    empty = tmp_path / "empty"
    empty.mkdir()
    for load in (load_causal_lm, load_tokenizer):
        with pytest.raises(ModelError, match=f"{empty}.* that transformers can load"):
            load(str(empty))
    with pytest.raises(ModelError, match="holds no "):
        fingerprint(str(empty))
    no_weights = tmp_path / "no_weights"
    shutil.copytree(tiny_target, no_weights)
    (no_weights / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="not a causal LM"):
        load_causal_lm(str(no_weights))
    spoiled = tmp_path / "spoiled"
    shutil.copytree(tiny_target, spoiled)
    (spoiled / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(ModelError, match="spoiled"):
        load_causal_lm(str(spoiled))
    (spoiled / "config.json").write_text("{")
    with pytest.raises(ModelError, match="spoiled"):
        load_causal_lm(str(spoiled))


def test_the_fingerprint_is_of_the_weights_alone(tmp_path, tiny_target, tiny_draft):
    assert fingerprint(tiny_target) == fingerprint(tiny_target) != fingerprint(tiny_draft)
    model = load_causal_lm(tiny_target)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    assert fingerprint(str(tmp_path / "sharded")) == fingerprint(tiny_target)
    save_vocabulary(tmp_path / "sharded", torch.arange(9))
    assert fingerprint(str(tmp_path / "sharded")) == fingerprint(tiny_target)
    with torch.no_grad():
        model.model.norm.weight[0] += 1
    model.save_pretrained(tmp_path / "changed")
    assert fingerprint(str(tmp_path / "changed")) != fingerprint(tiny_target)


def test_a_models_id_tells_it_from_others_and_from_itself_taught_further_and_is_none_where_it_is_not_here(
    tmp_path, tiny_target, tiny_draft
):
    known = weights_id(tiny_target)
    assert known == weights_id(tiny_target) != weights_id(tiny_draft)
    model = load_causal_lm(tiny_target)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert weights_id(str(tmp_path / "sharded")) == known
    with torch.no_grad():
        model.model.norm.weight += 0.01
    model.save_pretrained(tmp_path / "taught")
    assert len({known, weights_id(str(tmp_path / "taught")), weights_id(tiny_draft), ""}) == 4
    (tmp_path / "taught" / "model.safetensors").write_bytes(b"spoiled")
    assert [weights_id(name) for name in (None, "nowhere", str(tmp_path / "taught"))] == ["", "", ""]
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "model.safetensors").symlink_to(tmp_path / "nothing")
    assert weights_id(str(tmp_path / "gone")) == ""


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def base(request, tmp_path) -> Path:
    model = tiny_llama(layers=3, seed=5)
    config = type(model.config)(**{**model.config.to_dict(), "tie_word_embeddings": request.param})
    save(LlamaForCausalLM(config), tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def cut(base, tmp_path) -> tuple[Path, torch.Tensor]:
    """A trained two-layer cut in a folder, and what it computes."""
    draft = load_causal_lm(str(base))
    draft.model.layers = draft.model.layers[:2]
    draft.config.num_hidden_layers = 2
    draft.config.layer_types = None
    with torch.no_grad():
        for parameter in draft.model.layers.parameters():
            parameter.add_(0.01)
        draft.model.norm.weight.mul_(2)
        expected = draft(IDS, use_cache=False).logits
    save_cut(tmp_path / "cut", draft, Cut(str(base), fingerprint(str(base)), [0, 1]))
    return tmp_path / "cut", expected


def test_a_cut_draft_stores_what_differs_and_comes_back_whole(base, cut):
    folder, expected = cut
    stored = load_file(folder / "model.safetensors")
    assert not [name for name in stored if "embed_tokens" in name or "lm_head" in name]
    assert {"model.norm.weight", "model.layers.1.mlp.up_proj.weight"} <= set(stored)
    loaded = load_causal_lm(str(folder))
    assert not loaded.training
    assert len(loaded.model.layers) == 2
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, expected)
    assert load_tokenizer(str(folder)).get_vocab() == load_tokenizer(str(base)).get_vocab()
    assert load_causal_lm(str(folder), dtype=torch.bfloat16).dtype == torch.bfloat16


def test_a_cut_from_before_feed_forwards_were_cut_still_loads(cut):
    folder, expected = cut
    told = json.loads((folder / "cut.json").read_text())
    del told["feed_forward"]
    (folder / "cut.json").write_text(json.dumps(told))
    with torch.no_grad():
        torch.testing.assert_close(load_causal_lm(str(folder))(IDS).logits, expected)


def test_a_cut_of_other_base_weights_is_refused(cut):
    folder, _ = cut
    origin = read_cut(folder)
    assert origin is not None
    (folder / "cut.json").write_text(json.dumps(vars(replace(origin, base_fingerprint="0" * 64))))
    found = origin.base_fingerprint[:12]
    with pytest.raises(ModelError, match=f"weights 000000000000, and those in .* are {found}"):
        load_causal_lm(str(folder))


def test_a_model_with_missing_tensors_is_refused(cut, base):
    lost = "model.layers.1.mlp.up_proj.weight"
    for folder in (cut[0], base):
        tensors = load_file(folder / "model.safetensors")
        del tensors[lost]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError, match=f"1 of its tensors are missing, such as {lost}"):
            load_causal_lm(str(folder))


def test_devices_and_dtypes():
    assert choose_device("cpu") == torch.device("cpu")
    for other in ("gpu7", "mps", "meta", ""):
        with pytest.raises(ModelError, match=f"'{other}' is none of auto, cpu, cuda, cuda:N"):
            choose_device(other)
    if not torch.cuda.is_available():
        assert choose_device("auto") == torch.device("cpu")
        with pytest.raises(ModelError, match="sees no CUDA"):
            choose_device("cuda")
    cpu = torch.device("cpu")
    assert choose_dtype("float16", cpu) == torch.float16
    assert choose_dtype("auto", cpu) in (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    ("avx512", "amx", "chosen"),
    [(False, False, torch.float32), (True, False, torch.bfloat16), (False, True, torch.bfloat16)],
)
def test_bfloat16_only_where_the_cpu_computes_with_it(avx512, amx, chosen, monkeypatch):
    """oneDNN takes it wherever there is AVX-512, and is slow where it has to emulate it."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert choose_dtype("auto", torch.device("cpu")) == chosen


def test_vocabularies_must_be_one():
    tokenizer, other = tiny_tokenizer(), tiny_tokenizer()
    check_same_vocabulary("big", tokenizer, "small", other)
    other.add_tokens(["extra"])
    message = (
        r"'big' \(.*, 257 tokens\) and draft 'small' \(.*, 258 tokens\).* 1 entries differ, "
        r"such as 'extra': id none in the target, 257 in the draft"
    )
    with pytest.raises(ModelError, match=message):
        check_same_vocabulary("big", tokenizer, "small", other)
