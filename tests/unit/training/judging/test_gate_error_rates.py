"""How often the gate errs, over lineages of 20 jobs; docs/learning.md has the table."""

from dataclasses import replace

import numpy as np
import pytest

from tests.scenarios.gate_simulation import Setting, lineages, promoted_by_chance

pytestmark = pytest.mark.slow

FALSE_ACCEPT = 0.05
LOSS = 0.05 - 1e-9
LOSING = Setting(gain=0.2)


def share_lost(setting: Setting, count: int = 40) -> float:
    """Of lineages in which a version came to serve that lost 0.05 or more against the best."""
    return np.mean([found.lost >= LOSS for found in lineages(setting, count)])


def share_accepted(setting: Setting, count: int = 200) -> float:
    """Of candidates, each the first of its lineage."""
    return np.mean([found.accepted for found in lineages(setting, count, jobs=1)])


@pytest.mark.parametrize("domains", [1, 4, 8, 16, 32])
@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_older_domains_do_not_lose_whether_at_once_or_bit_by_bit(domains, loss):
    assert share_lost(replace(LOSING, domains=domains, loss=loss)) <= FALSE_ACCEPT


@pytest.mark.parametrize("older", [24, 48])
def test_with_fewer_prompts_than_tell_a_loss_of_a_twentieth_losses_still_do_not_add_up(older):
    for loss in (0.01, 0.05):
        found = [lineage.lost for lineage in lineages(replace(LOSING, older=older, domains=8, loss=loss), 40)]
        assert np.mean(np.array(found) > 0.11) <= FALSE_ACCEPT


@pytest.mark.parametrize("domains", [4, 8, 16, 32])
def test_a_great_loss_of_all_domains_is_seen_however_few_prompts_each_has(domains):
    """The gate before this one accepted 22 %, 94 % and 99 % of these at 4, 8 and 16 domains."""
    found = lineages(Setting(older=24, domains=domains, loss=0.3, gain=0.2), 60, jobs=1)
    assert sum(lineage.accepted for lineage in found) == 0


@pytest.mark.parametrize("today", [5, 10, 20, 48])
@pytest.mark.parametrize("blends", [1, 2, 4])
def test_candidates_that_gain_nothing_are_hardly_ever_accepted_over_a_lineage(today, blends):
    setting = Setting(today=today, older=24, blends=blends, gain=0.0)
    assert np.mean([found.accepted > 0 for found in lineages(setting, 60)]) <= FALSE_ACCEPT + 0.025, "and chance"


@pytest.mark.parametrize("today", [5, 12, 20])
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_answers_of_few_tokens_are_accepted_by_chance_no_more_than_others(tokens, today):
    """One in twenty lineages of 20 jobs with two candidates each is to have one: 0.125 % of the candidates.

    As long answers are judged, 0.25 % to 2.1 % of these were accepted.
    """
    assert promoted_by_chance(tokens, today, 8000) <= 0.003


@pytest.mark.parametrize("domains", [1, 4, 8, 16, 32])
def test_a_good_version_is_rarely_refused(domains):
    assert share_accepted(Setting(domains=domains)) >= 0.9
    assert share_accepted(Setting(domains=domains, older=24, blends=1)) >= 0.85
