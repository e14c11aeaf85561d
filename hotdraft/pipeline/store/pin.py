"""A person's decision stays: the champion that somebody chose by hand is pinned until somebody undoes that.

The pin is a tag of the registered model that names the champion, 0 if none serves. It is written before the alias
moves and holds only while it names the champion: a writer that dies in between leaves no pin on the wrong version.
"""

from mlflow import MlflowClient
from mlflow.entities.model_registry import RegisteredModel

from hotdraft.pipeline.store.adapter_version import CHAMPION

PIN = "pinned_champion"
BY_HAND = "by_hand"
"""Tag of a version: what a person last decided about it, beside the gate's or the watchdog's `reason`."""
MAX_REASON = 1000
"""Characters of a person's words; some databases hold no more than 5000 of a tag."""


def is_pinned(model: RegisteredModel) -> bool:
    return model.tags.get(PIN) == str(model.aliases.get(CHAMPION, 0))


def pin(client: MlflowClient, name: str, champion: int) -> None:
    client.set_registered_model_tag(name, PIN, str(champion))


def unpin(client: MlflowClient, name: str) -> None:
    if PIN in client.get_registered_model(name).tags:
        client.delete_registered_model_tag(name, PIN)


def said(action: str, reason: str, by_hand: bool) -> dict[str, str]:
    """The tag that says why: a person's words take nothing away from the gate's."""
    if not by_hand:
        return {"reason": reason}
    return {BY_HAND: f"{action}: {reason}" if reason else action}
