"""The card of a pre-distilled draft: where its weights come from and what it reached."""

from pathlib import Path

from pipeline.models import Cut
from pipeline.replay import ReplayStats

Figures = dict[str, dict[str, float]]
"""Domain → `prompts`, `greedy_agreement`, `overlap`."""

CARD = """# A draft for {base}

Layers {layers} of `{base}` (weights {fingerprint}), with its embedding and output head, which are not
stored here. The licence and notices of `{base}` apply.

Made by `hotdraft predistill` from {requests:,} prompts that `{base}` answered with {tokens:,} tokens:
forward KL on its logged distributions. Prompts by domain: {domains}.

On prompts never trained on, over the positions of the target's own answers:

| domain | prompts | greedy agreement | overlap |
| --- | --- | --- | --- |
{rows}
"""


def write_draft_card(folder: Path, cut: Cut, data: ReplayStats, figures: Figures) -> None:
    """Write `README.md` beside the weights in `folder`."""
    rows = [
        f"| {domain} | {values['prompts']:.0f} | {values['greedy_agreement']:.3f} | {values['overlap']:.3f} |"
        for domain, values in figures.items()
    ]
    card = CARD.format(
        base=cut.base,
        layers=", ".join(map(str, cut.layers)),
        fingerprint=cut.base_fingerprint[:12],
        requests=data.requests,
        tokens=data.output_tokens,
        domains=", ".join(f"{domain} {count}" for domain, count in sorted(data.requests_by_domain.items())),
        rows="\n".join(rows),
    )
    (folder / "README.md").write_text(card)
