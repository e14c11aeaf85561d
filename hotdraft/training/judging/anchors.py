"""What each domain is held against: the best version that it ever had, so that small losses do not add up.

A version tells in a tag which version that is for each domain it was judged on, itself where it was better beyond
doubt. A domain that no version tells of is held against the champion. 0 is the draft without an adapter.
"""

import json
import logging
from collections.abc import Iterable, Mapping

logger = logging.getLogger(__name__)

TAG = "best_by_domain"
"""JSON, version → names of domains."""
ITSELF = "itself"
"""Stands for the version that has the tag: it has no number before it is published."""
MAX_VERSIONS = 8
"""Different ones that a candidate is held against."""
MAX_CHARACTERS = 4500
"""Of the tag; MLflow's older servers take 5000."""


def read_anchors(version: int, tags: Mapping[str, str]) -> dict[str, int]:
    """Domain → its best version, as the tags of `version` tell; those that too few domains have are left out."""
    try:
        told = {name: list(domains) for name, domains in json.loads(tags.get(TAG, "{}")).items()}
        numbers = {name: version if name == ITSELF else int(name) for name in told}
    except (ValueError, TypeError, AttributeError) as error:
        logger.warning("what version %d is held against is not known, its tag is broken: %s", version, error)
        return {}
    most = sorted(told, key=lambda name: len(told[name]), reverse=True)[:MAX_VERSIONS]
    return {domain: numbers[name] for name in most for domain in told[name]}


def anchors_tag(anchors: Mapping[str, int], better: Iterable[str]) -> dict[str, str]:
    """The tag of a version whose domains have these `anchors` but where it was `better` itself."""
    itself = set(better)
    told: dict[str, list[str]] = {}
    for domain, version in anchors.items():
        name = ITSELF if domain in itself else str(version)
        told.setdefault(name, []).append(domain)
        if len(json.dumps(told)) > MAX_CHARACTERS:
            told[name].pop()
    return {TAG: json.dumps(told)}
