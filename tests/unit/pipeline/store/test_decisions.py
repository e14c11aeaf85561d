"""Promotions, pins, rejections and rollbacks."""

from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from hotdraft.pipeline.store import registry as registry_module
from hotdraft.pipeline.store.errors import ChampionMovedError, ChampionPinnedError, RegistryError
from hotdraft.pipeline.store.pin import PIN
from hotdraft.pipeline.store.registry import AdapterRegistry


def test_promotion_retires_the_one_before(publisher):
    first, second = publisher.publish(), publisher.publish()
    publisher.registry.promote(first, reason="gate")
    assert publisher.registry.champion() == first
    publisher.registry.promote(second, reason="better")
    assert publisher.registry.champion() == second
    assert publisher.statuses() == {first: "retired", second: "champion"}
    assert publisher.registry.version(second).aliases == ["champion"]
    assert publisher.registry.version(second).tags["reason"] == "better"


def test_promoting_the_champion_again_changes_nothing(publisher):
    first, second = publisher.publish(), publisher.publish()
    for version in (first, second, second):
        publisher.registry.promote(version, reason="gate")
    assert publisher.registry.rollback(reason="fell") == first


def test_a_promotion_instead_of_a_champion_that_has_moved_changes_nothing(publisher):
    registry = publisher.registry
    first, second, third = (publisher.publish() for _ in range(3))
    registry.promote(first, reason="gate", instead_of=0)
    registry.promote(second, reason="gate", instead_of=first)
    assert registry.rollback(reason="fell") == first
    for judged_against in (0, second):
        with pytest.raises(ChampionMovedError, match=f"{judged_against} is not the champion any more, {first} is"):
            registry.promote(third, reason="gate", instead_of=judged_against)
    assert publisher.statuses() == {first: "champion", second: "rolled_back", third: "candidate"}
    registry.promote(third, reason="by hand")
    assert registry.champion() == third, "a person's word is unconditional"


def test_what_a_person_decided_is_moved_by_a_person_alone_until_it_is_unpinned(publisher):
    registry = publisher.registry
    first, second, third = (publisher.publish() for _ in range(3))
    registry.promote(first, reason="gate")
    registry.promote(second, reason="", by_hand=True)
    assert [version.version for version in AdapterRegistry(publisher.config).versions() if version.pinned] == [
        second
    ]
    with pytest.raises(ChampionPinnedError, match="version 2 is pinned by hand"):
        registry.promote(third, reason="gate", instead_of=second)
    with pytest.raises(ChampionPinnedError, match="version 2 is pinned by hand"):
        registry.rollback(reason="fell", version=second)
    assert registry.rollback(reason="bad at SQL", by_hand=True) == first
    assert registry.version(first).pinned
    assert registry.rollback(reason="", by_hand=True) == 0
    assert registry.is_pinned(), "that none serves is a decision too"
    with pytest.raises(ChampionPinnedError, match="serving without an adapter is pinned by hand"):
        registry.promote(third, reason="gate")
    registry.unpin()
    registry.unpin()
    registry.promote(third, reason="gate")
    assert (registry.champion(), registry.is_pinned()) == (third, False)


def test_what_a_person_says_is_kept_beside_what_the_gate_said(publisher):
    registry = publisher.registry
    first, second = publisher.publish(), publisher.publish()
    registry.promote(first, reason="gain 0.1")
    registry.reject(second, reason="gain too small")
    registry.promote(second, reason="good at SQL", by_hand=True)
    assert words(registry, second) == ("gain too small", "promoted: good at SQL")
    registry.rollback(reason="", by_hand=True)
    assert words(registry, second) == ("gain too small", "rolled back")
    assert words(registry, first) == ("gain 0.1", "returned to: version 2 was rolled back")


def words(registry, version):
    tags = registry.version(version).tags
    return tags["reason"], tags["by_hand"]


def test_a_pin_whose_writer_died_comes_to_nothing(publisher):
    registry = publisher.registry
    first, second = publisher.publish(), publisher.publish()
    registry.promote(first, reason="gate")
    publisher.registry._client.set_registered_model_tag(
        publisher.config.tracking.registered_model, PIN, str(second)
    )
    registry.promote(second, reason="gate")
    assert not registry.is_pinned()


def test_the_champion_can_be_pinned_where_it_is(publisher):
    version = publisher.publish()
    publisher.registry.promote(version, reason="gain 0.1")
    publisher.registry.promote(version, reason="", by_hand=True)
    assert publisher.registry.version(version).pinned
    publisher.registry.unpin()
    assert publisher.registry.rollback(reason="fell") == 0, "it is not its own predecessor"


def test_a_pin_holds_for_the_champion_that_it_was_written_for(publisher, monkeypatch):
    """The writer dies between the pin and the alias, or somebody moves the alias in MLflow's own pages."""
    registry = publisher.registry
    first, second = publisher.publish(), publisher.publish()
    registry.promote(first, reason="gate")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_registered_model_alias", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            registry.promote(second, reason="", by_hand=True)
    assert (registry.champion(), registry.is_pinned()) == (first, False)
    registry.promote(first, reason="", by_hand=True)
    publisher.client.set_registered_model_alias("hotdraft-draft", "champion", str(second))
    assert not registry.is_pinned()


def test_rejected_version_stops_being_the_candidate(publisher):
    version = publisher.publish()
    publisher.registry.reject(version, reason="gain too small")
    found = publisher.registry.version(version)
    assert (found.status, found.aliases, found.tags["reason"]) == ("rejected", [], "gain too small")
    assert publisher.registry.champion() == 0


def test_champion_cannot_be_rejected(publisher):
    version = publisher.publish()
    publisher.registry.promote(version, reason="gate")
    with pytest.raises(RegistryError, match="roll it back"):
        publisher.registry.reject(version, reason="no")
    assert publisher.registry.champion() == version


def test_rollback_passes_over_what_was_rolled_back(publisher):
    registry = publisher.registry
    first, second, third = (publisher.publish() for _ in range(3))
    registry.promote(first, reason="gate")
    registry.promote(second, reason="gate")
    assert registry.rollback(reason="fell") == first
    registry.promote(third, reason="gate")
    assert registry.rollback(reason="fell") == first
    assert publisher.statuses() == {first: "champion", second: "rolled_back", third: "rolled_back"}
    assert registry.rollback(reason="fell too") == 0
    assert registry.champion() == 0
    with pytest.raises(RegistryError, match="no champion"):
        registry.rollback(reason="again")


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_rollback_whose_reason_the_store_refuses_changes_nothing(publisher, by_hand):
    first, second = publisher.publish(), publisher.publish()
    publisher.registry.promote(first, reason="gate")
    publisher.registry.promote(second, reason="gate")
    with pytest.raises(MlflowException, match="exceeds the maximum length"):
        publisher.registry.rollback(reason="x" * 1_000_000, by_hand=by_hand)
    assert publisher.registry.champion() == second
    assert publisher.registry.refused() == set()
    assert not publisher.registry.is_pinned()


def test_rollback_ends_when_promotions_went_in_a_circle(publisher):
    registry = publisher.registry
    first, second = publisher.publish(), publisher.publish()
    for version in (first, second, first):
        registry.promote(version, reason="by hand")
    assert registry.rollback(reason="fell") == second
    assert registry.rollback(reason="fell") == 0


def test_a_version_that_was_promoted_again_hides_no_champion_before_it(publisher):
    registry, (three, five, seven) = publisher.registry, [publisher.publish() for _ in range(3)]
    for version in (three, five, seven, five):
        registry.promote(version, reason="by hand", by_hand=True)
    assert list(registry.champions_before(five)) == [seven, three]
    assert [registry.rollback(reason="fell", by_hand=True) for _ in range(3)] == [seven, three, 0]


def test_of_the_champions_that_a_version_followed_the_last_are_remembered(publisher, monkeypatch):
    """A tag holds so much: what is promoted again and again follows another each time."""
    monkeypatch.setattr(registry_module, "MAX_BEFORE", 2)
    registry, (one, two, three, again) = publisher.registry, [publisher.publish() for _ in range(4)]
    for version in (one, again, two, again, three, again):
        registry.promote(version, reason="gate")
    assert registry.version(again).tags["previous_champion"] == f"{three},{two}"
    assert list(registry.champions_before(again)) == [three, two]


def test_rollback_of_a_version_that_no_longer_serves_is_refused(publisher):
    first, second = publisher.publish(), publisher.publish()
    publisher.registry.promote(first, reason="gate")
    publisher.registry.promote(second, reason="gate")
    with pytest.raises(RegistryError, match=f"version {second} is"):
        publisher.registry.rollback(reason="late verdict", version=first)
    assert publisher.registry.champion() == second


class Killed(BaseException):
    pass


@contextmanager
def dying(registry, writes):
    """After so many changes of the store the writer dies."""
    left = writes

    def mortal(write):
        def call(*args, **kwargs):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return write(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("set_model_version_tag", "set_registered_model_alias", "delete_registered_model_alias"):
            patch.setattr(registry._client, name, mortal(getattr(registry._client, name)))
        yield


@pytest.mark.parametrize("writes", range(1, 7))
def test_a_crash_anywhere_in_a_promotion_leaves_a_champion_and_a_way_back(publisher, writes):
    """Then the promotion is tried again."""
    registry = publisher.registry
    first, second = publisher.publish(), publisher.publish()
    registry.promote(first, reason="gate")
    with dying(registry, writes):
        try:
            registry.promote(second, reason="better")
        except Killed:
            pass
        else:
            assert writes == 6, "the last case is the promotion that lives"
    statuses = publisher.statuses()
    champion = registry.champion()
    assert champion in (first, second)
    assert [version for version, status in statuses.items() if status == "champion"] == [champion]
    found = registry.version(champion)
    assert (found.aliases, found.tags["reason"]) == (["champion"], "gate" if champion == first else "better")
    registry.promote(second, reason="better")
    assert registry.champion() == second
    assert registry.rollback(reason="fell") == first


@pytest.mark.parametrize("writes", range(3))
def test_a_crash_within_a_refusal_leaves_a_candidate_to_be_refused(publisher, writes):
    version = publisher.publish()
    with dying(publisher.registry, writes), pytest.raises(Killed):
        publisher.registry.reject(version, reason="gain too small")
    assert publisher.registry.version(version).status == "candidate"
    publisher.registry.reject(version, reason="gain too small")
    found = publisher.registry.version(version)
    assert (found.status, found.aliases, found.tags["reason"]) == ("rejected", [], "gain too small")
