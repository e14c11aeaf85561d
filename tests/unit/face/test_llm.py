"""`from hotdraft import LLM`: what is generated, recorded and swapped in one process."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from tokenizers import Tokenizer

from hotdraft import LLM, ReplayBuffer, SamplingParams
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.models.adapter_folder import AdapterError
from hotdraft.pipeline.models.loading import weights_id
from hotdraft.pipeline.models.names import ModelError
from hotdraft.serving.native.bindings import NativeError
from tests.integration.adapters import write_adapter
from tests.models import save, tiny_llama

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["what is this", "and that", "or those then"]


@pytest.fixture(scope="module")
def llm(tiny_target: str, tiny_draft: str) -> Iterator[LLM]:
    with LLM(tiny_target, tiny_draft, dtype="float32", device="cpu", k=2, num_slots=2, max_model_len=64) as llm:
        yield llm


def test_answers_come_in_the_order_of_the_prompts_and_are_the_target_s_own(llm: LLM, tiny_target: str) -> None:
    with LLM(tiny_target, dtype="float32", device="cpu", num_slots=1, max_model_len=64) as plain:
        expected = [output.outputs[0] for output in plain.generate(PROMPTS, GREEDY)]
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [output.outputs[0] for output in outputs] == expected
    assert [output.prompt for output in outputs] == PROMPTS
    assert all(0 <= output.acceptance_rate <= 1 for output in outputs if output.acceptance_rate is not None)
    assert outputs[0].acceptance_rate is not None


def test_a_tokenizer_that_was_saved_cutting_and_padding_texts_does_neither(tmp_path: Path) -> None:
    folder = save(tiny_llama(layers=1, seed=1), tmp_path)
    saved = Tokenizer.from_file(f"{folder}/tokenizer.json")
    saved.enable_truncation(4)
    saved.enable_padding(length=6)
    saved.save(f"{folder}/tokenizer.json")
    with LLM(folder, dtype="float32", device="cpu", num_slots=1, max_model_len=64) as llm:
        outputs = llm.generate(["what is this", "a"], GREEDY)
    assert [len(output.prompt_token_ids) for output in outputs] == [len("what is this"), 1]


def test_a_text_its_token_ids_and_each_one_s_own_parameters(llm: LLM) -> None:
    [whole] = llm.generate(PROMPTS[0], GREEDY)
    short = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=1)
    ids = list(whole.prompt_token_ids)
    again, three = llm.generate([ids, ids], [GREEDY, short])
    assert again.outputs == whole.outputs
    assert again.prompt is None
    assert three.outputs[0].token_ids == whole.outputs[0].token_ids[:3]
    assert [one.token_id for one in three.outputs[0].logprobs or ()] == list(three.outputs[0].token_ids)


def test_a_chat_template_is_told_what_it_asks_for(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm._engine.tokenizer, "chat_template", "{{ 'yes' if enable_thinking else 'no' }}")
    conversation = [{"role": "user", "content": "hello"}]
    for thinks, length in ((True, 3), (False, 2)):
        [answer] = llm.chat(conversation, GREEDY, chat_template_kwargs={"enable_thinking": thinks})
        assert len(answer.prompt_token_ids) == length
    with pytest.raises(ValueError, match="chat_template_kwargs must not have tools"):
        llm.chat(conversation, GREEDY, chat_template_kwargs={"tools": []})


def test_a_stream_brings_the_same_text_and_may_be_left(llm: LLM) -> None:
    [whole] = llm.generate(PROMPTS[0], GREEDY)
    assert "".join(delta.text for delta in llm.stream(PROMPTS[0], GREEDY)) == whole.outputs[0].text
    for _ in llm.stream(PROMPTS[0], GREEDY):
        break
    assert llm.generate(PROMPTS[0], GREEDY)[0].outputs == whole.outputs


def test_one_prompt_that_cannot_be_taken_says_so_and_the_next_call_works(llm: LLM) -> None:
    with pytest.raises(ValueError, match="maximum context length is 64"):
        llm.generate(["fine", "far too long " * 30], GREEDY)
    assert len(llm.generate("fine", GREEDY)) == 1


def test_a_wrong_option_is_one_line_and_another_engine_is_not_taken_for_this_one(tiny_target: str) -> None:
    with pytest.raises(ConfigError, match=r"engine.num_slot: no such key; did you mean engine.num_slots\?$"):
        LLM(tiny_target, num_slot=2)
    with pytest.raises(ConfigError, match="not vllm"):
        LLM(tiny_target, kind="vllm")


def test_where_nothing_native_computes_it_says_why(
    tiny_target: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def absent() -> NoReturn:
        raise NativeError("there is no compiler")

    monkeypatch.setattr("hotdraft.serving.native.bindings.native_library", absent)
    with LLM(tiny_target, device="cpu", max_model_len=64):
        pass
    assert "the target is computed by torch, which is slower: there is no compiler" in caplog.text


def test_a_folder_is_a_buffer_to_record_to_which_is_told_of_what_models_it_is(
    llm: LLM, tmp_path: Path, tiny_target: str, tiny_draft: str
) -> None:
    llm.record_to(tmp_path / "traffic")
    llm.generate(PROMPTS, GREEDY)
    llm.record_to(None)
    rows = list(ReplayBuffer.at(str(tmp_path / "traffic")).load())
    models = weights_id(tiny_target), weights_id(tiny_draft)
    assert [(row["target_id"], row["draft_id"]) for row in rows] == [models] * len(PROMPTS)


def test_to_record_to_a_folder_deletes_nothing_of_what_a_server_keeps_there(llm: LLM, tmp_path: Path) -> None:
    oldest = tmp_path / "shard-00000000000000000001-0badcafe.parquet"
    with oldest.open("wb") as file:
        file.truncate(3_000_000_000)  # takes no room
    llm.record_to(tmp_path)
    llm.generate(PROMPTS, GREEDY)
    llm.record_to(None)
    assert oldest.exists()
    assert len(ReplayBuffer(str(tmp_path)).shards()) == 2


def test_what_cannot_be_recorded_to_ends_no_recording(llm: LLM, tmp_path: Path) -> None:
    buffer = ReplayBuffer(str(tmp_path / "traffic"))
    llm.record_to(buffer)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        llm.record_to(tmp_path / "file" / "traffic")
    llm.generate(PROMPTS, GREEDY)
    llm.record_to(None)
    assert buffer.stats().requests == len(PROMPTS)


def test_what_is_answered_between_two_calls_is_recorded(llm: LLM, tmp_path: Path) -> None:
    buffer = ReplayBuffer(str(tmp_path))
    llm.generate("before", GREEDY)
    llm.record_to(buffer)
    answered = llm.generate(PROMPTS, GREEDY, domain="mine")
    llm.record_to(None)
    llm.generate("after", GREEDY)
    samples = buffer.load()
    assert sorted(samples["request_id"]) == sorted(output.request_id for output in answered)
    assert set(samples["domain"]) == {"mine"}


def test_an_adapter_changes_what_is_drafted_and_nothing_that_is_answered(
    llm: LLM, tiny_draft: str, tmp_path: Path
) -> None:
    before = llm.generate(PROMPTS, GREEDY)
    assert llm.swap(write_adapter(tmp_path / "adapter", tiny_draft, scale=1.0)).version == 1
    swapped = llm.generate(PROMPTS, GREEDY)
    with pytest.raises(AdapterError):
        llm.swap(tmp_path)
    with pytest.raises(AdapterError, match="no adapter at nowhere"):
        llm.swap("nowhere")
    assert llm.generate(PROMPTS, GREEDY)[0].stats.draft_version == 1
    assert llm.swap(None).version == 0
    after = llm.generate(PROMPTS, GREEDY)
    assert [one.outputs for one in before] == [one.outputs for one in swapped] == [one.outputs for one in after]
    assert [one.stats.rounds for one in before] != [one.stats.rounds for one in swapped]


def test_a_stop_string_may_stand_alone_and_is_no_set_of_letters() -> None:
    assert SamplingParams(stop="END").stop == ("END",)


def test_the_environment_holds_for_what_is_not_given(tiny_target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTDRAFT_ENGINE__MAX_MODEL_LEN", "24")
    monkeypatch.setenv("HOTDRAFT_DTYPE", "float32")
    with (
        LLM(tiny_target, device="cpu", num_slots=1) as llm,
        pytest.raises(ValueError, match="maximum context length is 24"),
    ):
        llm.generate("hello", SamplingParams(max_tokens=32))


def test_as_many_parameters_as_prompts_or_one(llm: LLM) -> None:
    with pytest.raises(ValueError, match="2 prompts, 3 sampling_params"):
        llm.generate(PROMPTS[:2], [GREEDY] * 3)


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        ({"max_tokens": 3}, "builtins.dict"),
        ([{"max_tokens": 3}], "builtins.dict"),
        ("greedy", "builtins.str"),
        (0.5, "builtins.float"),
        (SimpleNamespace(temperature=0), "types.SimpleNamespace"),
    ],
)
def test_parameters_of_another_kind_are_named_in_one_line(llm: LLM, other: Any, kind: str) -> None:
    says = f"^sampling_params must be hotdraft's SamplingParams, one or a list, not {kind}$"
    for ask in (llm.generate, llm.stream):
        with pytest.raises(ValueError, match=says):
            list(ask("hello", other))
    with pytest.raises(ValueError, match=says):
        llm.chat([{"role": "user", "content": "hello"}], other)
    assert len(llm.generate("hello", GREEDY)) == 1


@pytest.mark.parametrize(
    ("prompts", "kind"),
    [
        (None, "builtins.NoneType"),
        ({"prompt": "x"}, "builtins.dict"),
        (np.arange(3), "numpy.ndarray"),
        ([3.0], "builtins.float"),
    ],
)
def test_what_is_no_prompt_is_named_in_one_line(llm: LLM, prompts: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=f"^prompts must be texts or lists of token ids, not {kind}$"):
        llm.generate(prompts, GREEDY)


def test_a_domain_that_is_no_text_ends_nobody_elses_request(llm: LLM) -> None:
    long = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    stream = llm.stream("hello", long)
    next(stream)
    with pytest.raises(ValueError, match=r"^the domain must be a text, not None$"):
        llm.generate("and that", GREEDY, domain=None)  # type: ignore[arg-type]
    assert [delta.finish_reason for delta in stream][-1] == "length"


def test_prompts_may_outnumber_the_queue_from_several_threads(tiny_target: str) -> None:
    options = {"dtype": "float32", "device": "cpu", "num_slots": 2, "max_model_len": 64, "max_queue": 3}
    with LLM(tiny_target, **options) as llm, ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda _: llm.generate(PROMPTS * 4, GREEDY), range(2))
    assert [output.outputs for output in one] == [output.outputs for output in other]


def test_what_a_closed_engine_left_is_no_answer(tiny_target: str) -> None:
    llm = LLM(tiny_target, dtype="float32", device="cpu", max_model_len=256)
    stream = llm.stream("hello", SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
    next(stream)
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        list(stream)
    with pytest.raises(RuntimeError, match="closed"):
        llm.record_to("nowhere")


@pytest.mark.parametrize("version", [-1, 0, 2**31, True, "3"])
def test_a_version_that_no_registry_gives_is_one_line(llm: LLM, tmp_path: Path, version: Any) -> None:
    with pytest.raises(ValueError, match=rf"^version must be a whole number from 1, below 2\^31, not {version!r}$"):
        llm.swap(tmp_path, version=version)


def test_without_a_draft_there_is_nothing_to_swap(tiny_target: str, tmp_path: Path) -> None:
    with (
        LLM(tiny_target, dtype="float32", device="cpu", max_model_len=64) as plain,
        pytest.raises(ValueError, match="no draft"),
    ):
        plain.swap(tmp_path)


def test_a_wrong_option_or_model_is_named(tiny_target: str) -> None:
    with pytest.raises(ValueError, match="nun_slots"):
        LLM(tiny_target, nun_slots=3)
    with pytest.raises(ModelError, match="absent"):
        LLM("./absent")
