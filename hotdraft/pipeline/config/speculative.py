"""vLLM's `--speculative-config`, in its words, as far as it says what there is here."""

from typing import Any, Literal

from pydantic import ValidationError

from hotdraft.pipeline.config.section import ConfigError, Section
from hotdraft.pipeline.config.serving import KSetting


class SpeculativeConfig(Section):
    model: str | None = None
    """The draft: hub id, local folder, or the name of one that ships with hotdraft."""
    num_speculative_tokens: KSetting = "auto"
    """Drafted tokens a round; auto is what is fastest at the moment."""
    method: Literal["draft_model", "suffix", "ngram"] = "draft_model"
    """How tokens are proposed: by a smaller model as well as from text, or, as the others say, from text alone."""


def read_speculative(text: str) -> dict[str, Any]:
    """What the JSON object `text` says, as overrides of the configuration. Raises `ConfigError`."""
    try:
        told = SpeculativeConfig.model_validate_json(text)
    except ValidationError as error:
        said = "; ".join(": ".join([*map(str, one["loc"][:1]), one["msg"]]) for one in error.errors())
        allowed = ", ".join(SpeculativeConfig.model_fields)
        raise ConfigError(f"--speculative-config: {said} (a JSON object of {allowed})") from error
    if told.method == "draft_model":
        if told.model is None:
            raise ConfigError("--speculative-config: model: the draft_model method needs one")
        return {"draft": told.model, "engine": {"k": told.num_speculative_tokens}}
    most = {} if told.num_speculative_tokens == "auto" else {"max_guess": told.num_speculative_tokens}
    return {"draft": None, "engine": {"k": "auto", "proposers": ["suffix"], **most}}
