"""A lock of all that write to one MLflow store, wherever they run.

MLflow has no compare-and-set. It makes a registered model of a name only once, and renames one only to a
name that is free, each in one transaction; two uses of that are the lock. Who makes the model `<name>`
holds it, under a token of its own in the tag `owner`, and deletes it at the end. A holder that died leaves
it behind: who has seen one token for `LEASE_SECONDS` renames the model to `<name>.<token>`, of several that
do so at once one alone, and the name is free again. What was renamed stays, so that whoever was late cannot
rename the next holder's by it. A holder that is still at work after half the lease stops by itself. Both sides
count seconds since something they saw, so that clocks need not agree.
"""

import logging
import random
import time
from types import TracebackType
from typing import Self
from uuid import uuid4

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

logger = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
PATIENCE_SECONDS = 3 * LEASE_SECONDS
OWNER = "owner"
EXISTS, ABSENT = "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"


class StoreLockError(MlflowException):
    """The lock was not to be had in time, or held for too long."""


class StoreLock:
    """A context manager; enter it anew for each change."""

    def __init__(self, client: MlflowClient, name: str) -> None:
        self._client = client
        self._name = name
        self._token = uuid4().hex
        self._began = 0.0
        """No later than the moment at which others can have seen that it is held."""

    def __enter__(self) -> Self:
        seen, since = None, 0.0
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not self._make():
            holder = self._holder()
            if holder == self._token:  # an answer was lost on the way, and the client asked again
                break
            if holder != seen:
                seen, since = holder, time.monotonic()
            elif holder is not None and time.monotonic() - since > LEASE_SECONDS:
                self._break(holder)
                continue
            if time.monotonic() > give_up:
                raise StoreLockError(f"{self._name} has been held by others for {PATIENCE_SECONDS:g} s")
            time.sleep(random.uniform(0.02, 0.1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_held:
            return  # it may be another's by now
        try:
            self._client.delete_registered_model(self._name)
        except MlflowException as failure:  # the change was made, or has its own error: the lease ends
            logger.warning(
                "%s is freed in %g s, as it could not be deleted: %s", self._name, LEASE_SECONDS, failure
            )

    def check(self) -> None:
        """Raises `StoreLockError` if another may have taken it over."""
        if not self._is_held:
            raise StoreLockError(
                f"{self._name} was held for longer than {LEASE_SECONDS / 2:g} s: nothing more is done"
            )

    @property
    def _is_held(self) -> bool:
        return time.monotonic() - self._began < LEASE_SECONDS / 2

    def _make(self) -> bool:
        self._began = time.monotonic()
        try:
            note = "Held while an alias moves; it goes by itself."
            self._client.create_registered_model(self._name, tags={OWNER: self._token}, description=note)
        except MlflowException as error:
            if error.error_code not in (EXISTS, ABSENT):  # the latter if it went while MLflow looked at whose it is
                raise
            return False
        return True

    def _holder(self) -> str | None:
        try:
            return self._client.get_registered_model(self._name).tags.get(OWNER, "nobody")
        except MlflowException as error:
            if error.error_code != ABSENT:
                raise
            return None

    def _break(self, holder: str) -> None:
        logger.warning("%s was left behind by %s, which must have died: breaking it", self._name, holder)
        try:
            self._client.rename_registered_model(self._name, f"{self._name}.{holder}")
        except MlflowException:  # of two at once, MLflow tells the second by several codes, BAD_REQUEST among them
            if self._holder() == holder:
                raise
