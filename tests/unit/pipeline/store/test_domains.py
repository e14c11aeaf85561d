import pytest

from hotdraft.pipeline.store import domains as module
from hotdraft.pipeline.store.domains import (
    FORGOTTEN_SECONDS,
    MAX_DOMAINS,
    MAX_NAMES,
    MORE,
    NEWEST,
    OTHER,
    DomainNames,
    name_part,
)


def test_names_of_any_script_stay_apart():
    names = DomainNames()
    for domain in ("日本語", "한국어", "العربية", "Größe", "text_to-sql_2"):
        assert names.name(domain) == domain
    assert [name_part(text) for text in ("a b", "a\nb", "", "..", "x" * 400)] == [
        "a_b",
        "a_b",
        "default",
        "__",
        "x" * 100,
    ]


def test_tags_that_come_once_each_take_no_name_from_what_comes_often():
    names = DomainNames()
    for turn in range(300):
        names.name(f"d{turn}")
    assert [names.name("invoices") for _ in range(MORE + 2)] == [OTHER] * MORE + ["invoices"] * 2
    for turn in range(300, 600):
        names.name(f"d{turn}")
    assert names.name("invoices") == "invoices"


def test_the_least_asked_for_makes_room():
    names = DomainNames()
    for turn in range(MAX_DOMAINS):
        for _ in range(2 + (turn != 5)):
            names.name(f"d{turn}")
    for _ in range(2 + MORE):
        newest = names.name("new")
    assert newest == "new"
    assert names.name("d5") == OTHER
    assert all(names.name(f"d{turn}") == f"d{turn}" for turn in range(MAX_DOMAINS) if turn != 5)


def test_what_was_asked_for_long_ago_counts_for_less():
    names = DomainNames()
    for domain in ("old", *(f"d{turn}" for turn in range(MAX_DOMAINS - 1))):
        for _ in range(64):
            names.name(domain)
    for _ in range(8 * NEWEST):
        assert names.name("d0") == "d0"
    assert [names.name("new") for _ in range(MORE + 1)][-1] == "new"


@pytest.mark.parametrize("domains", [3000])
def test_however_many_are_insisted_on_their_names_are_bounded(domains):
    names = DomainNames()
    found = {names.name(f"d{turn // 40}") for turn in range(40 * domains // 10)}
    assert len(found) == MAX_NAMES + 1


def test_names_that_were_made_up_make_place_once_they_are_long_unseen(monkeypatch):
    now, forgotten = [0.0], []
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    names = DomainNames(forgotten.append)
    for turn in range(40 * MAX_NAMES):
        names.name(f"d{turn // 40}")
    now[0] += FORGOTTEN_SECONDS - 1
    assert {names.name("invoices") for _ in range(99)} == {OTHER}
    first, last = "d0", f"d{MAX_NAMES - 1}"
    assert {first: [names.name(first) for _ in range(99)][-1], last: names.name(last)} == {first: first, last: last}
    now[0] += 1
    assert names.name("invoices") == "invoices"
    assert forgotten == ["d1"]
    for turn in range(40 * MAX_NAMES):
        names.name(f"e{turn // 40}")
    assert len(set(forgotten)) == len(forgotten) == MAX_NAMES - 2
    assert not {first, last, "invoices"} & set(forgotten), "which were seen since"
