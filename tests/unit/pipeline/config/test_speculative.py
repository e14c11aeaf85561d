"""vLLM's words for how tokens are proposed."""

import pytest

from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.speculative import read_speculative


def test_a_draft_model() -> None:
    told = read_speculative('{"model": "d", "num_speculative_tokens": 3}')
    assert told == {"draft": "d", "engine": {"k": 3}}


@pytest.mark.parametrize("method", ["suffix", "ngram"])
def test_text_alone(method: str) -> None:
    told = read_speculative(f'{{"method": "{method}"}}')
    assert told == {"draft": None, "engine": {"k": "auto", "proposers": ["suffix"]}}
    told = read_speculative(f'{{"method": "{method}", "num_speculative_tokens": 5}}')
    assert told["engine"]["max_guess"] == 5


def test_a_draft_model_without_one_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="model: the draft_model method needs one"):
        read_speculative("{}")
