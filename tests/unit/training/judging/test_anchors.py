import json

from hotdraft.training.judging.anchors import MAX_VERSIONS, TAG, anchors_tag, read_anchors


def test_a_version_tells_what_each_domain_is_held_against():
    tag = anchors_tag({"sql": 0, "maths": 2, "prose": 0}, better=["sql"])
    assert read_anchors(7, tag) == {"sql": 7, "maths": 2, "prose": 0}
    assert read_anchors(7, {}) == {}


def test_the_tag_and_what_is_read_of_it_are_bounded():
    tag = anchors_tag({f"{index:03}{'x' * 90}": index % 3 for index in range(200)}, better=[])
    assert len(tag[TAG]) <= 4500
    assert len(read_anchors(7, tag)) > 30
    many = {f"d{index}": index for index in range(20)} | {"more": 19}
    read = read_anchors(30, anchors_tag(many, better=[]))
    assert len(set(read.values())) == MAX_VERSIONS
    assert read["more"] == 19, "those of most domains"


def test_a_broken_tag_is_told_and_the_champion_takes_its_place(caplog):
    for broken in ("{", "[1]", '{"x": ["sql"]}', json.dumps({"1": 3}), json.dumps({"1": None})):
        assert read_anchors(3, {TAG: broken}) == {}
    assert caplog.text.count("version 3") == 5
