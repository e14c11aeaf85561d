"""Who teaches what a draft is to stay at on older requests."""

from hotdraft.pipeline.store.domains import name_part
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.judging.anchors import read_anchors
from hotdraft.training.judging.served_draft import ServedDraft
from hotdraft.training.scoring.rehearsal import Teacher, TeacherOf


def teachers_of(draft: ServedDraft, champion: int, registry: AdapterRegistry) -> TeacherOf:
    """By domain: the draft without an adapter where no version was better, or else the `champion`, its parent."""
    bare = Teacher(0, draft.base)
    if draft.parent is None:
        return lambda _: bare
    best = read_anchors(champion, registry.version(champion).tags)
    merged = Teacher(champion, draft.model(draft.parent))
    return lambda domain: merged if best.get(name_part(domain), champion) else bare
