"""What goes wrong between here and the hub, in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from httpx import HTTPError
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from hotdraft.pipeline.models.names import ModelError


@contextmanager
def hub_errors(repo: str, done: str) -> Iterator[None]:
    """Raises `ModelError` where `repo` cannot be `done`: read or written."""
    try:
        yield
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, HTTPError) as error:
        [says, *_] = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{repo} on the hub cannot be {done}: {says}") from error
