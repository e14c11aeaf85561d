"""A model that costs what a large one costs and says what a small one says: `hotdraft models inflate`.

For measuring speed at a size whose weights are not to be had. The small model is widened, then deepened, by
weights that change nothing: what is added to the residual stream stays 0, since the embedding and the output
projections have only zeros there, and the output projections of layers that are added are 0 altogether.
All other new weights are random, so that no hardware can tell them from trained ones.
"""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from hotdraft.pipeline.models.draft_folder import new_folder, save_plain
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm, load_config_of, load_tokenizer
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.system.disk import require_disk

MODEL_TYPES = ("llama", "mistral", "qwen2")
INFLATED_FROM = "inflated_from"
"""Key of `config.json` that names the small model."""
INTO_RESIDUAL = ("embed_tokens", "lm_head", "o_proj", "down_proj")
"""Modules whose new weights are 0: what writes to the residual stream, and the head, which may be the embedding."""
UNITS = {"m": 1e6, "b": 1e9}

CARD = """# {source}, inflated

The cost of a model of {parameters:,} parameters, and the answers of `{source}` (weights {fingerprint}): {width}
times the channels and heads, {feed_forward} times the feed-forward channels, {layers} layers where it has
{source_layers}, by weights that change nothing. Made by `hotdraft models inflate` to measure speed at this size.
It knows no more than `{source}`, whose licence and notices apply.
"""


@dataclass(frozen=True)
class Shape:
    """How far a model is inflated."""

    width: int
    """Times as many channels and heads."""
    feed_forward: int
    """Times as many feed-forward channels."""
    layers: int


def parse_size(text: str) -> int:
    """Parameters meant by `text`, as 6b or 500m. Raises `ModelError` for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mb])", text.strip().lower())
    if match is None or not float(match[1]):
        raise ModelError(f"{text!r} is no size; allowed are millions and billions of parameters, as 500m or 1.5b")
    return round(float(match[1]) * UNITS[match[2]])


def shape_for(model: PreTrainedModel, parameters: int) -> Shape:
    """The widest shape with about `parameters` and about the layers of `model`, never less.

    Large models are wide rather than deep, and a step of many thin layers costs more than reading its weights.
    Channels are multiplied by a power of 4: norms are then scaled by a power of 2, which is exact in every dtype.
    Raises `ModelError` if `model` has more than `parameters` already.
    """
    sizes = {"mlp": 0, "attention": 0, "outside": 0}
    for name, parameter in model.named_parameters():
        part = "outside" if ".layers." not in name else "mlp" if ".mlp." in name else "attention"
        sizes[part] += parameter.numel()

    def smallest(width: int) -> int:
        return width * (sizes["outside"] + sizes["mlp"]) + width**2 * sizes["attention"]

    if parameters < smallest(1):
        raise ModelError(
            f"the model has {smallest(1):,} parameters, and {parameters:,} were asked for: it only grows"
        )
    width = 1
    while smallest(4 * width) <= parameters:
        width *= 4
    feed_forward = 1 + (parameters - smallest(width)) // (width * sizes["mlp"])
    inside = width * (width * sizes["attention"] + feed_forward * sizes["mlp"])
    layers = model.config.num_hidden_layers * (parameters - width * sizes["outside"]) / inside
    return Shape(width, feed_forward, round(layers))


def inflate(
    name: str,
    parameters: int,
    folder: Path,
    on_step: Callable[[str], object] = lambda step: None,
    device: torch.device | str = "cpu",
) -> int:
    """Write into `folder`, new or empty, what `name` becomes with about `parameters`; return how many it has.

    Logits are those of `name` but for the order of sums, in the dtype that it is stored in. A draft that was cut
    from it, or trained for it, fits as well as before. `on_step` is told what is being done. Weights are made on
    `device`: a GPU draws billions in a second, a CPU in minutes.

    Raises `ModelError` for a model of another architecture than `MODEL_TYPES`, for one that is larger already,
    and for a folder that cannot be written, and `DiskError` if there is too little space.
    """
    config: Any = load_config_of(name)
    if config.model_type not in MODEL_TYPES:
        raise ModelError(
            f"{name!r} is a {config.model_type!r} model; those of {', '.join(MODEL_TYPES)} can be inflated"
        )
    dtype = config.dtype or torch.float32
    with new_folder(folder) as partial:
        small = load_causal_lm(name, dtype=dtype, device=device)
        shape = shape_for(small, parameters)
        require_disk(folder, parameters * dtype.itemsize, "the inflated model")
        on_step(f"making {shape.layers} layers")
        with torch.random.fork_rng(), torch.no_grad(), torch.device(device):
            torch.manual_seed(0)
            large = AutoModelForCausalLM.from_config(_inflated_config(small.config, shape, name), dtype=dtype)
            _fill(large, small, shape.width)
        on_step("writing")
        large.generation_config = small.generation_config
        save_plain(partial, large, load_tokenizer(name))
        found = sum(parameter.numel() for parameter in large.parameters())
        card = CARD.format(
            source=Path(name).name if Path(name).is_dir() else name,
            fingerprint=fingerprint(name)[:12],
            source_layers=small.config.num_hidden_layers,
            parameters=found,
            **vars(shape),
        )
        (partial / "README.md").write_text(card, encoding="utf-8")
    return found


def _inflated_config(config: Any, shape: Shape, source: str) -> PreTrainedConfig:
    large = copy.deepcopy(config)
    setattr(large, INFLATED_FROM, source)
    for name in ("hidden_size", "num_attention_heads", "num_key_value_heads"):
        setattr(large, name, shape.width * getattr(config, name))
    large.intermediate_size = shape.feed_forward * config.intermediate_size
    large.num_hidden_layers = shape.layers
    if getattr(config, "layer_types", None):
        large.layer_types = config.layer_types + [config.layer_types[-1]] * (shape.layers - len(config.layer_types))
    # the mean of the squares is taken over `width` times as many channels
    large.rms_norm_eps = config.rms_norm_eps / shape.width
    return large


def _fill(large: PreTrainedModel, small: PreTrainedModel, width: int) -> None:
    """Lay the weights of `small` into the corner of those of `large`, which are random."""
    corners = dict(small.named_parameters())
    for name, parameter in large.named_parameters():
        if any(module in name for module in INTO_RESIDUAL):
            parameter.zero_()
        if name in corners:
            corner = corners[name]
            scale = width**-0.5 if "norm" in name else 1
            parameter[tuple(slice(size) for size in corner.shape)] = (corner.float() * scale).to(corner.dtype)
