"""The card of a pre-distilled draft: where it comes from, what it learnt from, and what it reached."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
import yaml

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.models.names import Cut, local_folder, public_name
from hotdraft.training.drafts.draft_cost import DraftCost, describe_cost

Figures = dict[str, dict[str, float]]
"""By domain, `all` being every domain, `prompts`, `greedy_agreement` and `overlap`; or by range of output
positions, as `9-16`, `positions` and likewise."""

RANGES = ((1, 8), (9, 16), (17, 32), (33, 64), (65, None))
"""First and last output position, from 1, of the rows of the table by position."""
TAGS = ["speculative-decoding", "draft-model", "hotdraft"]

CARD = """{front_matter}
# A draft for {target}

{origin} It is a draft for speculative decoding: it proposes tokens, which `{target}` (weights
{fingerprint}{rounded}) verifies. The licence and notices of what it comes from apply.

## Data

{requests:,} prompts and texts, on which `{target}` logged its distribution at {tokens:,} output positions.
{kinds}

| domain | prompts |
| --- | --- |
{data_rows}

{mixture}

## Method

`hotdraft predistill`: loss `{loss}` on the logged distributions. {method} {steps:,} steps of about
{step_tokens:,} packed tokens, learning rate {learning_rate:g}, {seconds:,.0f} s.
torch {torch}, transformers {transformers}.

## Result

On prompts never trained on, over the positions of the logged outputs: how often the two models' likeliest
tokens agree (the acceptance of greedy decoding), and the overlap of their distributions (that of sampling at
temperature 1).

| domain | prompts | greedy agreement | overlap |
| --- | --- | --- | --- |
{domain_rows}

| output position | positions | greedy agreement | overlap |
| --- | --- | --- | --- |
{position_rows}

{cost}
"""


@dataclass(frozen=True)
class CardFacts:
    """What a card tells."""

    target: str
    target_fingerprint: str
    origin: Cut | str
    """The cut it was initialised from, or the name of an existing model."""
    settings: PredistillConfig
    steps: int
    seconds: float
    """Of training."""
    requests: Mapping[str, int]
    """That it learnt from or was measured on, by domain."""
    tokens_by_kind: Mapping[str, int]
    """Output positions by where they come from, as `answers of the target`, `answers of the draft`, `text`."""
    figures: Figures
    by_position: Figures
    cost: DraftCost
    mixture: int = 0
    """Requests that go with the draft."""
    rounded_target: bool = False
    """Whether the target answered with weights of 8 bits."""


def write_draft_card(folder: Path, facts: CardFacts) -> None:
    """Write `README.md` into `folder`: a model card with the hub's front matter."""
    target = public_name(facts.target)
    settings = facts.settings
    card = CARD.format(
        front_matter=front_matter(facts),
        target=target,
        origin=_origin(facts.origin),
        fingerprint=facts.target_fingerprint[:12],
        rounded=", in 8 bits each" if facts.rounded_target else "",
        requests=sum(facts.requests.values()),
        tokens=sum(facts.tokens_by_kind.values()),
        kinds=_kinds(facts.tokens_by_kind),
        mixture=_mixture(facts.mixture),
        data_rows=_rows([domain, f"{count:,}"] for domain, count in sorted(facts.requests.items())),
        method=_method(settings),
        steps=facts.steps,
        loss=settings.loss,
        step_tokens=settings.batch_tokens * settings.accumulate * settings.devices,
        learning_rate=settings.learning_rate,
        seconds=facts.seconds,
        torch=torch.__version__,
        transformers=transformers.__version__,
        domain_rows=_rows(table_rows(facts.figures, "prompts")),
        position_rows=_rows(table_rows(facts.by_position, "positions")),
        cost=_cost(facts),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def front_matter(facts: CardFacts) -> str:
    """The metadata that the hub reads; the licence is the one that the target's own card states, if any."""
    fields: dict[str, object] = {
        "library_name": "hotdraft" if facts.settings.hidden_states else "transformers",
        "pipeline_tag": "text-generation",
        "tags": TAGS,
    }
    base = facts.origin if isinstance(facts.origin, str) else facts.target
    if base.count("/") == 1 and not Path(base).is_dir():
        fields["base_model"] = base
    licence = stated_licence(base)
    if licence is not None:
        fields["license"] = licence
    return f"---\n{yaml.safe_dump(fields, sort_keys=False)}---"


def stated_licence(name: str) -> str | None:
    """`license` in the front matter of the README of the model `name`; None if nothing is stated."""
    path = local_folder(name) / "README.md"
    parts = path.read_text(encoding="utf-8", errors="replace").split("---\n", 2) if path.is_file() else []
    if len(parts) < 3 or parts[0]:
        return None
    try:
        fields = yaml.safe_load(parts[1])
    except (yaml.YAMLError, ValueError):  # the latter for a day that no month has
        return None
    licence = fields.get("license") if isinstance(fields, dict) else None
    return licence if isinstance(licence, str) else None


def figures_by_position(scores: Mapping[str, Sequence[np.ndarray]]) -> Figures:
    """The figures by position from those of each request at its output positions, one array [N] a request."""
    table: Figures = {}
    for first, last in RANGES:
        found = {
            name: np.concatenate([np.zeros(0), *(values[first - 1 : last] for values in by_request)])
            for name, by_request in scores.items()
        }
        positions = max(map(len, found.values()), default=0)
        if positions:
            means = {name: float(values.mean()) for name, values in found.items()}
            table[f"{first}+" if last is None else f"{first}-{last}"] = {"positions": positions, **means}
    return table


def table_rows(figures: Figures, counted: str) -> list[list[str]]:
    """Rows of a table: where, how many of what is `counted`, greedy agreement, overlap."""
    return [
        [where, f"{values[counted]:,.0f}", f"{values['greedy_agreement']:.3f}", f"{values['overlap']:.3f}"]
        for where, values in figures.items()
    ]


def _origin(origin: Cut | str) -> str:
    if isinstance(origin, str):
        return f"`{public_name(origin)}`, trained further."
    if origin.hidden_states is not None:
        behind = ", ".join(map(str, origin.hidden_states))
        return (
            f"One layer that reads the states of `{public_name(origin.base)}` behind {behind} of its layers, with "
            "its embedding and output head. Only hotdraft runs it, with `engine.draft_window: null`."
        )
    layers = ", ".join(map(str, origin.layers))
    kept = "" if origin.feed_forward is None else f", {origin.feed_forward} channels of the feed-forward in each"
    return f"Layers {layers} of `{public_name(origin.base)}`{kept}, with its embedding and output head."


def _mixture(requests: int) -> str:
    if not requests:
        return "No prompt or answer is contained here."
    return (
        f"`mixture.parquet` holds {requests:,} of these prompts and answers, which online jobs rehearse and judge "
        "by; without it the draft is the same."
    )


def _kinds(tokens_by_kind: Mapping[str, int]) -> str:
    total = sum(tokens_by_kind.values())
    shares = ", ".join(f"{kind} {count / total:.0%}" for kind, count in tokens_by_kind.items() if count)
    return f"Positions by origin: {shares}."


def _method(settings: PredistillConfig) -> str:
    if settings.method == "full":
        return "All weights were trained but those shared with the target."
    quantised = " on an NF4 base" if settings.method == "qlora" else ""
    return f"A LoRA of rank {settings.lora.rank}{quantised} was trained and merged."


def _cost(facts: CardFacts) -> str:
    reached = facts.figures["all"]
    gains = [
        f"{facts.cost.speed_up(reached[name]):.2f}x at its {words} (k = {facts.cost.best_k(reached[name])})"
        for name, words in (("greedy_agreement", "greedy agreement"), ("overlap", "overlap"))
    ]
    return f"{describe_cost(facts.cost)} For this draft: {', '.join(gains)}, if memory is what bounds decoding."


def _rows(rows: Iterable[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
