import itertools
import json

import pytest

from hotdraft.pipeline.config.learning import ExperimentConfig, PhaseConfig
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.training.experiment.streams import read_streams
from hotdraft.training.experiment.suite import read_suite

SETTINGS = ExperimentConfig(seeds=[0, 1], probes=3)


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{domain}.jsonl" for domain in ("sums", "sql")]
    for path in paths:
        lines = [json.dumps({"domain": path.stem, "prompt": f"{path.stem} {number}"}) for number in range(10)]
        path.write_text("\n".join(lines) + "\n")
    return paths


def texts(prompts):
    return [prompt.messages[-1]["content"] for prompt in prompts]


def test_the_built_in_stream_is_a_shift():
    stream = read_streams(SETTINGS, None, None)["shift"][0]
    domains = [prompt.domain for prompt in stream.prompts]
    assert domains == ["arithmetic"] * 60 + ["text_to_sql"] * 300
    assert [prompt.domain for prompt in stream.probes] == ["arithmetic"] * 3 + ["text_to_sql"] * 3
    assert not set(texts(stream.prompts)) & set(texts(stream.probes))


def test_ceilings_learn_from_more_of_each_source_that_is_no_probe(files):
    settings = SETTINGS.model_copy(update={"ceiling_requests": 500})
    with_more, without = (read_streams(told, None, 20)["shift"][0] for told in (settings, SETTINGS))
    assert (with_more.prompts, with_more.probes) == (without.prompts, without.probes)
    assert not without.more
    assert len(with_more.more) > 900
    assert not set(texts(with_more.more)) & set(texts(with_more.probes))
    left = read_streams(settings, files, 2)["traffic"][0]
    assert len(left.more) == 2 * (10 - 3 - 2)
    assert len({*texts(left.prompts), *texts(left.probes), *texts(left.more)}) == 20


def test_files_are_played_in_turn_each_shuffled_by_the_seed(files):
    streams = read_streams(SETTINGS, files, None)["traffic"]
    for stream in streams.values():
        assert [prompt.domain for prompt in stream.prompts] == ["sums"] * 7 + ["sql"] * 7
        assert sorted(texts(stream.prompts) + texts(stream.probes)) == sorted(
            f"{domain} {number}" for domain in ("sums", "sql") for number in range(10)
        )
    assert texts(streams[0].prompts) != texts(streams[1].prompts)
    assert texts(read_streams(SETTINGS, files, None)["traffic"][0].prompts) == texts(streams[0].prompts)
    assert texts(read_streams(SETTINGS, files, 2)["traffic"][0].prompts) == [
        *texts(streams[0].prompts)[:2], *texts(streams[0].prompts)[7:9]
    ]  # fmt: skip


def test_what_stands_in_a_file_again_is_neither_learned_from_nor_counted_where_it_is_kept_apart(files):
    for path in files:
        path.write_text(3 * path.read_text())
    for stream in read_streams(SETTINGS, files, None)["traffic"].values():
        assert (len(stream.prompts), len(stream.probes)) == (2 * 7, 2 * 3)
        assert not set(texts(stream.prompts)) & set(texts(stream.probes))


def test_what_stands_in_several_files_is_of_the_first_alone(files):
    files[1].write_text(files[0].read_text() + files[1].read_text())
    settings = SETTINGS.model_copy(
        update={"streams": {"both": [PhaseConfig(requests=7, of={str(path): 1.0}) for path in files]}}
    )
    for streams in (read_streams(SETTINGS, files, None)["traffic"], read_streams(settings, None, None)["both"]):
        for stream in streams.values():
            assert len({*texts(stream.prompts), *texts(stream.probes)}) == 20
    with pytest.raises(ValueError, match="0 prompts of its own"):
        read_streams(SETTINGS, [files[0], files[0]], None)


def test_a_file_must_have_more_prompts_than_are_kept_apart(files):
    with pytest.raises(ValueError, match=r"10 prompts of its own, and experiment\.probes keeps 10"):
        read_streams(SETTINGS.model_copy(update={"probes": 10}), files, None)


def test_a_domain_of_which_nothing_is_kept_apart_is_told_at_once(files):
    with files[0].open("a") as file:
        file.write('{"domain": "rare", "prompt": "once"}\n')
    with pytest.raises(ValueError, match=r"of (rare|sums) no prompt is among the 1 of each"):
        read_streams(SETTINGS.model_copy(update={"probes": 1}), files, None)


def test_a_phase_asks_each_source_by_its_share_and_nothing_comes_twice(files):
    sums, sql = map(str, files)
    phases = [
        {"requests": 4, "of": {sums: 1}},
        {"requests": 200, "of": {"code": 1, "text_to_sql": 3}},
        {"requests": 3, "of": {sums: 1, sql: 1}},
    ]
    settings = ExperimentConfig(seeds=[0], probes=2, streams={"mine": phases})
    [stream] = read_streams(settings, None, None)["mine"].values()
    domains = [prompt.domain for prompt in stream.prompts]
    assert domains[:4] == ["sums"] * 4
    assert 120 < domains[4:204].count("text_to_sql") < 180
    assert set(domains[4:204]) == {"code", "text_to_sql"}
    assert set(domains[204:]) <= {"sums", "sql"}
    assert len(domains) == 207
    asked = texts(stream.prompts) + texts(stream.probes)
    assert len(set(asked)) == len(asked)


def test_shiftbench_shifts_abruptly_and_gradually_and_back_and_not_at_all():
    settings = ExperimentConfig(**{**read_suite("shiftbench")["experiment"], "seeds": [0], "probes": 30})
    streams = {name: of_seed[0] for name, of_seed in read_streams(settings, None, None).items()}
    domains = {
        name: [domain for domain, _ in itertools.groupby(prompt.domain for prompt in stream.prompts)]
        for name, stream in streams.items()
    }
    assert domains["abrupt"] == ["arithmetic", "text_to_sql", "code", "paragraph"]
    assert domains["recurring"] == ["arithmetic", "text_to_sql"] * 2
    assert (domains["gradual"][0], domains["gradual"][-1]) == ("arithmetic", "text_to_sql")
    assert len(domains["gradual"]) > 20
    assert len(domains["mixed"]) > 100
    with pytest.raises(ConfigError, match="there is no suite drift: known are shiftbench"):
        read_suite("drift")
