import io
import math

import pytest
from rich.console import Console

from hotdraft.training.experiment.figures import acceptance_rate, area_ratios, figures
from hotdraft.training.experiment.report import draw, show


def request(domain: str, accepted: int) -> dict:
    rounds = {"drafted": 10, "accepted": accepted, "rounds": 4, "tokens": 4 + accepted}
    return {"domain": domain, **rounds, "draft_version": 0}


def run(*served: dict, lost: float = 0.0) -> dict:
    domains = {r["domain"] for r in served}
    jobs = [{"accepted": True, "steps": 60.0, "seconds": 2.0}, {"accepted": False, "steps": 60.0, "seconds": 3.0}]
    return {
        "served": list(served),
        "jobs": jobs,
        "swaps": [],
        "probes_before": dict.fromkeys(domains, 0.5),
        "probes_after": dict.fromkeys(domains, 0.5 - lost),
    }


SHIFT = run(*[request("sums", 6)] * 10, *[request("sql", 1)] * 5, *[request("sql", 4)] * 5, lost=0.1)
MIXED = run(*[request("sums", 2), request("sql", 4)] * 5, *[request("sql", 6), request("sums", 4)] * 5)


def test_figures_of_a_shift_are_those_of_the_new_domain():
    run = {**SHIFT, "probes_after": {"sums": 0.4, "sql": 0.8}}
    found = figures(run)
    assert (found["first"], found["last"]) == pytest.approx((0.1, 0.4))
    assert (found["gain"], found["lost"]) == pytest.approx((0.3, 0.1))
    assert found["area"] == pytest.approx(0.425)
    assert found["tokens_per_round"] == pytest.approx(2)
    assert (found["jobs"], found["promoted"], found["steps"], found["seconds"]) == (2, 1, 120, 5)


REACHED = [{"probes": {"sums": 0.9, "sql": 0.7}}, {"probes": {"sums": 0.6, "sql": 0.9}}]


def swapped(*swaps: tuple[int, float, float]) -> dict:
    """`SHIFT` with versions that take service at a request, each with its rates on sums and sql."""
    served = [dict(request) for request in SHIFT["served"]]
    for version, (first, _, _) in enumerate(swaps, start=1):
        for request in served[first:]:
            request["draft_version"] = version
    told = [
        {"request": first, "version": version, "probes": {"sums": sums, "sql": sql}}
        for version, (first, sums, sql) in enumerate(swaps, start=1)
    ]
    return {**SHIFT, "served": served, "swaps": told, "probes_after": told[-1]["probes"]}


def test_a_gain_is_a_share_of_what_could_be_reached_and_is_served_from_some_request_on():
    run = swapped((4, 0.6, 0.52), (13, 0.5, 0.6), (16, 0.5, 0.75), (18, 0.45, 0.87))
    found = figures(run, REACHED)
    assert found["ceiling"] == pytest.approx(0.4)
    assert found["share"] == pytest.approx(0.37 / 0.4)
    assert (found["half"], found["recovered"]) == (6, 8), "requests of sql, which begins at the tenth"
    assert found["area_share"] == pytest.approx((60 + 5 + 20) / (100 * 0.6 + 100 * 0.9))
    assert found["forgotten"] == pytest.approx(0.15), "of 0.6, which it had once"
    assert found["worse"] == 1
    assert found["point_seconds"] == pytest.approx(5 / 37)
    assert figures(swapped((12, 0.5, 0.8)), REACHED)["recovered"] == math.inf
    little = {**MIXED, "swaps": [], "probes_after": MIXED["probes_before"]}
    found = figures(little, [{"probes": {"sums": 0.54, "sql": 0.5}}])
    assert math.isnan(found["half"]), "there was little to learn"


def test_what_could_be_reached_is_told_in_80_columns():
    out = io.StringIO()
    run = swapped((13, 0.5, 0.75))
    show(Console(file=out, width=80), {"an-update-every-8-requests": [run]}, {"an-update-every-8-requests": 0.5},
         None, {"a": REACHED[:1], "b": REACHED[1:]})  # fmt: skip
    lines = out.getvalue().splitlines()
    assert "Of a gain of +0.400 that could be reached: requests until it is served" in lines
    assert max(map(len, lines)) <= 80
    told = ["an-update-every-8-requests", "3", "inf", "0.62", "0.57", "0.000", "0", "0"]
    assert told in [line.split() for line in lines]


def test_figures_of_mixed_domains_are_those_of_the_whole_stream():
    found = figures({**MIXED, "probes_after": {"sums": 0.6, "sql": 0.8}})
    assert (found["first"], found["last"]) == pytest.approx((0.3, 0.5))
    assert (found["gain"], found["lost"]) == pytest.approx((0.2, 0))


def test_areas_are_compared_seed_by_seed():
    better = run(*[request("sql", 6)] * 20)
    results = {"paper": [SHIFT, SHIFT], "ours": [better, SHIFT]}
    assert area_ratios(results, "paper") == {"ours": pytest.approx([0.6 / 0.425, 1.0])}
    assert area_ratios(results, None) == area_ratios({"ours": [SHIFT]}, "paper") == {}


def test_nothing_drafted_is_no_acceptance():
    assert acceptance_rate([{"drafted": 0, "accepted": 0}]) == 0


def test_the_tables_fit_80_columns():
    out = io.StringIO()
    long = {**SHIFT, "jobs": [{"accepted": True, "steps": 12_000.0, "seconds": 40_000.0}] * 100}
    results = {"paper": [SHIFT, MIXED], "ours": [SHIFT, SHIFT], "an-update-every-8-requests": [long, long]}
    show(
        Console(file=out, width=80),
        results,
        {"paper": 0.5, "ours": 0.4, "an-update-every-8-requests": 1e-4},
        "paper",
    )
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line]
    rows = [line.split() for line in lines]
    assert ["policy", "fifth", "fifth", "stream", "unseen", "earlier"] in rows
    assert ["ours", "0.100", "0.400", "0.425", "-0.100", "+0.100"] in rows
    assert ["±", "0.000"] * 5 in rows
    assert ["policy", "at", "last", "promoted", "jobs", "steps", "s"] in rows
    assert ["ours", "5.0", "1", "2", "120", "5"] in rows, "2 tokens a round of 0.4 s"
    assert ["an-update-every-8-requests", "20000.0", "100", "100", "1200000", "4000000"] in rows
    assert "ours: 1.03 times the area under the acceptance curve of paper (1.00, 1.06)" in lines


def test_the_chart(tmp_path):
    for name, result in (("shift", SHIFT), ("mixed", MIXED)):
        draw({"ours": [result, result]}, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
