"""What each domain is held against: the best version that it ever had, so that small losses do not add up.

A version tells in a tag which version that is for each domain it was judged on, itself where it was better beyond
doubt. A domain that no version tells of is held against the champion. 0 is the draft without an adapter.
"""

import json
import logging
from collections import Counter
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
    """Domain → its best version, as the tags of `version` tell."""
    try:
        told = {name: list(domains) for name, domains in json.loads(tags.get(TAG, "{}")).items()}
        numbers = {name: version if name == ITSELF else int(name) for name in told}
    except (ValueError, TypeError, AttributeError) as error:
        logger.warning("what version %d is held against is not known, its tag is broken: %s", version, error)
        return {}
    return {domain: numbers[name] for name, domains in told.items() for domain in domains}


def held_against(domains: Iterable[str], known: Mapping[str, int], champion: int) -> dict[str, int]:
    """What a candidate is held against on each of `domains`: its best version that is `known`, or the champion.

    So it is where too few domains have a version; of those with as many the newest are gone by.
    """
    anchors = {domain: known.get(domain, champion) for domain in domains}
    counts = Counter(anchors.values())
    most = sorted(counts, key=lambda version: (counts[version], version), reverse=True)[:MAX_VERSIONS]
    return {domain: version if version in most else champion for domain, version in anchors.items()}


def anchors_tag(anchors: Mapping[str, int], better: Iterable[str]) -> dict[str, str]:
    """The tag of a version whose domains have these `anchors` but where it was `better` itself.

    What does not fit is left out, from the end: what comes first is to be what still has traffic.
    """
    itself = set(better)
    told: dict[str, list[str]] = {}
    for domain, version in anchors.items():
        name = ITSELF if domain in itself else str(version)
        told.setdefault(name, []).append(domain)
        if len(_written(told)) > MAX_CHARACTERS:
            told[name].pop()
    return {TAG: _written(told)}


def _written(told: Mapping[str, list[str]]) -> str:
    return json.dumps(told, ensure_ascii=False)  # the limit is on characters, of which an escape is six
