"""How long a trainer waits for what is away, and what it says of that."""

from collections.abc import Iterator

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.store.connection import StoreError
from hotdraft.training.online import follow as follow_module
from hotdraft.training.online.follow import follow


class Waits:
    """Goes on until a trainer waited so often; keeps for how long."""

    def __init__(self, count: int) -> None:
        self.count, self.seconds = count, list[float]()

    def is_set(self) -> bool:
        return len(self.seconds) == self.count

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        return self.is_set()


def followed(patch: pytest.MonkeyPatch, begins: list[Exception | None], turns: list[Exception | bool]) -> Waits:
    """A trainer that begins as often as it has to and takes turns of these outcomes; true is more to do at once."""

    def played(outcomes: Iterator[Exception | bool | None]) -> bool:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return bool(outcome)

    beginning, taken = iter(begins), iter(turns)

    class Follower:
        def __init__(self, config: HotdraftConfig) -> None:
            played(beginning)

        def turn(self, stop: Waits) -> bool:
            return played(taken)

    patch.setattr(follow_module, "_Follower", Follower)
    stop = Waits(sum(one is not None for one in begins) + sum(turn is not True for turn in turns))
    follow(HotdraftConfig(target="t", distill={"trigger": {"poll_seconds": 5}}), stop)
    return stop


def test_what_stays_away_is_asked_ever_more_rarely_but_once_a_minute_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hotdraft.training.online.follow")
    outage: list[Exception | bool] = [StoreError("the store is away")] * 6
    stop = followed(monkeypatch, [None], [*outage, False, True, False, OSError("the bucket is away"), False])
    assert stop.seconds == [5, 10, 20, 40, 60, 60, 5, 5, 5, 5]
    assert [text for text in caplog.messages if "jobs wait" in text] == [
        "the store is away; jobs wait for it",
        "jobs wait no more: what they waited for is back",
        "the bucket is away; jobs wait for it",
        "jobs wait no more: what they waited for is back",
    ]


def test_a_trainer_that_cannot_begin_yet_begins_once_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    away = ModelError("no model folder at 'draft'")
    stop = followed(monkeypatch, [away, away, None], [False, False])
    assert stop.seconds == [5, 10, 5, 5]
