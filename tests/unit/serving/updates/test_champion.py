"""Which version is served where the champion cannot be."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hotdraft.serving.messages.events import SwapEvent
from hotdraft.serving.updates.champion import ChampionFollower
from hotdraft.serving.updates.last_served import LastServedFile
from hotdraft.serving.vllm.front.swapper import UNKNOWN
from tests.unit.serving.updates.followed import BROKEN, Registry


class Swapper:
    """Cannot stage version 3."""

    def __init__(self, live_version: int) -> None:
        self.live_version = live_version

    def stage(self, version: int, folder: Path | None) -> int:
        if version == 3:
            raise BROKEN
        return version

    def swap(self, staged: int, reason: Any) -> SwapEvent:
        event = SwapEvent(staged, self.live_version, reason, 0.0)
        self.live_version = staged
        return event


def test_where_none_served_before_the_draft_itself_is_better_than_nobody_knows_what(tmp_path: Path) -> None:
    registry, swapper = Registry(), Swapper(UNKNOWN)
    registry.promote(3)
    unchecked: Any = registry, Mock(wraps=LastServedFile(tmp_path))
    ChampionFollower(swapper, *unchecked).follow("promotion")
    assert swapper.live_version == 0


@pytest.mark.parametrize(("live", "serves"), [(2, 2), (0, 2), (UNKNOWN, 2), (1, 1)])
def test_an_earlier_champion_stands_in_where_no_version_is_known_to_serve(
    tmp_path: Path, live: int, serves: int
) -> None:
    registry, swapper = Registry(), Swapper(live)
    for version in (1, 2, 3):
        registry.promote(version)
    unchecked: Any = registry, Mock(wraps=LastServedFile(tmp_path))
    follower = ChampionFollower(swapper, *unchecked)
    follower.follow("promotion")
    assert swapper.live_version == serves
    assert set(follower.unusable) == {3}


def test_a_version_that_was_rolled_back_serves_no_longer_where_the_champion_cannot(tmp_path: Path) -> None:
    """Of 2, 3 and 4, 4 served and was undone; 3 is spoiled here."""
    registry, swapper = Registry(), Swapper(4)
    for version in (2, 3, 4):
        registry.promote(version)
    registry.rollback(reason="fell")
    unchecked: Any = registry, Mock(wraps=LastServedFile(tmp_path))
    ChampionFollower(swapper, *unchecked).follow("promotion")
    assert swapper.live_version == 2


def beside_a_spoiled_copy(tmp_path: Path) -> tuple[Swapper, ChampionFollower]:
    """Version 2 serves, and the copy that came of champion 3 was found spoiled once."""
    registry, swapper = Registry(), Swapper(2)
    registry.fetched.discard.return_value = True
    registry.promote(2)
    registry.promote(3)
    unchecked: Any = registry, Mock(wraps=LastServedFile(tmp_path))
    follower = ChampionFollower(swapper, *unchecked)
    follower.follow("promotion")
    return swapper, follower


def test_an_older_version_that_a_person_promotes_is_no_rollback(tmp_path: Path, caplog: Any) -> None:
    caplog.set_level("INFO")
    registry, swapper = Registry(), Swapper(0)
    unchecked: Any = registry, LastServedFile(tmp_path)
    follower = ChampionFollower(swapper, *unchecked)
    for version in (1, 2, 1):
        registry.promote(version)
        follower.follow("promotion")
    registry.rollback(reason="by hand")
    follower.follow("promotion")
    reasons = [record.message.rpartition(" ")[2] for record in caplog.records]
    assert reasons == ["(promotion)", "(promotion)", "(promotion)", "(rollback)"]


def test_a_copy_that_came_spoiled_is_fetched_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapper, follower = beside_a_spoiled_copy(tmp_path)
    follower.follow("promotion")
    assert follower.unusable[3].tries == 1
    later = time.monotonic() + 3
    monkeypatch.setattr(time, "monotonic", lambda: later)
    monkeypatch.setattr(swapper, "stage", lambda version, folder: version)
    follower.follow("promotion")
    assert swapper.live_version == 3


def test_a_version_that_has_been_unusable_for_weeks_still_waits_for_its_next_try(tmp_path: Path) -> None:
    """2.0**1024 is no number, and each of so many tries comes ten minutes after the one before."""
    _, follower = beside_a_spoiled_copy(tmp_path)
    follower.unusable = {3: replace(follower.unusable[3], tries=5000, retry_at=0.0)}
    for _ in range(3):
        follower.follow("promotion")
    assert follower.unusable[3].tries == 5001
    assert not follower.unusable[3].is_due


def test_a_stand_in_that_is_deleted_is_replaced_once_and_serves_no_more(tmp_path: Path) -> None:
    """As after a restart with a champion that is spoiled: what served last stands in, from files that are here."""
    registry, swapper = Registry(), Swapper(0)
    for version in (1, 2, 3):
        registry.promote(version)
    last_served = LastServedFile(tmp_path)
    last_served.write(2, Path("/adapters/2"))
    unchecked: Any = registry, last_served
    follower = ChampionFollower(swapper, *unchecked)
    swaps = Mock(wraps=swapper.swap)
    swapper.swap = swaps  # type: ignore[method-assign]
    follower.follow("startup")
    assert swapper.live_version == 2
    for taken_back, serves in ((2, 1), (1, 0)):
        registry.rolled_back[taken_back] = "deleted"
        for _ in range(3):
            follower.follow("promotion")
        assert swapper.live_version == serves
    assert [call.args[0] for call in swaps.call_args_list] == [2, 1, 0]
