"""The adapter folder: how the trainer hands a LoRA to the server, and what is checked on the way.

The folder is PEFT's (`adapter_config.json`, `adapter_model.safetensors`) with a few files more:
`hotdraft_adapter.json` says what the adapter belongs to, `probe.safetensors` holds a few random ids
with the logits that the trained model gave for them, so that a server can show that its live draft
computes what the adapter says, and `draft_vocabulary.safetensors`, where the draft's head is smaller
than its vocabulary, ranks the tokens. Reading it needs no PEFT and never unpickles anything.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from hotdraft.pipeline.models.draft_vocabulary import VocabularyError, read_vocabulary

Quantization = Literal["none", "nf4"]

CARD_FILE = "hotdraft_adapter.json"
PROBE_FILE = "probe.safetensors"
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PROBE_TOKENS, PROBE_POSITIONS = 16, 8
"""Of a probe: decoding waits for it at a swap."""
PEFT_PREFIX = "base_model.model."
UNKNOWN_FORMS = ("use_rslora", "use_dora", "fan_in_fan_out", "alpha_pattern", "rank_pattern", "modules_to_save")
"""Of PEFT's LoRA: another scale, or more than two factors."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Types that an adapter's weights and logits may have."""


class AdapterError(ValueError):
    """An adapter that must not be used; the message names what is wrong with it."""


class OtherBaseError(AdapterError):
    """An adapter that was trained on another draft: nobody can serve it with this one."""


@dataclass(frozen=True)
class AdapterCard:
    """What an adapter belongs to and what it learned from."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True)  # of what `read_card` takes

    base_fingerprint: str
    """`pipeline.models.loading.fingerprint` of the draft it was trained on."""
    quantization: Quantization
    """How the frozen base was stored while the adapter was trained."""
    rank: Annotated[int, Field(ge=1, lt=2**31)]
    alpha: Annotated[int, Field(ge=1, lt=2**31)]
    target_modules: list[str]
    """Last parts of the names of the adapted linear layers."""
    parent_version: int
    """The adapter version it continued from; 0 is none."""
    requests: int
    tokens: int
    domains: dict[str, int]
    """Requests by domain."""
    created_at: float
    """Unix time, seconds."""


@dataclass(frozen=True)
class AdapterBase:
    """What an adapter must fit: the draft it was trained on."""

    fingerprint: str
    """`pipeline.models.loading.fingerprint` of the draft."""
    vocab_size: int
    shapes: Mapping[str, torch.Size]
    """Of the draft's 2-D parameters, by name."""

    @classmethod
    def of(cls, draft: PreTrainedModel, fingerprint: str) -> "AdapterBase":
        shapes = {name: weight.shape for name, weight in draft.named_parameters() if weight.ndim == 2}
        return cls(fingerprint, draft.config.get_text_config().vocab_size, shapes)


@dataclass(frozen=True)
class LoadedAdapter:
    """A checked adapter in float32. The weight of module m becomes `frozen + scaling * B @ A`."""

    card: AdapterCard
    scaling: float
    lora: dict[str, tuple[Tensor, Tensor]]
    """Module name → (A [rank, in], B [out, rank])."""
    probe_ids: Tensor
    """int64 [1, T]."""
    probe_logits: Tensor
    """[P, V]: logits after each of the last P probe ids."""
    vocabulary: Tensor | None
    """int64 [N]: token ids, most frequent first, in the traffic it learned from; None if not counted."""


def write_card(folder: Path, card: AdapterCard) -> None:
    (folder / CARD_FILE).write_text(json.dumps(asdict(card), indent=2) + "\n")


def read_card(folder: Path) -> AdapterCard:
    """The card in `folder`. Raises `AdapterError` if it is missing, broken or incomplete."""
    content = _read_json(folder / CARD_FILE)
    expected = {field.name for field in fields(AdapterCard)}
    if set(content) != expected:
        raise AdapterError(f"{CARD_FILE}: wrong keys {sorted(set(content) ^ expected)}")
    try:
        return TypeAdapter(AdapterCard).validate_json(
            json.dumps(content)
        )  # strict, it takes a class from JSON only
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False, include_context=False, include_input=False)
        place = ".".join(str(part) for part in first["loc"])
        raise AdapterError(f"{CARD_FILE}: {place}: {first['msg']}") from error


def write_probe(folder: Path, input_ids: Tensor, logits: Tensor) -> None:
    """Store `input_ids` [1, T] with the trained model's `logits` [P, V] for the last P of them."""
    probe = {"input_ids": input_ids.cpu().contiguous(), "logits": logits.cpu().contiguous()}
    save_file(probe, folder / PROBE_FILE)


def adapted_modules(weights: Iterable[str], target_modules: Iterable[str]) -> list[str]:
    """Modules whose `<module>.weight` is among the names `weights` and that `target_modules` selects."""
    targets = set(target_modules)
    modules = (name.removesuffix(".weight") for name in weights if name.endswith(".weight"))
    return sorted(module for module in modules if module.rsplit(".", 1)[-1] in targets)


def load_adapter(folder: Path, base: AdapterBase) -> LoadedAdapter:
    """Read the adapter in `folder` for `base` and check all of it before returning.

    PEFT's own loading fills missing keys with zeros; here a missing file, another base, a rank that the
    files do not agree on, a missing or unexpected key, a wrong type or shape, a value that is not finite,
    and a probe or a vocabulary that does not fit the base are an `AdapterError`.
    """
    card = read_card(folder)
    if card.base_fingerprint != base.fingerprint:
        raise OtherBaseError(
            f"adapter was trained on another base: {card.base_fingerprint[:12]}, "
            f"this draft is {base.fingerprint[:12]}"
        )
    peft_config = _read_json(folder / CONFIG_FILE)
    for key, value in (("r", card.rank), ("lora_alpha", card.alpha)):
        if peft_config.get(key) != value:
            raise AdapterError(f"{CONFIG_FILE}: {key} is {peft_config.get(key)}, the card says {value}")
    if unknown := [key for key in UNKNOWN_FORMS if peft_config.get(key)]:
        raise AdapterError(f"{CONFIG_FILE}: {unknown[0]} is set, of which nothing is known here")
    probe_ids, probe_logits = _read_probe(folder / PROBE_FILE, base.vocab_size)
    try:
        vocabulary = read_vocabulary(folder, base.vocab_size)
    except VocabularyError as error:
        raise AdapterError(str(error)) from error
    return LoadedAdapter(
        card=card,
        scaling=card.alpha / card.rank,
        lora=_read_lora(folder / WEIGHTS_FILE, base.shapes, card),
        probe_ids=probe_ids,
        probe_logits=probe_logits,
        vocabulary=vocabulary,
    )


def frozen_weight(weight: Tensor, quantization: Quantization) -> Tensor:
    """`weight` as the trainer's frozen base held it: itself, or through NF4 with double quantisation.

    NF4 is the 4-bit data type of QLoRA (Dettmers et al., 2023), in blocks of 64 weights.
    """
    if quantization == "none":
        return weight
    from bitsandbytes import functional as bnb

    packed, state = bnb.quantize_4bit(
        weight.detach().contiguous(), blocksize=64, compress_statistics=True, quant_type="nf4"
    )
    return bnb.dequantize_4bit(packed, state).to(weight.dtype)


def merged_weights(base_weights: Mapping[str, Tensor], adapter: LoadedAdapter) -> Iterator[tuple[str, Tensor]]:
    """Parameter name and the weight with the adapter in it, for one adapted module after the other.

    `base_weights` maps parameter names (`<module>.weight`) to the draft's original weights, as
    `state_dict()` does. Summed in float32, returned in each weight's dtype and on its device. Raises
    `AdapterError` where a sum is too large for it.
    """
    for module, lora in adapter.lora.items():
        weight = base_weights[f"{module}.weight"]
        total = merge(weight, lora, adapter.scaling, adapter.card.quantization)
        if not torch.isfinite(total.abs().amax()):  # a fraction of what it takes to look at each
            raise AdapterError(f"{module} with the adapter in it has values that are not finite in {weight.dtype}")
        yield f"{module}.weight", total


def merge(weight: Tensor, lora: tuple[Tensor, Tensor], scaling: float, quantization: Quantization) -> Tensor:
    """One of them, of the adapter's (A [rank, in], B [out, rank])."""
    lora_a, lora_b = (factor.to(weight.device) for factor in lora)
    return (frozen_weight(weight, quantization).float() + scaling * (lora_b @ lora_a)).to(weight.dtype)


def _read_lora(path: Path, shapes: Mapping[str, torch.Size], card: AdapterCard) -> dict[str, tuple[Tensor, Tensor]]:
    modules = adapted_modules(shapes, card.target_modules)
    if not modules:
        raise AdapterError(f"the base has none of the adapter's target modules {card.target_modules}")
    names = {(m, part): f"{PEFT_PREFIX}{m}.lora_{part}.weight" for m in modules for part in "AB"}
    tensors = _read_tensors(path, set(names.values()))
    lora = {}
    for module in modules:
        rows, columns = shapes[f"{module}.weight"]
        pair = []
        for part, shape in (("A", (card.rank, columns)), ("B", (rows, card.rank))):
            tensor = tensors[names[module, part]]
            if tuple(tensor.shape) != shape:
                raise AdapterError(f"{module}.lora_{part} has shape {tuple(tensor.shape)}, expected {shape}")
            _check_float(tensor, f"{module}.lora_{part}")
            if not torch.isfinite(tensor).all():
                raise AdapterError(f"{module}.lora_{part} has values that are not finite")
            pair.append(tensor.float())
        lora[module] = (pair[0], pair[1])
    return lora


def _read_probe(path: Path, vocab_size: int) -> tuple[Tensor, Tensor]:
    probe = _read_tensors(path, {"input_ids", "logits"})
    ids, logits = probe["input_ids"], probe["logits"]
    one_row = ids.ndim == 2 and len(ids) == 1 and ids.numel() > 0 and ids.dtype == torch.int64
    if not one_row or not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise AdapterError(f"{path.name}: input_ids are not one row of ids below {vocab_size}")
    if logits.ndim != 2 or not 0 < len(logits) <= ids.shape[1] or logits.shape[1] != vocab_size:
        raise AdapterError(
            f"{path.name}: logits have shape {tuple(logits.shape)}, expected up to ({ids.shape[1]}, {vocab_size})"
        )
    _check_float(logits, f"{path.name}: logits")
    if not torch.isfinite(logits).all():
        raise AdapterError(f"{path.name}: logits are not finite")
    return ids, logits


def _check_float(tensor: Tensor, name: str) -> None:
    if tensor.dtype not in FLOATS:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
        raise AdapterError(f"{name} has type {str(tensor.dtype).removeprefix('torch.')}, allowed are {allowed}")


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise AdapterError(f"{path.name} is missing from the adapter's folder")


def _read_tensors(path: Path, expected: set[str]) -> dict[str, Tensor]:
    _require_file(path)
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise AdapterError(f"{path.name} is not a readable safetensors file: {error}") from error
    for problem, keys in (("misses", expected - set(tensors)), ("has unexpected", set(tensors) - expected)):
        if keys:
            raise AdapterError(f"{path.name} {problem} {len(keys)} keys, such as {min(keys)}")
    return tensors


def _read_json(path: Path) -> dict[str, Any]:
    _require_file(path)
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise AdapterError(f"{path.name} holds no JSON object")
    return content
