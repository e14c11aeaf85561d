"""What a model's name stands for: a local folder, a fetched model, a draft that ships here, or a hub id.

Nothing here imports torch, so that a name is checked before anybody waits for it.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import errors as hub
from huggingface_hub import snapshot_download

SHIPPED_DRAFTS = Path(__file__).parent / "shipped-drafts"
FETCHABLE = ("smollm2",)
CUT_FILE = "cut.json"
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "README.md")
HUB_ERRORS = (
    hub.HTTPError,  # of the HTTP library that this release of the hub's client is built on
    hub.HFValidationError,
    hub.LocalEntryNotFoundError,
    RuntimeError,  # a file's transfer that broke off
    ImportError,  # a SOCKS proxy, for which the HTTP library needs another package
)
"""What the hub's client raises."""


class ModelError(ValueError):
    """A model that cannot be found or used; the message says which and what would do."""


class HubAwayError(ModelError):
    """The hub could not be asked, or broke off: the same may do later."""


@contextmanager
def hub_errors(says: str) -> Iterator[None]:
    """Raises `ModelError`, `HubAwayError` if there was no answer, that `says` what failed, and why, in one line."""
    try:
        yield
    except HUB_ERRORS as error:
        cause = error.__cause__ if isinstance(error, hub.LocalEntryNotFoundError) and error.__cause__ else error
        [why, *_] = str(cause).strip().splitlines() or [type(cause).__name__]
        if isinstance(cause, hub.HFValidationError) or is_refusal(cause):
            raise ModelError(f"{says}: {why}") from error
        raise HubAwayError(f"{says}: the hub does not answer: {why}") from error


def is_refusal(error: BaseException) -> bool:
    """Whether the hub, being well, said no."""
    return isinstance(error, hub.HfHubHTTPError) and error.response.status_code < 500


@dataclass(frozen=True)
class Cut:
    """Where a cut draft comes from."""

    base: str
    base_fingerprint: str
    layers: list[int]
    """Indices of the base's layers that the draft was initialised from, in order."""
    feed_forward: int | None = None
    """Intermediate channels kept in each layer; None is all of them."""
    hidden_states: list[int] | None = None
    """Behind how many of the base's layers a draft reads its states that was cut from no layer."""


def cache_folder() -> Path:
    """Folder of fetched models: `$HOTDRAFT_CACHE` or `~/.cache/hotdraft`."""
    return Path(os.environ.get("HOTDRAFT_CACHE", Path.home() / ".cache" / "hotdraft"))


def is_to_be_fetched(name: str) -> bool:
    """Whether `name` is a model that `hotdraft models fetch` obtains and that is not here yet."""
    return name in FETCHABLE and not _is_folder_here(name) and not (cache_folder() / name).is_dir()


def resolve(name: str) -> str:
    """The local folder that `name` stands for, or `name` itself as a hub id.

    Raises `ModelError` for a folder that does not exist and a known model not yet fetched.
    """
    if _is_folder_here(name):
        return name
    if (SHIPPED_DRAFTS / name).is_dir():
        return str(SHIPPED_DRAFTS / name)
    if is_to_be_fetched(name):
        raise ModelError(f"model {name!r} is not in {cache_folder()}: run `hotdraft models fetch {name}`")
    if name in FETCHABLE:
        return str(cache_folder() / name)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"no model folder at {name!r}")
    return name


def _is_folder_here(name: str) -> bool:
    """Whether `name` is a local folder; of a model that is known by that name only one that holds a model."""
    known = name in FETCHABLE or name in {path.name for path in SHIPPED_DRAFTS.glob("*")}
    return Path(name, "config.json").is_file() if known else Path(name).is_dir()


def public_name(name: str) -> str:
    """A model's name without the path to its folder on this machine."""
    return Path(name).resolve().name if Path(name).is_dir() else name


def local_folder(name: str, patterns: Sequence[str] = MODEL_FILES) -> Path:
    """The folder with the files of `name`, those of `patterns` downloaded from the hub if need be.

    Raises `ModelError`, `HubAwayError` among them.
    """
    resolved = resolve(name)
    if Path(resolved).is_dir():
        return Path(resolved)
    with hub_errors(f"model {name!r} is no local folder, and cannot be had from the hub"):
        try:
            return Path(snapshot_download(resolved, allow_patterns=list(patterns)))
        except hub.GatedRepoError:
            raise
        except (hub.HFValidationError, hub.RepositoryNotFoundError) as error:
            known = ", ".join([*FETCHABLE, *sorted(path.name for path in SHIPPED_DRAFTS.glob("*"))])
            raise ModelError(
                f"model {name!r} is neither a local folder, nor one of {known}, nor found on the hub"
            ) from error


def installed_folder(name: str) -> Path | None:
    """The folder with the files of `name`; None for one that is to come from the hub. Raises `ModelError`."""
    resolved = resolve(name)
    try:
        return Path(resolved if Path(resolved).is_dir() else snapshot_download(resolved, local_files_only=True))
    except hub.LocalEntryNotFoundError:
        return None
    except hub.HFValidationError as error:
        raise ModelError(str(error)) from error


def read_cut(folder: Path) -> Cut | None:
    """The origin of a cut draft's folder; None for a complete model. Raises `ModelError` if it is spoiled."""
    path = folder / CUT_FILE
    try:
        return Cut(**json.loads(path.read_text())) if path.is_file() else None
    except (OSError, ValueError, TypeError) as error:  # unreadable, no JSON, or of another shape
        raise ModelError(f"{path} does not say what the draft was cut from: {error}") from error
