"""Adapters of a remote store on this machine, each fetched once."""

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from mlflow.artifacts import download_artifacts

from hotdraft.pipeline.config.settings import HotdraftConfig

KEPT = 32
"""That were used last: a server that follows for weeks fetches thousands."""


class FetchedAdapters:
    """The folder `<run_dir>/adapters`, which any number of processes may use at once."""

    def __init__(self, config: HotdraftConfig) -> None:
        self._tracking_uri = config.tracking_uri
        self._root = config.run_dir / "adapters"

    def folder(self, source: str) -> Path:
        """The files at `source`, not to be written to. Raises what the store does."""
        # Not by the source's last part: those of versions that others made may be equal.
        kept = self._root / hashlib.sha256(source.encode()).hexdigest()[:16]
        if not kept.is_dir():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=kept.parent) as scratch:
                got = download_artifacts(artifact_uri=source, tracking_uri=self._tracking_uri, dst_path=scratch)
                try:
                    Path(got).rename(kept)
                except OSError:
                    if not kept.is_dir():  # else another process was first
                        raise
            self._forget_oldest(kept)
        os.utime(kept)
        return kept

    def _forget_oldest(self, kept: Path) -> None:
        """`kept` stays: to a clock that ran ahead it is the oldest."""
        with suppress(FileNotFoundError):  # another process does so too
            others = [folder for folder in self._root.iterdir() if folder != kept]
            for folder in sorted(others, key=lambda folder: folder.stat().st_mtime)[: 1 - KEPT]:
                shutil.rmtree(folder, ignore_errors=True)

    def discard(self, folder: Path) -> bool:
        """Remove what was fetched into `folder`, so that the store is asked again; other folders stay.

        Whether it is such a folder.
        """
        if fetched := folder.absolute().parent == self._root.absolute():
            shutil.rmtree(folder, ignore_errors=True)
        return fetched
