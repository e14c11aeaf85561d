import json

from hotdraft.training.judging.anchors import MAX_VERSIONS, TAG, anchors_tag, held_against, read_anchors


def test_a_version_tells_what_each_domain_is_held_against():
    tag = anchors_tag({"sql": 0, "maths": 2, "prose": 0}, better=["sql"])
    assert read_anchors(7, tag) == {"sql": 7, "maths": 2, "prose": 0}
    assert read_anchors(7, {}) == {}


def test_the_tag_is_bounded_in_characters_and_keeps_what_comes_first():
    names = [f"{index:03}{'x' * 90}" for index in range(200)]
    tag = anchors_tag({name: index % 3 for index, name in enumerate(names)}, better=[])
    assert len(tag[TAG]) <= 4500
    read = read_anchors(7, tag)
    assert len(read) > 30
    assert set(read) == set(names[: len(read)])
    japanese = anchors_tag({f"{index:03}{'株' * 90}": index % 3 for index in range(200)}, better=[])
    assert len(read_anchors(7, japanese)) == len(read)


def test_a_candidate_is_held_against_few_versions_those_of_most_of_its_domains_and_then_the_newest():
    known = {f"d{index}": index for index in range(20)} | {"more": 3}
    anchors = held_against(known, known, champion=30)
    assert set(anchors.values()) == {3, *range(13, 20), 30}
    assert len(set(anchors.values())) == MAX_VERSIONS + 1, "the champion is asked anyway"
    assert held_against(["d1", "new"], known, champion=30) == {"d1": 1, "new": 30}, "whoever else has an older one"


def test_a_broken_tag_is_told_and_the_champion_takes_its_place(caplog):
    for broken in ("{", "[1]", '{"x": ["sql"]}', json.dumps({"1": 3}), json.dumps({"1": None})):
        assert read_anchors(3, {TAG: broken}) == {}
    assert caplog.text.count("version 3") == 5
