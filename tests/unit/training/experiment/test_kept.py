"""What a policy is played in, and when what it came to counts again."""

from pathlib import Path

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.training.experiment.ceiling import Reached
from hotdraft.training.experiment.kept import kept_or_played


def test_what_is_played_meets_neither_a_servers_traffic_nor_its_versions(tmp_path):
    live = {"replay": {"url": "s3://live/replay"}, "tracking": {"uri": "http://mlflow:5000"}}
    config = HotdraftConfig(target="t", draft="d", run_dir="runs/live", **live)
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
