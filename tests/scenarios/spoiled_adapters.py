"""What may be wrong with an adapter's files and with its entry in the registry: good ones in, spoiled ones out."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hotdraft.pipeline.models.adapter_folder import CARD_FILE, CONFIG_FILE, PROBE_FILE, WEIGHTS_FILE
from hotdraft.pipeline.models.draft_vocabulary import VOCABULARY_FILE

Spoil = Callable[[Path], object]
"""Changes an adapter's folder."""


def _missing(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garbage(path: Path) -> None:
    path.write_bytes(b"{nonsense" * 100)


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def _link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _is_list(path: Path) -> None:
    path.write_text("[1]")


def _is_null(path: Path) -> None:
    path.write_text("null")


def _nested(path: Path) -> None:
    path.write_text(100_000 * "[")


def _latin(path: Path) -> None:
    path.write_bytes(path.read_text().replace("{", '{"ä": 1, ', 1).encode("latin-1"))


def _json(name: str, **values: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **values}))

    return spoil


def _card_without(key: str) -> Spoil:
    def spoil(folder: Path) -> None:
        content = json.loads((folder / CARD_FILE).read_text())
        del content[key]
        (folder / CARD_FILE).write_text(json.dumps(content))

    return spoil


def _tensors(name: str, change: Callable[[dict[str, Tensor]], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / name)
        change(tensors)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / name)

    return spoil


def _first(change: Callable[[Tensor], Tensor]) -> Spoil:
    """Changes one tensor of the weights."""

    def edit(tensors: dict[str, Tensor]) -> None:
        key = min(tensors)
        tensors[key] = change(tensors[key])

    return _tensors(WEIGHTS_FILE, edit)


def _all(change: Callable[[Tensor], Tensor]) -> Spoil:
    return _tensors(WEIGHTS_FILE, lambda tensors: tensors.update({k: change(t) for k, t in tensors.items()}))


def _probe(**change: Callable[[Tensor], Tensor]) -> Spoil:
    return _tensors(PROBE_FILE, lambda tensors: tensors.update({k: f(tensors[k]) for k, f in change.items()}))


def _vocabulary(ids: Tensor) -> Spoil:
    return lambda folder: save_file({"token_ids": ids}, folder / VOCABULARY_FILE)


def _at(name: str, way: Callable[[Path], None]) -> Spoil:
    return lambda folder: way(folder / name)


FILES = (CARD_FILE, CONFIG_FILE, WEIGHTS_FILE, PROBE_FILE)
OF_ANY_FILE = (_missing, _empty, _garbage, _truncated, _folder, _dangling_link, _link_to_itself)
OF_JSON = (_is_list, _is_null, _nested, _latin)
CARD_VALUES: dict[str, Any] = {
    "of another draft": {"base_fingerprint": 64 * "0"},
    "of no draft": {"base_fingerprint": None},
    "quantized otherwise": {"quantization": "int3"},
    "rank 0": {"rank": 0},
    "rank 4.5": {"rank": 4.5},
    "rank null": {"rank": None},
    "another rank": {"rank": 8},
    "alpha null": {"alpha": None},
    "alpha text": {"alpha": "8"},
    "alpha 10^400": {"alpha": 10**400},
    "alpha NaN": {"alpha": float("nan")},
    "another alpha": {"alpha": 7},
    "modules null": {"target_modules": None},
    "modules text": {"target_modules": "all-linear"},
    "modules numbers": {"target_modules": [1]},
    "no modules": {"target_modules": []},
    "other modules": {"target_modules": ["c_attn"]},
    "parent text": {"parent_version": "first"},
    "requests null": {"requests": None},
    "domains list": {"domains": ["d"]},
    "time text": {"created_at": "today"},
    "another key": {"surprise": 1},
}

SPOILED_FILES: dict[str, Spoil] = {
    **{f"{name}: {way.__name__}": _at(name, way) for name in FILES for way in OF_ANY_FILE},
    **{f"{name}: {way.__name__}": _at(name, way) for name in (CARD_FILE, CONFIG_FILE) for way in OF_JSON},
    **{f"card: {how}": _json(CARD_FILE, **values) for how, values in CARD_VALUES.items()},
    "card: no alpha": _card_without("alpha"),
    "config: another rank": _json(CONFIG_FILE, r=5),
    "config: rank null": _json(CONFIG_FILE, r=None),
    "config: another alpha": _json(CONFIG_FILE, lora_alpha=5),
    "weights: NaN": _first(lambda t: t.fill_(torch.nan)),
    "weights: infinite": _first(lambda t: t.fill_(torch.inf)),
    "weights: too large together": _all(lambda t: t.fill_(3e38)),
    "weights: float8": _first(lambda t: t.to(torch.float8_e4m3fn)),
    "weights: integers": _first(lambda t: t.to(torch.int8)),
    "weights: transposed": _first(lambda t: t.T),
    "weights: a number": _first(lambda t: t.sum()),
    "weights: another rank": _first(lambda t: torch.cat([t, t])),
    "weights: one missing": _tensors(WEIGHTS_FILE, lambda tensors: tensors.pop(min(tensors))),
    "weights: one too many": _tensors(WEIGHTS_FILE, lambda tensors: tensors.update(extra=torch.zeros(1))),
    "weights: of another training": _all(lambda t: t.neg() + 1),
    "probe: of another training": _probe(logits=lambda t: t.neg()),
    "probe: NaN": _probe(logits=lambda t: t.fill_(torch.nan)),
    "probe: float8": _probe(logits=lambda t: t.to(torch.float8_e5m2)),
    "probe: narrow": _probe(logits=lambda t: t[:, 1:]),
    "probe: no ids": _probe(input_ids=lambda t: t[:, :0]),
    "probe: long": _probe(input_ids=lambda t: t.repeat(1, 200)),
    "probe: unknown ids": _probe(input_ids=lambda t: t + 10**6),
    "probe: ids as floats": _probe(input_ids=lambda t: t.float()),
    "vocabulary: garbage": lambda folder: (folder / VOCABULARY_FILE).write_bytes(b"nonsense"),
    "vocabulary: unknown ids": _vocabulary(torch.tensor([10**6], dtype=torch.int32)),
    "vocabulary: floats": _vocabulary(torch.rand(3)),
}

SPOILED_SOURCES = {
    "source: nowhere": "/nowhere/adapter",
    "source: a file": __file__,
    "source: refused": "http://127.0.0.1:9/adapter",
    "source: of no kind": "nosuch://bucket/adapter",
    "source: of no run": "runs:/0123456789abcdef0123456789abcdef/adapter",
    "source: text": "adapter \n number five",
}

ODD_TAGS: tuple[Mapping[str, str], ...] = (
    {},
    {"status": "excellent"},
    {"previous_champion": "abc", "parent": "abc"},
    {"previous_champion": "-1", "gain": "a lot", "gain_low": ""},
    {"previous_champion": str(10**30), "parent": str(10**400)},
    {"served/run": "{", "gate_by_domain": "{"},
    {"served/run": "[]", "gate_by_domain": "[]"},
    {"served/run": '{"requests": "many"}', "gate_by_domain": '{"sql": 3}'},
    {"served/run": '{"requests": 1, "until": 1e300}', "gate_by_domain": '{"sql": {"champion": NaN}}'},
    {"train_requests": "3", "train_first_at": "today", "candidate_expected_acceptance": "high"},
)
"""Beside a version's files; the first is that of a version made in MLflow's pages, which lacks even a status."""
