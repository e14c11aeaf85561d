"""What is chosen for a round is the fastest of all that it may be, by how its rows are computed."""

from itertools import product

import numpy as np
import pytest

from hotdraft.serving.decoding.choice import ProposalChoice
from hotdraft.serving.decoding.costs import RoundCosts
from hotdraft.serving.decoding.learned_costs import RoundSetting
from hotdraft.serving.decoding.outlook import Outlook
from hotdraft.serving.decoding.round_time import PaddedTime, RaggedTime, RoundTime
from hotdraft.serving.decoding.rounds import RoundSeconds

ROWS, GUESSED, DRAFTED = 3, 4, 3
STEPS = np.array([0.0, 0.3, 0.5, 0.7])
VERIFYING = np.array([4.0, 4.1, 4.3, 4.4, 6.0, 6.1, 6.2, 9.0])


def yields(seed: int) -> np.ndarray:
    """Tokens [B, M+1, K+1] of rows that accept anything between nothing and all; some combinations they may not."""
    generator = np.random.default_rng(seed)
    tokens = np.full((ROWS, GUESSED + 1, DRAFTED + 1), -np.inf)
    for row in range(ROWS):
        guesses = generator.uniform(0, 1, generator.integers(0, GUESSED + 1)).cumprod()
        drafts = generator.uniform(0, 1, DRAFTED).cumprod()
        for m in range(len(guesses) + 1):
            for j in range(DRAFTED + 1 if row or m < 2 else 1):
                reached = guesses[m - 1] if m else 1.0
                tokens[row, m, j] = 1 + guesses[:m].sum() + reached * drafts[:j].sum()
    return tokens


def fastest(tokens: np.ndarray, time: RoundTime) -> float:
    """Of all plans there are."""
    everybody, best = np.arange(ROWS), 0.0
    for plan in product(product(range(GUESSED + 1), range(DRAFTED + 1)), repeat=ROWS):
        guessed, drafted = np.array(plan).T
        best = max(best, tokens[everybody, guessed, drafted].sum() / time.seconds(guessed, drafted))
    return best


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["padded", "ragged"])
def test_it_is_the_fastest_of_all_there_are(how: str, seed: int) -> None:
    tokens = yields(seed)
    time: RoundTime = PaddedTime(VERIFYING, STEPS, GUESSED)
    if how == "ragged":
        time = RaggedTime(VERIFYING, STEPS, ROWS, 0.6, GUESSED)
    guessed, drafted, speed, _ = time.best(tokens, 0.1)
    found = tokens[np.arange(ROWS), guessed, drafted].sum() / time.seconds(guessed, drafted)
    assert found == pytest.approx(speed, rel=2e-3)
    assert found >= fastest(tokens, time) * (1 - 2e-3)


def test_nothing_is_proposed_where_nothing_is_faster() -> None:
    for time in (PaddedTime(VERIFYING, STEPS, GUESSED), RaggedTime(VERIFYING, STEPS, ROWS, 0.6, GUESSED)):
        guessed, drafted, speed, _ = time.best(yields(0), 100.0)
        assert (any(guessed), any(drafted), speed) == (False, False, 100.0)


def test_padded_rows_all_take_as_long_as_the_longest() -> None:
    time = PaddedTime(VERIFYING, STEPS, GUESSED)
    assert time.seconds(np.array([0, 4, 1]), np.array([3, 0, 1])) == VERIFYING[4] + STEPS[3]


@pytest.mark.parametrize("padded", [True, False])
def test_a_row_with_much_to_guess_has_others_read_as_much_only_where_that_is_free(padded: bool) -> None:
    """Of 32 rows one has a sure guess of 24 tokens, for which a padded round takes four times as long."""
    costs = RoundCosts({32: [5.0 + 0.1 * tokens + 0.6 * max(0, tokens - 4) for tokens in range(25)]}, {32: 0.3})
    choice = ProposalChoice(costs, 4, padded=padded)
    rows = [Outlook(np.empty(0), np.full(4, 0.7), 28)] * 31 + [Outlook(np.full(24, 0.99), np.full(4, 0.7), 28)]
    chosen = choice.choose(rows)
    assert chosen.guessed[:31] == [0] * 31
    assert (chosen.guessed[31] + chosen.drafted[31] > 10) is not padded
    assert min(chosen.drafted[:31]) > 0


def test_of_padded_rounds_the_longest_row_teaches_the_cost() -> None:
    costs = RoundCosts({2: [1.0] * 5}, {2: 0.1})
    choice, setting = ProposalChoice(costs, 2, padded=True), RoundSetting(2)
    for _ in range(200):
        choice.observe(setting, [0, 0], [0, 0], RoundSeconds(None, 1.0))
        choice.observe(setting, [0, 4], [0, 0], RoundSeconds(None, 2.0))
    verifying = choice._learned.expected(setting).verifying
    assert verifying[4] / verifying[0] == pytest.approx(2, rel=0.1)
