"""A gain that could not be shown yet, and what the next job makes of it."""

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig, merged
from hotdraft.pipeline.loop.job_record import Burst
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.online.job import run_job
from tests.unit.training.online.jobs import with_distill

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture
def strict(config):
    """Whose gate takes nothing."""
    return config.model_copy(update={"gate": config.gate.model_copy(update={"min_gain": 0.9})})


def test_a_gain_that_could_not_be_shown_is_built_upon_until_it_is_lost_or_another_version_serves(strict, buffer):
    still = with_distill(strict, learning_rate=1e-12)
    registry = AdapterRegistry(strict)

    def reached(settings, steps):
        result = run_job(settings, buffer=buffer, registry=registry, burst=Burst(steps, 256))
        assert not result.verdict.accepted
        assert result.metrics["steps"] == steps
        return result.metrics["candidate_expected_acceptance"]

    first = reached(strict, 15)
    assert reached(still, 1) == pytest.approx(first, abs=1e-4), "it begins where the first ended"
    second = reached(strict, 15)
    assert second > first
    assert registry.champion() == 0, "none of it was served"

    harmful = strict.model_copy(update={"gate": strict.gate.model_copy(update={"max_domain_loss": 0.0})})
    damaged = reached(with_distill(harmful, learning_rate=5.0), 5)
    assert damaged < second
    bare = run_job(still, buffer=buffer, registry=registry, burst=Burst(1, 256)).metrics
    assert bare["candidate_expected_acceptance"] == pytest.approx(bare["champion_expected_acceptance"], abs=1e-4)

    kept = reached(strict, 15)
    registry.promote(3, reason="by hand")
    after = run_job(still, buffer=buffer, registry=registry, burst=Burst(1, 256)).metrics
    assert after["candidate_expected_acceptance"] == pytest.approx(after["champion_expected_acceptance"], abs=1e-4)
    assert after["candidate_expected_acceptance"] != pytest.approx(kept, abs=1e-3)


@pytest.mark.parametrize("change", [{"replay": {"held_out_fraction": 0.6}}, {"target": "other"}], ids=str)
def test_a_job_that_may_be_judged_by_what_the_last_one_learned_does_not_go_on_from_it(strict, buffer, change):
    registry = AdapterRegistry(strict)
    left = run_job(strict, buffer=buffer, registry=registry, burst=Burst(15, 256))
    assert left.verdict.is_promising
    changed = HotdraftConfig(**merged(strict.model_dump(mode="json"), change))
    still = with_distill(changed, learning_rate=1e-12)
    begun = run_job(still, buffer=buffer, registry=registry, burst=Burst(1, 256)).metrics
    assert begun["candidate_expected_acceptance"] == pytest.approx(begun["champion_expected_acceptance"], abs=1e-4)
