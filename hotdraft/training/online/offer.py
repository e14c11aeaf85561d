"""The last stage of a job, to the registry: what was judged against a champion that has moved is judged again."""

import logging
from pathlib import Path

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.adapter_version import CANDIDATE
from hotdraft.pipeline.store.errors import ChampionMovedError
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.judging.evidence import GateEvidence, VersionScores
from hotdraft.training.judging.served_draft import load_draft
from hotdraft.training.online.contest import contest
from hotdraft.training.online.publish import Judged, Published, publish

logger = logging.getLogger(__name__)


def offer(
    judged: Judged,
    evidence: GateEvidence | None,
    run_id: str,
    job_folder: Path,
    config: HotdraftConfig,
    registry: AdapterRegistry,
) -> Published:
    """Publish the version by the verdict that decides it, which is on disk before it counts.

    `evidence` is what `judged` rests on, where there is a version.
    """
    while True:
        published = registry.published_by(run_id)
        open_still = judged.folder is not None and (published is None or published.status == CANDIDATE)
        if open_still and (champion := registry.champion()) != judged.champion:
            logger.info("version %s serves, not %s: judging again", champion, judged.champion)
            assert evidence is not None
            assert config.draft is not None
            # What was published is the adapter that it is.
            blends = None if published is None else [judged.metrics["blend"]]
            scores = VersionScores(load_draft(config.draft, config), registry, config.distill, evidence.samples)
            judged = contest(judged, evidence, scores, job_folder, registry, config, blends)
            judged.save(job_folder)
        try:
            return publish(judged, run_id, config, registry)
        except ChampionMovedError as error:
            logger.info("%s", error)
