"""Loading models by name.

A *cut* draft is a target with fewer layers. Its folder stores only the tensors that differ from the
target, beside a `cut.json` that names the base; everything else is read from the base when it loads.
"""

import hashlib
import json
import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils.logging import disable_progress_bar

import hotdraft.pipeline.models.hidden_state_draft  # noqa: F401  -- tells transformers of its architecture
from hotdraft.pipeline.models.draft_vocabulary import VOCABULARY_FILE
from hotdraft.pipeline.models.names import CUT_FILE, Cut, ModelError, installed_folder, local_folder, read_cut


def save_cut(folder: Path, model: PreTrainedModel, cut: Cut) -> None:
    """Write `model` as a cut draft: config, `cut.json`, and the tensors that the base does not have."""
    folder.mkdir(parents=True, exist_ok=True)
    shared = {id(parameter) for module in shared_modules(model) for parameter in module.parameters()}
    tensors = {
        name: parameter.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if id(parameter) not in shared
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)
    (folder / CUT_FILE).write_text(json.dumps(asdict(cut), indent=2) + "\n")


def shared_modules(model: PreTrainedModel) -> list[torch.nn.Module]:
    """What a cut draft has in common with its target: the embedding and the output head."""
    return [model.get_input_embeddings(), model.get_output_embeddings()]


def read_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of a model's folder, in the order of the names; a draft's ranking is none of them."""
    for name, file in _tensors(folder):
        yield name, file.get_tensor(name)


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Names, in order, each with the open file that has the tensor."""
    files = sorted(path for path in folder.glob("*.safetensors") if path.name != VOCABULARY_FILE)
    if not files:
        raise ModelError(f"{folder} holds no *.safetensors file")
    owner = {}
    try:
        for path in files:
            with safe_open(path, framework="pt") as file:
                owner.update(dict.fromkeys(file.keys(), path))
        for name in sorted(owner):
            with safe_open(owner[name], framework="pt") as file:
                yield name, file
    except SafetensorError as error:
        raise ModelError(f"{folder} holds a broken safetensors file: {error}") from error


def fingerprint(name: str) -> str:
    """sha256 over the names, types, shapes and bytes of a model's own tensors."""
    digest = hashlib.sha256()
    for key, tensor in read_tensors(local_folder(name)):
        digest.update(f"{key}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def weights_id(name: str | None) -> str:
    """What tells a model from others, also from itself taught further, by little of it; empty if it cannot be read.

    Of the names, types and shapes of its own tensors, and the first row of each: whatever teaches a model changes
    that of most of them. All of a large one would take minutes to read.
    """
    digest = hashlib.sha256()
    try:
        folder = None if name is None else installed_folder(name)
        if folder is None:
            return ""
        for key, file in _tensors(folder):
            part = file.get_slice(key)
            row = part[:1] if part.get_shape() else file.get_tensor(key)
            digest.update(f"{key}:{part.get_dtype()}:{part.get_shape()}".encode())
            digest.update(row.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    except (ModelError, OSError):  # whoever loads it says why; a trainer need not be able to
        return ""
    return digest.hexdigest()[:16]


def choose_device(device: str = "auto") -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda"):
        raise ModelError(f"device {device!r} is none of auto, cpu, cuda, cuda:N")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ModelError("device 'cuda' was asked for and torch sees no CUDA device")
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the hardware computes with it, else float32 on a CPU and float16 on a GPU."""
    if dtype != "auto":
        return getattr(torch, dtype)
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if _cpu_computes_bfloat16() else torch.float32


def _cpu_computes_bfloat16() -> bool:
    """Where oneDNN has to emulate it, more than one token at a time takes longer than in float32."""
    if platform.machine() in ("x86_64", "AMD64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    folder = local_folder(name)
    cut = read_cut(folder)
    if cut is not None:
        return load_tokenizer(cut.base)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, TypeError, AttributeError) as error:  # the latter of JSON of another shape
        raise ModelError(f"{name!r} has no tokenizer that transformers can load: {error}") from error
    if tokenizer.is_fast:  # whoever saved it may have trained on texts cut and padded to one length
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def load_config_of(name: str) -> PreTrainedConfig:
    """A model's own configuration, without its weights, which need not be there. Raises `ModelError`."""
    folder = local_folder(name, ["config.json"])
    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{name!r} has no configuration that transformers can load: {error}") from error


def load_causal_lm(
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    attn_implementation: str = "sdpa",
) -> PreTrainedModel:
    """A causal LM in eval mode. Raises `ModelError` if it is missing, broken, or no causal LM."""
    disable_progress_bar()  # it would end up in the logs of servers and trainers
    folder = local_folder(name)
    cut = read_cut(folder)
    state = _complete_state(folder, cut) if cut is not None else None
    loader: Any = AutoModelForCausalLM
    try:
        if state is None:
            model, loading = loader.from_pretrained(
                folder, dtype=dtype, attn_implementation=attn_implementation, output_loading_info=True
            )
            _check_complete(loading)
        else:
            config = AutoConfig.from_pretrained(folder)
            model = from_state(config, state, dtype=dtype, attn_implementation=attn_implementation)
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise ModelError(f"{name!r} is not a causal LM that transformers can load: {error}") from error
    except RuntimeError as error:
        if "mismatched" not in str(error):
            raise
        raise ModelError(f"the tensors of {name!r} are of other shapes than its config.json says") from error
    return model.to(device).eval()


def from_state(
    config: PreTrainedConfig,
    state: dict[str, torch.Tensor],
    *,
    dtype: torch.dtype,
    attn_implementation: str = "sdpa",
) -> PreTrainedModel:
    """The causal LM of `config` with the parameters `state`, on the CPU. Raises `ModelError` if some miss."""
    architecture: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model, loading = architecture.from_pretrained(
        None,
        config=config,
        state_dict=state,
        dtype=dtype,
        attn_implementation=attn_implementation,
        output_loading_info=True,
    )
    _check_complete(loading)
    return model


def _check_complete(loading: dict[str, Any]) -> None:
    """transformers gives random values to parameters that it does not find."""
    missing = sorted(loading["missing_keys"])
    if missing:
        raise ModelError(f"{len(missing)} of its tensors are missing, such as {missing[0]}")


def _complete_state(folder: Path, cut: Cut) -> dict[str, torch.Tensor]:
    base = local_folder(cut.base)
    found = fingerprint(cut.base)
    if found != cut.base_fingerprint:
        raise ModelError(
            f"the draft in {folder} was cut from {cut.base!r} with weights {cut.base_fingerprint[:12]}, "
            f"and those in {base} are {found[:12]}"
        )
    own = dict(read_tensors(folder))
    if cut.hidden_states is not None:  # of any family: what it shares is found by what it is, not by its name
        loader: Any = AutoModelForCausalLM
        modules: list[Any] = shared_modules(loader.from_pretrained(base, dtype="auto"))
        names = ("model.embed_tokens.weight", "lm_head.weight")
        return {name: module.weight.detach() for name, module in zip(names, modules, strict=True)} | own
    outside_layers = {
        key: tensor for key, tensor in read_tensors(base) if not any(part.isdigit() for part in key.split("."))
    }
    return outside_layers | own


def check_same_vocabulary(
    target: str, target_tokenizer: PreTrainedTokenizerBase, draft: str, draft_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise `ModelError` naming both models and a difference unless every token has the same id in both."""
    target_vocab, draft_vocab = target_tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    if target_vocab == draft_vocab:
        return
    differing = set(target_vocab.items()) ^ set(draft_vocab.items())
    token = min(differing, key=lambda entry: (entry[1], entry[0]))[0]
    raise ModelError(
        f"target {target!r} ({type(target_tokenizer).__name__}, {len(target_vocab)} tokens) and draft "
        f"{draft!r} ({type(draft_tokenizer).__name__}, {len(draft_vocab)} tokens) need one vocabulary, "
        f"and {len(differing)} entries differ, such as {token!r}: id {target_vocab.get(token, 'none')} "
        f"in the target, {draft_vocab.get(token, 'none')} in the draft: "
        "`hotdraft models transplant` makes a draft of it that has the target's"
    )
