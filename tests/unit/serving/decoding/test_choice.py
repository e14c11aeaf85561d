"""What is chosen, against what arithmetic says is best, for traffic of known acceptance and costs."""

from itertools import product

import numpy as np
import pytest

from hotdraft.serving.decoding.choice import ALONE, Choice, ProposalChoice
from hotdraft.serving.decoding.costs import RoundCosts
from hotdraft.serving.decoding.outlook import Outlook
from hotdraft.serving.proposers.acceptance import AcceptanceEstimate, TrafficEstimate, by_position

MAX_K = 4
NO_GUESS = np.empty(0)


def linear_costs(draft_step: float, verified_token: float = 0.02, most: int = MAX_K) -> RoundCosts:
    """A plain round of one row takes 1 second; every drafted token adds its drafting and its verification."""
    verifying = {
        rows: [1 + 0.1 * (rows - 1) + t * verified_token * (1 + 0.2 * (rows - 1)) for t in range(most + 1)]
        for rows in (1, 8)
    }
    return RoundCosts(verifying, {1: draft_step, 8: draft_step * 2.4})


def seconds(costs: RoundCosts, choice: Choice) -> float:
    """Of a round: each step of the draft is of the rows that still draft."""
    rows = len(choice.drafted)
    proposed = (sum(choice.guessed) + sum(choice.drafted)) / rows
    verifying = np.interp(proposed, range(costs.most + 1), costs.verify_seconds(rows))
    active = [sum(count > step for count in choice.drafted) for step in range(max(choice.drafted))]
    return float(verifying) + sum(costs.draft_step_seconds(count) for count in active)


def mean_tokens(row: Outlook, guessed: int, drafted: int) -> float:
    chances = [*row.guessed[:guessed], *row.drafted[:drafted]]
    return 1 + float(np.cumprod(chances).sum()) if chances else 1.0


def outlook(acceptance: float, guessed: np.ndarray = NO_GUESS, most: int = 99) -> Outlook:
    return Outlook(guessed, np.full(MAX_K, acceptance), most)


def speed(costs: RoundCosts, rows: list[Outlook], choice: Choice) -> float:
    """Tokens a second of all rows."""
    tokens = sum(mean_tokens(*each) for each in zip(rows, choice.guessed, choice.drafted, strict=True))
    return tokens / seconds(costs, choice)


def fixed(rows: int, k: int) -> Choice:
    return Choice([0] * rows, [k] * rows)


def speeds(costs: RoundCosts, acceptance: float, rows: int) -> list[float]:
    """By fixed k."""
    return [speed(costs, [outlook(acceptance)] * rows, fixed(rows, k)) for k in range(MAX_K + 1)]


class Traffic:
    """Requests of 100 tokens, `rows` at once, answered with what is chosen."""

    def __init__(self, costs: RoundCosts, rows: int = 1, seed: int = 0) -> None:
        self.costs, self.rows = costs, rows
        self.choice = ProposalChoice(costs, MAX_K)
        self._everything = AcceptanceEstimate(by_position(MAX_K))
        self._requests: list[tuple[AcceptanceEstimate, int]] = []
        self._random = np.random.default_rng(seed)

    def run(self, rounds: int, acceptance: float) -> float:
        """Tokens a second."""
        spent = tokens = 0.0
        for _ in range(rounds):
            while len(self._requests) < self.rows:
                self._requests.append((AcceptanceEstimate(self._everything), 100))
            rows = [Outlook(NO_GUESS, estimate.rates(), left - 1) for estimate, left in self._requests]
            chosen = self.choice.choose(rows)
            going_on = []
            for (estimate, left), k in zip(self._requests, chosen.drafted, strict=True):
                rejected = np.flatnonzero(self._random.random(k) >= acceptance)
                accepted = int(rejected[0]) if len(rejected) else k
                estimate.observe(range(k), accepted)
                going_on.append((estimate, left - accepted - 1))
            self._requests = [(estimate, left) for estimate, left in going_on if left > 0]
            spent += seconds(self.costs, chosen)
            # what it brings on average: luck is not the chooser's
            tokens += sum(mean_tokens(outlook(acceptance), 0, k) for k in chosen.drafted)
        return tokens / spent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("acceptance", "draft_step", "rows"),
    [
        (0.0, 0.2, 1),
        (0.0, 0.02, 1),
        (0.1, 0.2, 1),
        (0.3, 0.1, 1),
        (0.5, 0.2, 1),
        (0.7, 0.2, 1),
        (0.95, 0.2, 1),
        (0.6, 0.6, 1),
        (0.0, 0.02, 8),
        (0.7, 0.1, 8),
    ],
)
def test_close_to_the_best_fixed_k(acceptance: float, draft_step: float, rows: int) -> None:
    costs = linear_costs(draft_step)
    assert Traffic(costs, rows).run(5000, acceptance) > 0.97 * max(speeds(costs, acceptance, rows))


@pytest.mark.parametrize("guessed", [NO_GUESS, np.array([0.6, 0.4])])
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
def test_it_says_what_time_the_draft_saves(acceptance: float, guessed: np.ndarray) -> None:
    """The tokens that it brings more, by what a token takes without it, less what its round takes longer."""
    costs, row = linear_costs(0.1), outlook(acceptance, guessed)
    choice = ProposalChoice(costs, MAX_K).choose([row])
    assert choice.saved is not None
    if not choice.drafted[0]:
        assert choice.saved == [0.0]
        return
    without = max((Choice([n], [0]) for n in range(len(guessed) + 1)), key=lambda one: speed(costs, [row], one))
    more = mean_tokens(row, choice.guessed[0], choice.drafted[0]) - mean_tokens(row, without.guessed[0], 0)
    longer = seconds(costs, choice) - seconds(costs, without)
    assert choice.saved[0] == pytest.approx(more / speed(costs, [row], without) - longer, abs=0.02)


def test_where_text_guesses_well_otherwise_a_draft_saves_less() -> None:
    costs, poor, good = linear_costs(0.1), outlook(0.8), outlook(0.0, np.full(4, 0.98))
    alone, among = ProposalChoice(costs, MAX_K), ProposalChoice(costs, MAX_K)
    for _ in range(20):
        among.choose([good])
    saved = [choice.choose([poor]).saved for choice in (alone, among)]
    assert saved[0] is not None
    assert saved[1] is not None
    assert saved[1][0] < 0.5 * saved[0][0]


@pytest.mark.parametrize("rows", [1, 8])
def test_recovers_when_acceptance_jumps(rows: int) -> None:
    costs = linear_costs(0.2)
    traffic = Traffic(costs, rows)
    traffic.run(2000, 0.0)
    traffic.run(300, 0.8)
    assert traffic.run(1000, 0.8) > 0.97 * max(speeds(costs, 0.8, rows))


@pytest.mark.parametrize("draft_step", [0.05, 0.2])
def test_gives_up_when_acceptance_falls_however_long_it_was_good(draft_step: float) -> None:
    costs = linear_costs(draft_step)
    traffic = Traffic(costs)
    traffic.run(5000, 0.95)
    traffic.run(200, 0.0)
    assert traffic.run(1000, 0.0) > 0.97 * max(speeds(costs, 0.0, 1))


@pytest.mark.parametrize(
    ("acceptance", "draft_step", "best"),
    [(0.02, 0.2, 0), (0.5, 0.35, 1), (0.5, 0.1, 2), (0.7, 0.2, 3), (0.9, 0.1, 4)],
)
def test_chooses_the_best_k_and_now_and_then_one_more(acceptance: float, draft_step: float, best: int) -> None:
    costs, row = linear_costs(draft_step), outlook(acceptance)
    assert best == int(np.argmax(speeds(costs, acceptance, 1)))
    choice = ProposalChoice(costs, MAX_K)
    chosen = [choice.choose([row]) for _ in range(1000)]
    assert {each.drafted[0] for each in chosen} == {best, min(best + 1, MAX_K)}
    # exploration keeps to its share of the time
    took = sum(seconds(costs, each) for each in chosen)
    needed = sum(mean_tokens(row, 0, each.drafted[0]) for each in chosen) / speed(costs, [row], fixed(1, best))
    assert took - needed <= 0.03 * took


def test_rows_choose_for_themselves() -> None:
    costs = linear_costs(0.1, verified_token=0.1)
    rows = [outlook(0.9), outlook(0.0)] * 4
    chosen = ProposalChoice(costs, MAX_K).choose(rows)
    assert set(chosen.drafted[1::2]) == {0}
    assert min(chosen.drafted[::2]) > 0
    assert speed(costs, rows, chosen) > 1.05 * max(speed(costs, rows, fixed(8, k)) for k in range(MAX_K + 1))


@pytest.mark.parametrize("most", [0, 1, 2, 19])
def test_never_proposes_what_the_request_may_not_take(most: int) -> None:
    choice, row = ProposalChoice(linear_costs(0.01), MAX_K), outlook(0.99, np.full(1, 0.99), most)
    chosen = [choice.choose([row]) for _ in range(300)]
    assert {each.guessed[0] + each.drafted[0] for each in chosen} == {min(most, MAX_K)}


def test_a_sure_guess_saves_the_draft_its_work_and_a_poor_one_is_left() -> None:
    costs = linear_costs(0.2, most=8)
    choice = ProposalChoice(costs, MAX_K)
    assert choice.choose([outlook(0.6, np.full(8, 0.95))])[:2] == Choice([8], [0])[:2]
    assert choice.choose([outlook(0.9, np.full(8, 0.1))]).guessed == [0]
    assert choice.choose([outlook(0.0, np.full(8, 0.01))])[:2] == Choice([0], [0])[:2]
    # a draft that costs nearly nothing goes on where the guess ends
    cheap = ProposalChoice(linear_costs(0.01, most=8), MAX_K)
    assert cheap.choose([outlook(0.8, np.full(2, 0.95))])[:2] == Choice([2], [4])[:2]


@pytest.mark.parametrize("seed", range(12))
def test_nothing_that_could_be_chosen_is_much_faster(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 4))
    costs = linear_costs(float(random.uniform(0.02, 0.4)), float(random.uniform(0.0, 0.2)), most=6)
    rows = [
        Outlook(random.uniform(0.2, 1, int(random.integers(0, 4))), np.sort(random.uniform(0, 1, 2))[::-1], 99)
        for _ in range(count)
    ]
    by_row = [list(product(range(len(row.guessed) + 1), range(3))) for row in rows]
    every = [Choice(*map(list, zip(*plan, strict=True))) for plan in product(*by_row)]
    best = max(speed(costs, rows, each) for each in every)
    choice = ProposalChoice(costs, 2)
    assert speed(costs, rows, choice.choose(rows)) > 0.97 * best


def test_what_follows_a_rejection_is_not_judged() -> None:
    estimate = AcceptanceEstimate(by_position(MAX_K))
    untouched = estimate.rates()
    estimate.observe(range(4), 1)
    rates = estimate.rates()
    assert rates[0] > untouched[0]
    assert rates[1] < untouched[1]
    assert rates[2:].tolist() == untouched[2:].tolist()
    estimate.observe((), 0)
    assert estimate.rates().tolist() == rates.tolist(), "a plain round says nothing"


def test_rates_come_near_the_truth() -> None:
    truth = np.array([0.9, 0.6, 0.3, 0.8])
    everything = AcceptanceEstimate(by_position(MAX_K))
    random, seen = np.random.default_rng(0), []
    for _ in range(3000):
        everything.observe(range(MAX_K), int((random.random(MAX_K) < truth).cumprod().sum()))
        seen.append(everything.rates())
    assert np.mean(seen[200:], axis=0) == pytest.approx(truth, abs=0.07)


def test_a_request_begins_with_what_all_traffic_taught() -> None:
    everything = AcceptanceEstimate(by_position(MAX_K))
    first = AcceptanceEstimate(everything)
    for _ in range(200):
        first.observe(range(4), 4)
    assert everything.rates().min() > 0.9
    second = AcceptanceEstimate(everything)
    assert second.rates().tolist() == everything.rates().tolist()
    for _ in range(20):
        second.observe(range(4), 0)
    assert second.rates()[0] < first.rates()[0], "and then learns for itself"


def test_a_request_begins_as_others_of_its_domain_do() -> None:
    traffic = TrafficEstimate(by_position(MAX_K))
    for _ in range(40):
        traffic.of_request("easy").observe(range(MAX_K), MAX_K)
        traffic.of_request("hard").observe(range(MAX_K), 0)
    easy, unknown, hard = (traffic.of_request(domain).rates()[0] for domain in ("easy", "new", "hard"))
    assert easy > 0.85
    assert hard < 0.2
    assert hard < unknown < easy, "one of another begins as all traffic"


def test_a_draft_need_not_go_on_where_that_costs_more_than_it_brings() -> None:
    costs = linear_costs(0.1, 0.02, most=8)
    sure, unsure = (ProposalChoice(costs, MAX_K).choose([outlook(rate)]) for rate in (0.9, 0.45))
    assert sure.floors is not None
    assert unsure.floors is not None
    # one more token costs 0.12 of a plain round and brings its rate of acceptance, at the speed that is reached
    best = speed(costs, [outlook(0.9)], Choice([0], [4]))
    assert sure.floors[0] == pytest.approx(0.12 * best / 0.9, rel=0.01)
    assert unsure.floors[0] < 1
    behind = ProposalChoice(costs, MAX_K).choose([outlook(0.9, np.full(2, 0.9))])
    assert behind.guessed == [2]
    assert behind.floors is not None
    assert behind.floors[0] > sure.floors[0], "what stands behind guesses is reached less often"


def test_where_the_draft_is_to_propose_alone_it_does_and_takes_no_more_than_its_share_of_the_time() -> None:
    costs = linear_costs(0.2, most=8)
    choice = ProposalChoice(costs, MAX_K)
    row = outlook(0.3, np.full(8, 0.95))
    took, lost, requests = 0.0, 0.0, []
    for _ in range(200):
        requests.append(choice.can_draft_alone)
        for _ in range(10):
            chosen = choice.choose([row._replace(draft_alone=requests[-1])])
            assert not requests[-1] or (chosen.guessed == [0] and chosen.drafted[0] > 0)
            spent, tokens = seconds(costs, chosen), mean_tokens(row, chosen.guessed[0], chosen.drafted[0])
            took += spent
            lost += spent - tokens / speed(costs, [row], Choice([8], [0]))
    assert 0.01 < sum(requests) / len(requests) < 0.3
    assert lost < 1.2 * ALONE * took


@pytest.mark.parametrize(("verified_token", "expected"), [(0.0, 4), (0.05, 1), (0.3, 0)])
def test_as_many_second_choices_as_pay(verified_token: float, expected: int) -> None:
    """Each costs the target's reading alone."""
    costs = linear_costs(0.1, verified_token, most=2 * MAX_K)
    row = Outlook(NO_GUESS, np.full(MAX_K, 0.6), 99, alternatives=np.array([0.12, 0.03, 0.02, 0.01]))
    choice = ProposalChoice(costs, MAX_K).choose([row])
    assert (choice.alternatives or [0]) == [expected]


def test_what_a_round_could_read_beside_drafted_tokens_ends_no_draft() -> None:
    """Where reading many is dear, and as many as the draft proposes are not."""
    reading = [1 + 0.02 * tokens for tokens in range(MAX_K + 1)]
    floors = [
        ProposalChoice(RoundCosts({1: reading + dear}, {1: 0.1}), MAX_K, MAX_K).choose([outlook(0.7)]).floors
        for dear in ([], [2.0, 3.0, 4.0, 5.0])
    ]
    assert floors[0] == floors[1]


def test_where_nothing_is_drafted_there_are_no_second_choices() -> None:
    row = Outlook(np.array([0.9]), np.full(MAX_K, 0.0), 99, alternatives=np.array([0.9]))
    assert ProposalChoice(linear_costs(0.5, 0.0), MAX_K).choose([row]).alternatives is None


def test_one_more_second_choice_than_is_best_is_tried_now_and_then() -> None:
    """Else nothing would ever be learnt again where they were seen to be worth little."""
    choice = ProposalChoice(linear_costs(0.1, 0.05, most=2 * MAX_K), MAX_K)
    row = Outlook(NO_GUESS, np.full(MAX_K, 0.6), 99, alternatives=np.full(4, 0.01))
    read = [sum(choice.choose([row]).alternatives or [0]) for _ in range(400)]
    assert set(read) == {0, 1}
    assert 0.03 < np.mean(read) < 0.5
