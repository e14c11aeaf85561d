"""Whether models go with the requests that are to be served, as their configs tell before weights are read."""

import logging
from typing import TYPE_CHECKING

from transformers import PreTrainedConfig

from hotdraft.pipeline.models.hidden_state_draft import HiddenStateConfig, are_layers
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.replay.draft_window import most_held
from hotdraft.serving.models.attention import check_supported

if TYPE_CHECKING:  # a machine that has torch alone decodes too
    from hotdraft.pipeline.config.serving import EngineConfig

logger = logging.getLogger(__name__)


def check_servable(
    target: tuple[str, PreTrainedConfig], draft: tuple[str, PreTrainedConfig] | None, engine: "EngineConfig"
) -> None:
    """Raise `ModelError` if names and configurations do not go with what `engine` says."""
    longest, window = engine.max_model_len, engine.draft_window
    check_supported(target[1].get_text_config(), longest)
    if draft is not None:
        check_supported(draft[1].get_text_config(), most_held(longest, window))
        _check_states(target, draft, engine)
    proposed = engine.most_proposed if draft is not None or engine.guesses else 0
    check_context_length(target, draft, max_model_len=longest, proposed=proposed, draft_window=window)


def _check_states(
    target: tuple[str, PreTrainedConfig], draft: tuple[str, PreTrainedConfig], engine: "EngineConfig"
) -> None:
    """Of a draft that reads the target's states, that these are there to be read."""
    config, text = draft[1], target[1].get_text_config()
    if not isinstance(config, HiddenStateConfig):
        return
    if not are_layers(config.target_layers, text.num_hidden_layers):
        raise ModelError(
            f"target_layers in the config.json of the draft {draft[0]!r} must be distinct numbers of the layers of "
            f"{target[0]!r}, from 1 to {text.num_hidden_layers} in ascending order, not {config.target_layers!r}"
        )
    if config.hidden_size != text.hidden_size:
        raise ModelError(
            f"the draft {draft[0]!r} reads states of {config.hidden_size} numbers, and those of {target[0]!r} have "
            f"{text.hidden_size}: it was made for another target"
        )
    if engine.draft_window is not None:
        raise ModelError(
            f"the draft {draft[0]!r} reads what its target made of the whole context: engine.draft_window must be "
            f"null, not {engine.draft_window}"
        )


def check_context_length(
    target: tuple[str, PreTrainedConfig],
    draft: tuple[str, PreTrainedConfig] | None,
    *,
    max_model_len: int,
    proposed: int,
    draft_window: int | None = None,
) -> None:
    """Raise `ModelError` if names and configurations do not go with `max_model_len` and so many proposed tokens.

    A draft with a window needs positions for what it holds at most (`pipeline.replay.draft_window`).

    A table of positions, as GPT-2 has it, has no row for the tokens that a last round proposes past the end.
    Rotations have one for any position, and a target that was not made for them talks nonsense, as vLLM
    sees it too; a draft beyond what it was made for only loses acceptance, so that a warning is enough.
    """
    for role, model in (("target", target), ("draft", draft)):
        if model is None:
            continue
        name, config = model[0], model[1].get_text_config()
        positions = _positions(config)
        if positions is None:
            continue
        beyond = 0 if _rotates(config) else proposed
        key, told, held = "engine.max_model_len", max_model_len, max_model_len
        if role == "draft" and draft_window is not None and most_held(held, draft_window) < held:
            key, told, held = "engine.draft_window", draft_window, most_held(held, draft_window)
        if held + beyond <= positions:
            continue
        says = (
            f"the {role} {name!r} has {positions} positions, and {key} {told}"
            + (f" with up to {beyond} proposed tokens" if beyond else "")
            + f" needs {held + beyond}"
        )
        if role == "draft" and _rotates(config):
            logger.warning("%s: beyond them few of its tokens will be accepted", says)
        else:
            raise ModelError(f"{says}: set {key} to {(positions - beyond) * told // held} at most")


def places(config: PreTrainedConfig, length: int) -> int:
    """How many of a slot's `length` positions a model has: a table of them may end within its last block."""
    positions = None if _rotates(config) else _positions(config)
    return length if positions is None else min(length, positions)


def _rotates(config: PreTrainedConfig) -> bool:
    return getattr(config, "rope_parameters", None) is not None


def _positions(config: PreTrainedConfig) -> int | None:
    """How many the model was made for; None if it has no such limit. Scaled rotations as vLLM reckons them."""
    positions: int | None = getattr(config, "max_position_embeddings", None)
    if positions is None or not _rotates(config):
        return positions
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    if kind in ("longrope", "llama3"):  # theirs is the scaled model's already
        return positions
    original = rope.get("original_max_position_embeddings", positions) if kind == "yarn" else positions
    return max(positions, int(original * (rope.get("factor") or 1.0)))
