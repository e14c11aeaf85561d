import re

import pytest

from hotdraft.pipeline.traffic.generators import arithmetic, text_to_sql, varied
from hotdraft.pipeline.traffic.generators.filling import distinct, fill
from hotdraft.pipeline.traffic.prompts import Prompt, TrafficError, ask, read_traffic, write_traffic


def texts(prompts):
    return [prompt.messages[-1]["content"] for prompt in prompts]


def test_reads_both_forms_and_skips_blank_lines(tmp_path):
    path = tmp_path / "traffic.jsonl"
    path.write_text(
        '{"domain": "a", "prompt": "Hi"}\n\n'
        '{"domain": "b", "messages": [{"role": "system", "content": "Be brief."}, '
        '{"role": "user", "content": "é"}], "max_tokens": 7, "temperature": 0.5}\n'
    )
    assert read_traffic(path) == [
        Prompt("a", [{"role": "user", "content": "Hi"}]),
        Prompt("b", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é"}], 7, 0.5),
    ]


def test_written_traffic_reads_back(tmp_path):
    prompts = [ask("a", "Wie spät?\nSag's."), Prompt("b", [{"role": "user", "content": "x"}], 3, 1.0)]
    write_traffic(tmp_path / "t.jsonl", prompts)
    assert read_traffic(tmp_path / "t.jsonl") == prompts


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "a line must be a JSON object: Expecting property name"),
        ("[1]", "expected a JSON object, got list"),
        ('{"prompt": "x"}', '"domain" must be'),
        ('{"domain": "", "prompt": "x"}', '"domain" must be'),
        ('{"domain": "a"}', 'exactly one of "prompt" and "messages"'),
        ('{"domain": "a", "prompt": "x", "messages": []}', "exactly one of"),
        ('{"domain": "a", "prompt": ""}', '"prompt" must be a non-empty string'),
        ('{"domain": "a", "messages": []}', '"messages" must be a non-empty list'),
        ('{"domain": "a", "messages": [{"role": "user"}]}', 'exactly "role" and "content"'),
        ('{"domain": "a", "messages": [{"role": "robot", "content": "x"}]}', "'robot'"),
        ('{"domain": "a", "messages": [{"role": "user", "content": 1}]}', '"content" must be a string'),
        ('{"domain": "a", "prompt": "x", "max_tokens": 0}', '"max_tokens" must be'),
        ('{"domain": "a", "prompt": "x", "max_tokens": true}', "not True"),
        ('{"domain": "a", "prompt": "x", "temperature": -1}', "from 0 to 2, not -1"),
        ('{"domain": "a", "prompt": "x", "max_token": 4}', r"unknown keys \['max_token'\]"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, fault):
    path = tmp_path / "traffic.jsonl"
    path.write_text(f'{{"domain": "a", "prompt": "good"}}\n{line}\n')
    with pytest.raises(TrafficError, match=f"traffic.jsonl:2: .*{fault}"):
        read_traffic(path)


def test_missing_and_empty_files_are_named(tmp_path):
    with pytest.raises(TrafficError, match=r"no traffic file at .*absent\.jsonl"):
        read_traffic(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TrafficError, match="holds no prompts"):
        read_traffic(tmp_path / "empty.jsonl")


@pytest.mark.parametrize("generate", [arithmetic, text_to_sql, varied])
def test_generators_are_seeded_and_distinct(generate):
    prompts = generate(2000, 1)
    assert len(prompts) == len(set(texts(prompts))) == 2000
    assert generate(2000, 1) == prompts
    assert len(set(texts(generate(2000, 2))) & set(texts(prompts))) < 200
    assert not [text for text in texts(prompts) if re.search(r"\{[a-z0-9-]+\}", text)], "an unfilled slot"


def test_varied_holds_every_kind_and_no_sql():
    prompts = varied(8000, 0)
    assert len({prompt.domain for prompt in prompts[:8]}) == 8
    found = re.search(r"\b(sql|select|query|queries|database|schema)\b", " ".join(texts(prompts)).lower())
    assert found is None, found


def test_sql_questions_ask_for_what_the_schema_has():
    for text in texts(text_to_sql(500, 0)):
        schema, question = text.split("\n\nQuestion: ")
        tables = re.findall(r"^(?:CREATE TABLE )?(\w+) ?\(", schema, flags=re.MULTILINE)
        assert len(tables) in (2, 3)
        assert any(re.search(rf"\b{table}\b", question) for table in tables), text


def test_fill_keeps_a_name_and_tells_two_apart():
    import random

    for seed in range(50):
        first, again, second, number = fill("{animal}|{animal}|{animal2}|{3-5}", random.Random(seed)).split("|")
        assert first == again != second
        assert int(number) in (3, 4, 5)


def test_too_few_distinct_texts_is_an_error():
    with pytest.raises(ValueError, match="only 3 distinct prompts"):
        distinct(4, 0, lambda rng: str(rng.randint(1, 3)))


def test_what_a_draft_is_trained_on_is_not_what_the_demo_plays():
    assert len(set(texts(varied(8000, 0))) & set(texts(arithmetic(200, 0)))) <= 2
