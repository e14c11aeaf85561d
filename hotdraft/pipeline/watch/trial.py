"""The trial of a version that has just begun to serve, kept as tags of that version that all servers share.

`watch/state` says against which version it is tried and how many looks are done; it moves under the registry's
lock, so that however many servers look, the looks are the planned ones. `watch/<server>/before` and `/after` are
each server's own, as `served/<run>` is: what it served of the version before until the swap, and of this one since.
"""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Literal

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.connection import ABSENT, exclusive, open_client
from hotdraft.pipeline.watch.evidence import Evidence, from_tag, summed, to_tag
from hotdraft.pipeline.watch.watchdog import Fall, Samples, judge, looks

logger = logging.getLogger(__name__)

PREFIX = "watch/"
STATE = f"{PREFIX}state"
ENDLESS = 20
"""Times `watchdog.max_requests` that a trial waits for requests like those before the swap."""


@dataclass(frozen=True)
class Trial:
    opened: float
    """Unix time, seconds; tells it from an earlier one of the version."""
    against: str
    """The champions before, as the version's tag names them; "0" if none."""
    looks: int = 0
    """Done by now."""
    over: bool = False
    """The version is trusted: traffic that grows harder later is not its fault."""


class Trials:
    """Of the versions of `config.tracking.registered_model`, as the server `server` takes part in them.

    An unreachable store shows as `MlflowException`.
    """

    def __init__(self, config: HotdraftConfig, server: str) -> None:
        self._config = config
        self._model = config.tracking.registered_model
        self._server = server

    @cached_property
    def _client(self) -> MlflowClient:
        return open_client(self._config)

    def join(self, version: int, *, may_open: bool) -> Trial | None:
        """The trial of `version`, opened if there is none and `may_open`; None as long as it is not tried.

        It is tried once against the same version before: what it is given may be over.
        """
        known = _trial_of(self._tags(version))
        if known is not None or not may_open:
            return known
        with exclusive(self._config, self._client, self._model) as still_held:
            tags = self._tags(version)
            trial = _trial_of(tags)
            if trial is None:
                trial = Trial(time.time(), tags.get("previous_champion", "0"))
                still_held()
                self._keep(version, trial)
        return trial

    def tell(self, version: int, trial: Trial, when: Literal["before", "after"], evidence: Evidence) -> None:
        """Keep what this server served, in place of what it told before."""
        self._set(version, f"{PREFIX}{self._server}/{when}", to_tag(trial.opened, evidence))

    def look(self, version: int) -> Trial | Fall | None:
        """Look at all servers' evidence if a look is due: the trial after it, or the fall that it found.

        None if there is no trial any more. A look that finds a fall is not counted as done: until the version
        is rolled back, others find it too.
        """
        tags = self._tags(version)
        found = self._judged(tags)
        if not isinstance(found, Trial) or found == _state(tags):
            return found
        with exclusive(self._config, self._client, self._model) as still_held:
            found = self._judged(self._tags(version))
            if isinstance(found, Trial):
                still_held()
                self._keep(version, found)
        return found

    def leave(self, version: int) -> None:
        """Take back this server's evidence."""
        for when in ("before", "after"):
            self._delete(version, f"{PREFIX}{self._server}/{when}")

    def forget(self, version: int) -> None:
        """Drop the trial: when someone makes `version` the champion again it is tried anew."""
        for key in self._tags(version):
            if key.startswith(PREFIX):
                self._delete(version, key)

    def _judged(self, tags: Mapping[str, str]) -> Trial | Fall | None:
        trial = _state(tags)
        if trial is None or trial.over:
            return trial
        config = self._config.watchdog
        before, after = (_pooled(tags, when, trial.opened) for when in ("before", "after"))
        verdict = judge(Samples.of(before, after), trial.looks, config)
        served = sum(tally.requests for tally in after.values())
        planned = len(looks(config.min_requests, config.max_requests))
        over = verdict.looks >= planned or served > ENDLESS * config.max_requests
        return verdict.fall or replace(trial, looks=verdict.looks, over=over)

    def _tags(self, version: int) -> dict[str, str]:
        return dict(self._client.get_model_version(self._model, str(version)).tags)

    def _keep(self, version: int, trial: Trial) -> None:
        self._set(version, STATE, json.dumps(asdict(trial)))

    def _set(self, version: int, key: str, value: str) -> None:
        self._client.set_model_version_tag(self._model, str(version), key, value)

    def _delete(self, version: int, key: str) -> None:
        try:
            self._client.delete_model_version_tag(self._model, str(version), key)
        except MlflowException as error:
            if error.error_code not in ABSENT:
                raise


def _state(tags: Mapping[str, str]) -> Trial | None:
    """None if there is none that can be read."""
    if STATE not in tags:
        return None
    try:
        content = json.loads(tags[STATE])
        return Trial(
            float(content["opened"]), str(content["against"]), int(content["looks"]), bool(content["over"])
        )
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        logger.warning("the tag %s cannot be read: %r", STATE, error)
        return None


def _trial_of(tags: Mapping[str, str]) -> Trial | None:
    """Against the champion that was before."""
    trial = _state(tags)
    return trial if trial is not None and trial.against == tags.get("previous_champion", "0") else None


def _pooled(tags: Mapping[str, str], when: str, opened: float) -> Evidence:
    """Of all servers; what cannot be read is left out."""
    parts = []
    for key, value in tags.items():
        if key.startswith(PREFIX) and key.endswith(f"/{when}"):
            try:
                parts.append(from_tag(value, opened))
            except ValueError as error:
                logger.warning("the tag %s is left out: %s", key, error)
    return summed(parts)
