import pytest

from hotdraft.pipeline.store.served import MAX_DOMAINS_IN_TAG, TAG, DomainCounts, Served, served, served_by_run


def counts(requests: int, until: float, domain: str = "sql") -> Served:
    by_domain = {domain: DomainCounts(requests, 8 * requests, 6 * requests)}
    return Served(requests, 10 * requests, 8 * requests, 6 * requests, until - 5, until, by_domain)


def test_runs_of_one_version_add_up_and_the_latest_comes_first():
    tags = {"parent": "0", TAG + "a": counts(2, 100).to_tag(), TAG + "b": counts(3, 200, "math").to_tag()}
    assert list(served_by_run(tags)) == ["b", "a"]
    total = served(tags)
    assert total == Served(
        5, 50, 40, 30, 95, 200, {"math": DomainCounts(3, 24, 18), "sql": DomainCounts(2, 16, 12)}
    )
    assert total.acceptance_rate == pytest.approx(0.6)
    assert total.acceptance_of_examined == pytest.approx(0.75)


def test_a_version_that_never_served_has_no_result_and_one_that_never_drafted_no_rate():
    assert served({"parent": "0"}) is None
    total = served({TAG + "a": Served(1, until=1.0).to_tag()})
    assert (total.requests, total.acceptance_rate, total.acceptance_of_examined) == (1, None, None)


def test_a_tag_holds_no_more_domains_than_databases_take():
    many = sum((counts(1 + i, 10, f"{i:03}" + 97 * "x") for i in range(60)), Served())
    tag = many.to_tag()
    assert len(tag) < 5000
    kept = Served.from_tag(tag)
    assert kept.requests == many.requests
    assert len(kept.by_domain) == MAX_DOMAINS_IN_TAG
    assert min(one.requests for one in kept.by_domain.values()) == 60 - MAX_DOMAINS_IN_TAG + 1
