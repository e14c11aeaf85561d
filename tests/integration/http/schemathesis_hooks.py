"""What schemathesis cannot guess: the name of the model, in requests that are meant to be good."""

from typing import Any

import schemathesis

from tests.integration.processes import MODEL


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    if isinstance(case.body, dict) and "model" in case.body and case.meta.generation.mode.is_positive:
        case.body["model"] = MODEL
        case.body["max_tokens"] = 4
