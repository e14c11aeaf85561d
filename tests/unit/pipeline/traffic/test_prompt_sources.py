import pytest
from datasets import Dataset, DatasetDict
from huggingface_hub.errors import HTTPError

from hotdraft.pipeline.models.names import HubAwayError
from hotdraft.pipeline.traffic.prompts import Prompt, ask
from hotdraft.pipeline.traffic.sources import SourceError, Text, read_sources


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def parquet(folder, rows):
    folder.mkdir(exist_ok=True)
    Dataset.from_list(rows).to_parquet(folder / "train.parquet")
    return str(folder)


def test_sources_follow_each_other(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"domain": "a", "prompt": "Hi", "max_tokens": 5}\n')
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    (tmp_path / "notes" / "deep" / "b.md").write_text("# B")
    (tmp_path / "notes" / "a.txt").write_text("Ä\n", encoding="utf-8")
    (tmp_path / "notes" / "blank.txt").write_text(" \n")
    (tmp_path / "notes" / "c.py").write_text("no text")
    (tmp_path / "notes" / ".git").mkdir()
    (tmp_path / "notes" / ".git" / "d.txt").write_text("hidden")
    assert read_sources([str(tmp_path / "notes"), str(tmp_path / "t.jsonl")]) == [
        Text("notes", "Ä\n"),
        Text("notes", "# B"),
        Prompt("a", [{"role": "user", "content": "Hi"}], 5),
    ]


@pytest.mark.parametrize("column", ["prompt", "question", "instruction"])
def test_rows_with_a_prompt(tmp_path, column):
    source = parquet(tmp_path / "qa", [{column: "1+1?", "text": "no"}, {column: "", "text": "no"}])
    assert read_sources([source]) == [ask("qa", "1+1?")]


def test_the_first_column_that_exists_counts(tmp_path):
    source = parquet(tmp_path / "qa", [{"question": "q", "prompt": "p", "instruction": "i"}])
    assert read_sources([source]) == [ask("qa", "p")]


def test_rows_of_text_with_a_domain_of_their_own(tmp_path):
    source = parquet(tmp_path / "d", [{"text": "x", "domain": "own"}, {"text": None, "domain": "own"}])
    assert read_sources([source]) == [Text("own", "x")]


def test_a_conversation_ends_before_the_assistants_last_turn(tmp_path):
    said = [("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "b")]
    messages = [{"role": role, "content": content, "name": "n"} for role, content in said]
    source = parquet(tmp_path / "chat", [{"messages": messages}, {"messages": messages[2:3]}])
    kept = [{"role": role, "content": content} for role, content in said[:-1]]
    assert read_sources([source]) == [Prompt("chat", kept)]


def test_json_files_make_a_folder_a_data_set(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "README.md").write_text("A data set.")
    (tmp_path / "d" / "train.jsonl").write_text('{"text": "x"}\n{"text": "y"}\n')
    assert read_sources([str(tmp_path / "d")]) == [Text("d", "x"), Text("d", "y")]
    assert read_sources([f"{tmp_path}/d::train[1:]"]) == [Text("d", "y")]


def test_saved_data_sets(tmp_path):
    rows = Dataset.from_list([{"text": "x"}])
    rows.save_to_disk(tmp_path / "one")
    DatasetDict({"test": rows}).save_to_disk(tmp_path / "split")
    assert read_sources([str(tmp_path / "one")]) == [Text("one", "x")]
    assert read_sources([f"{tmp_path}/split::test"]) == [Text("split", "x")]
    with pytest.raises(SourceError, match=r"no split 'train'; it has \['test'\]"):
        read_sources([str(tmp_path / "split")])
    with pytest.raises(SourceError, match="without a part called 'x'"):
        read_sources([f"{tmp_path}/one:x"])


def test_a_name_that_is_no_path_is_looked_up_on_the_hub(monkeypatch):
    asked = []

    def load(path, name, *, split):
        asked.append((path, name, split))
        return Dataset.from_list([{"question": "q"}])

    monkeypatch.setattr("hotdraft.pipeline.traffic.sources.load_dataset", load)
    sources = ["org/data.v2", "org/data.v2:main", "org/data.v2:main:test", "data::train[:10]"]
    assert read_sources(sources) == [ask("data.v2", "q")] * 3 + [ask("data", "q")]
    assert asked == [
        ("org/data.v2", None, "train"),
        ("org/data.v2", "main", "train"),
        ("org/data.v2", "main", "test"),
        ("data", None, "train[:10]"),
    ]


@pytest.mark.parametrize(
    "error", [FileNotFoundError("no such set"), ValueError("Unknown split"), RuntimeError("Dataset scripts")]
)
def test_what_the_hub_refuses_is_named(monkeypatch, error):
    def load(*args, **options):
        raise error

    monkeypatch.setattr("hotdraft.pipeline.traffic.sources.load_dataset", load)
    with pytest.raises(SourceError, match=f"'org/data' is no file or folder, nor found on the hub: {error}"):
        read_sources(["org/data"])


@pytest.mark.parametrize("error", [ConnectionError("no route"), HTTPError("hung up")])
def test_a_hub_that_does_not_answer_is_no_wrong_name(monkeypatch, caplog, error):
    def load(*args, **options):
        assert "no file or folder here is called org/data: asking the hub" in caplog.text, "it may take its time"
        raise error

    caplog.set_level("INFO")

    monkeypatch.setattr("hotdraft.pipeline.traffic.sources.load_dataset", load)
    with pytest.raises(
        HubAwayError, match=f"'org/data' is no file or folder, and the hub does not answer: {error}"
    ):
        read_sources(["org/data"])


@pytest.mark.parametrize("source", ["./absent", "/absent/folder", "absent.jsonl", "a/b/c", "here/absent"])
def test_what_can_only_be_a_path_is_not_looked_up(monkeypatch, tmp_path, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(
        "hotdraft.pipeline.traffic.sources.load_dataset", lambda *args, **options: pytest.fail("asked")
    )
    with pytest.raises(SourceError, match=f"no file or folder at '{source}'"):
        read_sources([source])


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([{"sentence": "x", "label": 1}], r"columns \['sentence', 'label'\].*'question'.*'text'"),
        ([{"text": ""}], "holds no prompt and no text"),
        ([{"prompt": "a"}, {"prompt": None}, {"prompt": " "}], None),
        ([{"prompt": 3}], "row 0, column 'prompt': expected text, got int"),
        ([{"text": ["a"]}], "row 0, column 'text': expected text, got list"),
        ([{"messages": [{"role": "robot", "content": "x"}]}], "'robot'"),
        ([{"messages": [{"from": "human", "value": "x"}]}], "a text as its content"),
    ],
)
def test_unusable_rows_are_named(tmp_path, rows, fault):
    source = parquet(tmp_path / "d", rows)
    if fault is None:
        assert read_sources([source]) == [ask("d", "a")]
        return
    with pytest.raises(SourceError, match=rf"{source}.*{fault}"):
        read_sources([source])


def test_unusable_folders_and_files_are_named(tmp_path):
    folder = tmp_path / "f"
    folder.mkdir()
    with pytest.raises(SourceError, match=r"f holds none of the files .*\*\.md.*\*\.parquet"):
        read_sources([str(folder)])
    (folder / "a.txt").write_text("\n")
    with pytest.raises(SourceError, match="f holds no prompt and no text"):
        read_sources([str(folder)])
    with pytest.raises(SourceError, match="which has no 'name'"):
        read_sources([f"{folder}:name"])
    (folder / "a.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(SourceError, match=r"a\.txt is not UTF-8"):
        read_sources([str(folder)])
    (tmp_path / "t.jsonl").write_text('{"domain": "a"}\n')
    with pytest.raises(SourceError, match=r"t\.jsonl:1: give exactly one of"):
        read_sources([str(tmp_path / "t.jsonl")])
    (folder / "b.parquet").write_bytes(b"broken")
    with pytest.raises(SourceError, match="cannot be read as a data set"):
        read_sources([str(folder)])
