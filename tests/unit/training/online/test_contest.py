"""Which of a job's candidates is the best, what each is held against, and what its version is told to be."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.training.judging.anchors import TAG
from hotdraft.training.judging.gate import Verdict, refused
from hotdraft.training.online import contest as module
from hotdraft.training.online.contest import contest
from hotdraft.training.online.publish import Judged

BEFORE = Judged(refused("", 8), {"steps": 40.0}, {"parent": "7"}, None, 0.0)
DOMAINS = ["math"] * 12 + ["sql"] * 12
CHAMPION = np.repeat([0.5, 0.4], 12)
OF_VERSIONS = {3: np.repeat([0.1, 0.6], 12)}
"""What a version did that had been better at one domain."""


class Registry:
    def champion(self) -> int:
        return 7

    def version(self, version: int) -> SimpleNamespace:
        return SimpleNamespace(tags={TAG: json.dumps({"3": ["sql"], "itself": ["math"], "5": ["gone"]})})


class Scores:
    def of_champion(self, version: int) -> np.ndarray:
        assert version == 7
        return CHAMPION

    def of_best(self, version: int, rows: np.ndarray) -> np.ndarray | None:
        return CHAMPION if version == 7 else OF_VERSIONS.get(version)


def verdict(accepted: bool, gain: float, *, loses: bool = False) -> Verdict:
    return Verdict(accepted, "so it is", 24, gain, gain - 0.1, gain + 0.1, {}, loses)


@pytest.fixture
def contested(monkeypatch):
    """Contests candidates, each a verdict by its blend; gives what came of it and what each was held against."""

    def hold(verdicts, blends=None, candidate=CHAMPION):
        asked = []
        candidates = {blend: candidate + 0 * blend for blend in verdicts}
        verdict_of = {id(scores): verdicts[blend] for blend, scores in candidates.items()}

        def judge(champion, scores, domains, gate, mix, *, best_scores, tokens, offered):
            asked.append((best_scores.tolist(), tokens.tolist(), offered))
            return verdict_of[id(scores)]

        monkeypatch.setattr(module, "judge", judge)
        samples = [SimpleNamespace(domain=name, output_ids=[1] * 9) for name in DOMAINS]
        evidence = SimpleNamespace(samples=samples, candidates=candidates, mix={}, offered=3)
        config = HotdraftConfig(target="t")
        return contest(BEFORE, evidence, Scores(), Path("job"), Registry(), config, blends), asked

    return hold


@pytest.mark.parametrize(
    ("verdicts", "best"),
    [
        ({1.0: verdict(True, 0.1), 0.5: verdict(True, 0.2)}, 0.5),
        ({1.0: verdict(False, 0.3), 0.5: verdict(True, 0.1)}, 0.5),
        ({1.0: verdict(False, 0.3, loses=True), 0.5: verdict(False, 0.1)}, 0.5),
        ({1.0: verdict(False, 0.3, loses=True), 0.5: verdict(False, 0.1, loses=True)}, 1.0),
    ],
    ids=["the gain", "before it what passed", "before it what loses nothing", "where all lose the gain"],
)
def test_the_best_candidate_is_told_by(contested, verdicts, best):
    judged, asked = contested(verdicts)
    assert (judged.verdict, judged.metrics["blend"]) == (verdicts[best], best)
    assert judged.folder == Path("job") / f"adapter-{best:g}"
    assert len(asked) == 2


def test_where_one_is_published_no_other_is_looked_at(contested):
    judged, asked = contested({1.0: verdict(True, 0.2), 0.5: verdict(False, 0.1)}, blends=[0.5])
    assert (judged.verdict.accepted, judged.metrics["blend"], len(asked)) == (False, 0.5, 1)


def test_a_domain_is_held_against_its_best_version_and_where_that_cannot_be_had_against_the_champion(
    contested, monkeypatch
):
    _, [asked] = contested({1.0: verdict(True, 0.2)})
    assert asked == ([0.5] * 12 + [0.6] * 12, [9] * 24, 3)
    monkeypatch.setattr(Scores, "of_best", lambda *_: None)
    _, [asked] = contested({1.0: verdict(True, 0.2)})
    assert asked[0] == CHAMPION.tolist()


def test_a_version_tells_what_it_was_judged_against_and_where_it_is_the_best_itself(contested):
    judged, _ = contested({1.0: verdict(True, 0.2)}, candidate=np.repeat([0.5, 0.99], 12))
    assert judged.champion == 7
    assert judged.metrics == {
        "steps": 40.0, "champion_expected_acceptance": pytest.approx(0.45), "blend": 1.0,
        "candidate_expected_acceptance": pytest.approx(0.745), "gain": 0.2,
        "gain_low": pytest.approx(0.1), "gain_high": pytest.approx(0.3),
    }  # fmt: skip
    tags = judged.tags
    assert (tags["parent"], tags["judged_against"], tags["held_out_requests"]) == ("7", "7", "24")
    assert tags["gain"] == "0.200000"
    assert json.loads(tags[TAG]) == {"7": ["math"], "itself": ["sql"], "5": ["gone"]}
    assert json.loads(tags["gate_by_domain"])["sql"] == {"requests": 12, "champion": 0.4, "candidate": 0.99}
