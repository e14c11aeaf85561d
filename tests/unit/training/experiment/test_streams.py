import json

import pytest

from hotdraft.pipeline.config.learning import ExperimentConfig
from hotdraft.training.experiment.streams import BUILTIN_FIRST, BUILTIN_SECOND, read_streams

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
    stream = read_streams(SETTINGS, None, None)[0]
    domains = [prompt.domain for prompt in stream.prompts]
    assert domains == ["arithmetic"] * BUILTIN_FIRST + ["text_to_sql"] * BUILTIN_SECOND
    assert [prompt.domain for prompt in stream.probes] == ["arithmetic"] * 3 + ["text_to_sql"] * 3
    assert not set(texts(stream.prompts)) & set(texts(stream.probes))


def test_files_are_played_in_turn_each_shuffled_by_the_seed(files):
    streams = read_streams(SETTINGS, files, None)
    for stream in streams.values():
        assert [prompt.domain for prompt in stream.prompts] == ["sums"] * 7 + ["sql"] * 7
        assert sorted(texts(stream.prompts) + texts(stream.probes)) == sorted(
            f"{domain} {number}" for domain in ("sums", "sql") for number in range(10)
        )
    assert texts(streams[0].prompts) != texts(streams[1].prompts)
    assert texts(read_streams(SETTINGS, files, None)[0].prompts) == texts(streams[0].prompts)
    assert texts(read_streams(SETTINGS, files, 2)[0].prompts) == [
        *texts(streams[0].prompts)[:2], *texts(streams[0].prompts)[7:9]
    ]  # fmt: skip


def test_a_file_must_have_more_prompts_than_are_kept_apart(files):
    with pytest.raises(ValueError, match=r"10 prompts, and experiment\.probes keeps 10"):
        read_streams(SETTINGS.model_copy(update={"probes": 10}), files, None)
