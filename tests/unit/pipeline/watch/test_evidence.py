import pytest

from hotdraft.pipeline.watch.evidence import MAX_TAG_LENGTH, Tally, from_tag, kind_of, short_digest, summed, to_tag


def test_kinds_are_apart_by_domain_lengths_and_temperature():
    kind = kind_of("sql", 100, 50, 0.7)
    assert kind == kind_of("sql", 120, 100, 1.0)
    others = [("code", 100, 50, 0.7), ("sql", 1000, 50, 0.7), ("sql", 100, 500, 0.7), ("sql", 100, 50, 0.0),
              ("sql", 100, 50, 0.3), ("sql", 100, 50, 1.5)]  # fmt: skip
    assert len({kind, *(kind_of(*other) for other in others)}) == 1 + len(others)
    assert kind_of("sql", 100, 50, 0.7, seeded=True) != kind
    assert kind_of("sql", 100, 50, 0.0, seeded=True) == kind_of("sql", 100, 50, 0.0), "greedy is greedy"
    assert kind_of("\ud800", 1, 1, 1.0), "a client's domain may be any text"


def test_evidence_comes_back_from_its_tag_and_of_another_trial_does_not():
    evidence = {
        ("c1", "k1"): Tally(3, 1.5, 0.9),
        ("c1", "k2"): Tally(1, 0.25, 0.0625),
        ("c2", "k1"): Tally(2, 2, 2),
    }
    assert from_tag(to_tag(12.5, evidence), 12.5) == evidence
    assert from_tag(to_tag(12.5, evidence), 13.0) == {}
    assert summed([evidence, evidence])["c1", "k1"] == Tally(6, 3.0, 1.8)


def test_a_tag_is_bounded_and_no_client_crowds_out_another():
    many = {(short_digest("many"), kind_of(str(n), 9, 9, 0)): Tally(100, 51.2345, 30.1234) for n in range(2000)}
    few = {(short_digest(f"c{n}"), kind_of("d", 9, 9, 0)): Tally(2, 1.1234, 0.7123) for n in range(40)}
    tag = to_tag(1790000000.123456, {**many, **few})
    kept = from_tag(tag, 1790000000.123456)
    assert 0.9 * MAX_TAG_LENGTH < len(tag) <= MAX_TAG_LENGTH
    assert kept.keys() >= few.keys()


def test_what_does_not_fit_into_a_tag_is_what_was_asked_least():
    of_one = {("c", f"k{n}"): Tally(1 + n * 37 % 500, 0.5, 0.25) for n in range(500)}
    of_each = {(short_digest(str(n)), "k"): Tally(1 + n * 37 % 500, 0.5, 0.25) for n in range(500)}
    for evidence in (of_one, of_each):
        kept = from_tag(to_tag(1.0, evidence), 1.0)
        most = sorted(evidence, key=lambda key: -evidence[key].requests)
        assert kept.keys() == set(most[: len(kept)])


@pytest.mark.parametrize(
    "tag",
    [
        "",
        "1",
        "{}",
        "null",
        '{"opened": 1, "evidence": 3}',
        '{"opened": 1, "evidence": {"c": {"k": [1, 2]}}}',
        '{"opened": 1, "evidence": {"c": {"k": [2, NaN, 1]}}}',
        '{"opened": 1, "evidence": {"c": {"k": [2, 9, 9]}}}',
        '{"opened": 1, "evidence": {"c": {"k": [-2, -1, 1]}}}',
        '{"opened": 1, "evidence": {"c": {"k": [0, 0, 0]}}}',
        '{"opened": 1, "evidence": {"c": {"k": [2, 1, -1]}}}',
        '{"opened": 1, "evidence": {"c": {"k": [2, 1, 1.5]}}}',
        '{"opened": 1, "evidence": {"c": {"good": [2, 1, 1], "k": [2, 9, 9]}}}',
        '{"opened": 1, "evidence": {"c": {"k": [1e999, 1, 1]}}}',
    ],
)
def test_a_tag_of_somebody_else_is_no_evidence(tag):
    with pytest.raises(ValueError, match=r"no evidence|no rates"):
        from_tag(tag, 1)
