import pytest

from hotdraft.training.predistill.run_record import RunRecordError, begin_or_resume


def test_the_same_run_goes_on_and_another_is_refused(tmp_path):
    begun = []

    def begin():
        begun.append(len(begun))
        return f"run{len(begun)}"

    recipe = {"layers": [0, 1], "learning_rate": 0.1}
    assert begin_or_resume(tmp_path / "checkpoints", recipe, begin) == "run1"
    assert begin_or_resume(tmp_path / "checkpoints", recipe, begin) == "run1"
    with pytest.raises(RunRecordError, match=r"other settings \(layers, method\).*run_dir"):
        begin_or_resume(tmp_path / "checkpoints", {"layers": [0], "learning_rate": 0.1, "method": "lora"}, begin)
    assert begin_or_resume(tmp_path / "elsewhere", {}, begin) == "run2"
