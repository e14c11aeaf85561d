"""The adapter registry: MLflow's model registry as the store of adapter versions.

The alias `champion` alone says which version serves; it moves in one transaction, and a version
exists only after its files do, so at every moment it names a complete version. Everything else
is told by tags, written before the alias moves where a crash in between must not lose it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import islice, takewhile
from pathlib import Path
from uuid import uuid4

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.entities.model_registry import ModelVersion, RegisteredModel
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.adapter_version import (
    CANDIDATE,
    CHAMPION,
    REJECTED,
    RETIRED,
    ROLLED_BACK,
    UNKNOWN,
    AdapterVersion,
)
from hotdraft.pipeline.store.connection import ABSENT, exclusive, open_client, registered_model, store_errors
from hotdraft.pipeline.store.errors import (
    ChampionMovedError,
    ChampionPinnedError,
    RegistryError,
    UnknownVersionError,
)
from hotdraft.pipeline.store.fetched import FetchedAdapters
from hotdraft.pipeline.store.pin import is_pinned, pin, said, unpin

MAX_BEFORE = 16
"""Champions that a version followed, which it is told of: one that is promoted again follows another."""
DELETED = {"files": "deleted"}
"""Tag of a version that is listed alone."""


class AdapterRegistry:
    """Versions of the draft's adapter under `config.tracking.registered_model`; 0 is no adapter.

    Any number of processes may use it at once. An unreachable store shows as `MlflowException`.
    """

    def __init__(self, config: HotdraftConfig) -> None:
        self._config = config
        self._name = config.tracking.registered_model
        self.fetched = FetchedAdapters(config)

    @cached_property
    def _client(self) -> MlflowClient:
        client = open_client(self._config)
        registered_model(client, self._name)
        return client

    def publish(self, folder: Path, *, run_id: str, tags: Mapping[str, str]) -> int:
        """Store the adapter in `folder` with the training run `run_id`; returns its version, a candidate.

        MLflow's client asks again where an answer is late, and each time a version is made: the first counts.
        """
        if not any(folder.iterdir()):
            raise RegistryError(f"nothing to publish: {folder} is empty")
        path = f"adapter-{uuid4().hex[:8]}"
        self._client.log_artifacts(run_id, str(folder), path)
        source = f"{self._client.get_run(run_id).info.artifact_uri}/{path}"
        with self._exclusive():  # two writers of the same alias at once collide in MLflow's store
            self._model()
            self._client.create_model_version(
                self._name, source, run_id, tags={**tags, "status": CANDIDATE}, await_creation_for=0
            )
            version, *again = _made_of(source, self._search(f"run_id = '{run_id}'"))
            for twin in again:
                self._tag(
                    twin, reason=f"version {version} once more: an answer of MLflow was late", status=REJECTED
                )
            self._client.set_registered_model_alias(self._name, CANDIDATE, str(version))
        return version

    def published_by(self, run_id: str) -> AdapterVersion | None:
        """The newest version that the training run `run_id` published."""
        made = list(self._search(f"run_id = '{run_id}'"))
        return self.version(_made_of(made[0].source, made)[0]) if made else None

    def promote(self, version: int, *, reason: str, instead_of: int | None = None, by_hand: bool = False) -> None:
        """Make `version` the champion; the one before it is retired and remembered for a rollback.

        A person's choice, `by_hand`, is pinned: from then on `ChampionPinnedError` meets whoever is none, until
        `unpin`. With `instead_of`, only that champion (0: none) gives way: `ChampionMovedError` if another serves.
        """
        with self._exclusive() as check:
            chosen, previous = self._with_files(version), self.champion()
            if version == previous and not by_hand:
                return
            if instead_of is not None and instead_of != previous:
                raise ChampionMovedError(f"version {instead_of} is not the champion any more, {previous} is")
            self._check_movable(by_hand)
            if version != previous:
                known = [str(previous), *_champions_before(chosen.tags)]
                self._tag(version, previous_champion=",".join(dict.fromkeys(known[:MAX_BEFORE])))
            self._tag(version, **said("promoted", reason, by_hand))
            self._drop_candidate(version)
            check()
            if by_hand:
                pin(self._client, self._name, version)
            self._client.set_registered_model_alias(self._name, CHAMPION, str(version))
            self._tag(version, status=CHAMPION)
            if previous not in (0, version) and self._status(previous) != ROLLED_BACK:
                self._tag(previous, status=RETIRED)

    def unpin(self) -> None:
        """Let the gate and the watchdog move the champion again. Without a pin it changes nothing."""
        with self._exclusive():
            unpin(self._client, self._name)

    def tell(self, version: int, tags: Mapping[str, str]) -> None:
        """Have `version` say so in its tags, in place of what they said before."""
        self._tag(version, **tags)

    def reject(self, version: int, *, reason: str) -> None:
        """Record that the gate refused `version`."""
        with self._exclusive():
            self._get(version)
            if version == self.champion():
                raise RegistryError(f"version {version} is the champion: roll it back instead of rejecting it")
            self._tag(version, reason=reason)
            self._drop_candidate(version)
            self._tag(version, status=REJECTED)  # the last: whoever is stopped before refuses it again

    def forget_refused(self) -> None:
        """Delete the files of refused versions but for the newest `tracking.keep_refused`; all stay listed."""
        keep = self._config.tracking.keep_refused
        if keep is None:
            return
        refused = islice(self._search(f"tag.status = '{REJECTED}'"), keep, None)
        kept = [*takewhile(lambda found: not DELETED.items() <= found.tags.items(), refused)]
        for found in reversed(kept):  # the oldest first: whoever is stopped leaves none behind one that is deleted
            with self._exclusive():
                self._delete_files(found)

    def rollback(self, *, reason: str, version: int | None = None, by_hand: bool = False) -> int:
        """Return to the champion before the current one (0: no adapter) and give its version.

        A version that was itself rolled back is passed over. With `version`, only that champion is
        rolled back: `RegistryError` if another one has taken its place meanwhile. `by_hand` is as in `promote`.
        """
        with self._exclusive() as check:
            bad = self.champion()
            if not bad:
                raise RegistryError("no champion to roll back: the draft serves without an adapter")
            if version is not None and version != bad:
                raise RegistryError(f"version {version} is not the champion, version {bad} is")
            self._check_movable(by_hand)
            good = next(self.champions_before(bad), 0)
            check()
            # the reason first: where the store refuses it, nothing has changed
            self._tag(bad, **said("rolled back", reason, by_hand), status=ROLLED_BACK)
            if by_hand:
                pin(self._client, self._name, good)
            if good:
                self._client.set_registered_model_alias(self._name, CHAMPION, str(good))
                words = f"version {bad} was rolled back{': ' if reason else ''}{reason}"
                self._tag(good, status=CHAMPION, **said("returned to", words, by_hand))
            else:
                self._client.delete_registered_model_alias(self._name, CHAMPION)
            return good

    def champion(self) -> int:
        """The version that serves; 0 if none."""
        try:
            found = self._client.get_model_version_by_alias(self._name, CHAMPION)
        except MlflowException as error:
            if error.error_code in ABSENT:
                return 0
            raise
        return int(found.version)

    def is_pinned(self) -> bool:
        """Whether the champion, or that none serves, was chosen by hand and stays."""
        return is_pinned(self._model())

    def champions_before(self, version: int) -> Iterator[int]:
        """The champions before `version`, the last one first, without those that were rolled back."""
        seen, ahead = {0, version}, [version]
        while ahead:
            version = ahead.pop()
            try:
                found = self._get(version)
                if version not in seen and found.tags.get("status") != ROLLED_BACK:
                    yield version
                seen.add(version)
                before = [int(number) for number in _champions_before(found.tags)]
            except ValueError:  # no number, or that of a version which somebody deleted: there the trace ends
                continue
            ahead += [number for number in reversed(before) if number not in seen and 0 < number < 2**31]

    def version(self, version: int) -> AdapterVersion:
        model = self._model()
        return AdapterVersion.of(self._get(version), _aliases(model), is_pinned(model))

    def versions(self) -> list[AdapterVersion]:
        """All versions, newest first. Takes about a millisecond for each."""
        model = self._model()
        aliases, pinned = _aliases(model), is_pinned(model)
        return [AdapterVersion.of(item, aliases, pinned) for item in self._search()]

    def refused(self, *, after: int = 0) -> set[int]:
        """Versions newer than `after` that the gate refused or somebody rolled back; a millisecond for each."""
        conditions = (f"tag.status = '{status}' AND version_number > {after}" for status in (REJECTED, ROLLED_BACK))
        return {int(found.version) for condition in conditions for found in self._search(condition)}

    def training_metrics(self, version: int) -> dict[str, float]:
        """The last value of every metric of the run that trained `version`, where it is a finite number.

        Empty if no such run is known: somebody made the version without one, or deleted the run.
        """
        try:
            metrics = self._client.get_run(self.version(version).run_id).data.metrics
        except MlflowException as error:
            if error.error_code in ABSENT:
                return {}
            raise
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def download(self, version: int) -> Path:
        """A local folder with the files of `version`, not to be written to; a remote store is asked once.

        Raises `RegistryError` if they were deleted or a local store has lost them, and `StoreError` if a remote one
        does not give them now: that may be the way to it.
        """
        source = self._with_files(version).source or ""
        if self._config.has_remote_store:
            with store_errors(self._config):
                return self.fetched.folder(source)
        try:
            return Path(download_artifacts(artifact_uri=source, tracking_uri=self._config.tracking_uri))
        except (MlflowException, OSError) as error:
            raise RegistryError(f"the files of version {version} cannot be had from {source}: {error}") from error

    def _get(self, version: int) -> ModelVersion:
        try:
            return self._client.get_model_version(self._name, str(version))
        except MlflowException as error:
            if error.error_code in ABSENT:
                raise UnknownVersionError(f"no version {version} of {self._name} in the registry") from error
            raise

    def _with_files(self, version: int) -> ModelVersion:
        found = self._get(version)
        if DELETED.items() <= found.tags.items():
            kept = f"those of the newest {self._config.tracking.keep_refused} refused versions are kept"
            raise RegistryError(f"the files of version {version} were deleted: {kept}")
        return found

    def _delete_files(self, refused: ModelVersion) -> None:
        """Unless it serves by now, or they are another's that was not refused."""
        owners = _made_of(refused.source, self._search(f"run_id = '{refused.run_id}'"))
        if all(self.version(owner).status == REJECTED for owner in owners):
            get_artifact_repository(refused.source or "", self._config.tracking_uri).delete_artifacts()
            self._tag(int(refused.version), **DELETED)

    def _exclusive(self) -> AbstractContextManager[Callable[[], None]]:
        return exclusive(self._config, self._client, self._name)

    def _search(self, condition: str = "") -> Iterator[ModelVersion]:
        """Versions that meet `condition`, newest first, a page at a time."""
        wanted = f"name = '{self._name}'" + (f" AND {condition}" if condition else "")
        token: str | None = None
        while True:
            page = self._client.search_model_versions(wanted, order_by=["version_number DESC"], page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _status(self, version: int) -> str:
        return self._get(version).tags.get("status", UNKNOWN)

    def _model(self) -> RegisteredModel:
        return registered_model(self._client, self._name)

    def _check_movable(self, by_hand: bool) -> None:
        if by_hand:
            return
        if self.is_pinned():
            champion = self.champion()
            what = f"version {champion}" if champion else "serving without an adapter"
            raise ChampionPinnedError(f"{what} is pinned by hand")
        unpin(self._client, self._name)  # what a writer that died left would pin a version that nobody chose

    def _tag(self, version: int, **tags: str) -> None:
        for key, value in tags.items():
            self._client.set_model_version_tag(self._name, str(version), key, value)

    def _drop_candidate(self, version: int) -> None:
        if _aliases(self._model()).get(CANDIDATE) == version:
            self._client.delete_registered_model_alias(self._name, CANDIDATE)


def _made_of(source: str | None, versions: Iterable[ModelVersion]) -> list[int]:
    """Those of the files at `source`, the first one first: more than one where an answer of MLflow was late."""
    return sorted(int(found.version) for found in versions if found.source == source)


def _champions_before(tags: Mapping[str, str]) -> list[str]:
    """Of a version, those that it followed, the last one first."""
    return [number for number in tags.get("previous_champion", "").split(",") if number]


def _aliases(model: RegisteredModel) -> dict[str, int]:
    return {name: int(version) for name, version in model.aliases.items()}
