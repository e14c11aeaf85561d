"""What a policy is played in, and when what it came to counts again."""

from pathlib import Path

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.training.experiment.ceiling import Reached
from hotdraft.training.experiment.kept import kept_or_played
from tests.models import save, tiny_llama


def test_what_is_played_meets_neither_a_servers_traffic_nor_its_versions(tmp_path, tiny_draft):
    live = {"replay": {"url": "s3://live/replay"}, "tracking": {"uri": "http://mlflow:5000"}}
    config = HotdraftConfig(target="t", draft=tiny_draft, run_dir="runs/live", **live)
    told = []

    def play(policy: HotdraftConfig) -> Reached:
        told.append(policy)
        return Reached({})

    kept_or_played(tmp_path, "ours-0", config, [], play)
    [policy] = told
    folder = tmp_path / "runs" / "ours-0"
    assert Path(policy.replay_url) == folder / "replay"
    assert policy.tracking_uri == f"sqlite:///{folder}/mlflow.db"
    assert policy.run_dir == folder


def test_what_was_played_with_another_draft_of_the_same_name_is_played_again(tmp_path):
    config = HotdraftConfig(target="t", draft=str(tmp_path / "draft"))
    played = []

    def play(policy: HotdraftConfig) -> Reached:
        played.append(policy)
        return Reached({"d": float(len(played))})

    found = []
    for seed in (0, 0, 1):
        save(tiny_llama(layers=1, seed=seed), tmp_path / "draft")
        found.append(kept_or_played(tmp_path, "ours-0", config, [], play)["probes"]["d"])
    assert found == [1, 1, 2]
