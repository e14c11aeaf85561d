"""What is known of a recorded request without reading it: some hundred bytes, which its shard carries along."""

import hashlib
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hotdraft.pipeline.replay.sample import missed
from hotdraft.pipeline.replay.schema import pieces

INDEX = pa.schema(
    [
        ("request_id", pa.string()),
        ("created_at", pa.float64()),
        ("domain", pa.string()),
        ("prompt_hash", pa.uint64()),
        ("prompt_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("drafted", pa.int32()),
        ("accepted", pa.int32()),
        ("missed", pa.int32()),
        ("draft_version", pa.int32()),  # that drafted last, -1 without output
        ("target_id", pa.string()),
    ]
)


def prompt_hash(prompt_ids: np.ndarray) -> int:
    """64 bits that tell prompts [P] apart; by the upper 32 `held_out` splits them as `is_held_out` does."""
    tokens = np.asarray(prompt_ids, np.int32).tobytes()
    return zlib.crc32(tokens) << 32 | int.from_bytes(hashlib.blake2b(tokens, digest_size=4).digest())


def held_out(prompt_hashes: np.ndarray, fraction: float) -> np.ndarray:
    """bool [R]: `is_held_out` of the prompts of these hashes, uint64 [R]."""
    return (prompt_hashes >> np.uint64(32)).astype(np.float64) / 2**32 < fraction


def may_be_of(index: pa.Table, target_id: str) -> np.ndarray:
    """bool [R]: which rows a target may have answered, as `may_be_same` tells."""
    if not target_id:
        return np.ones(len(index), bool)
    return pc.is_in(index["target_id"], pa.array(["", target_id])).to_numpy()


def index_of(table: pa.Table) -> pa.Table:
    """The index of `table`, which is of the schema of shards."""
    columns = {name: pieces(table[name]) for name in ("prompt_ids", "output_ids", "drafted_ids", "accepted")}
    versions = pieces(table["draft_versions"])
    drafts = list(zip(columns["drafted_ids"], columns["accepted"], strict=True))
    # a record that contradicts itself is left out by whoever reads it, see `training.batches.record_check`
    misses = [int(missed(ids, accepted).sum()) if len(ids) == len(accepted) else 0 for ids, accepted in drafts]
    return pa.table(
        {
            "request_id": table["request_id"],
            "created_at": table["created_at"],
            "domain": table["domain"],
            "prompt_hash": [prompt_hash(ids) for ids in columns["prompt_ids"]],
            "prompt_tokens": [len(ids) for ids in columns["prompt_ids"]],
            "output_tokens": [len(ids) for ids in columns["output_ids"]],
            "drafted": [int((ids >= 0).sum()) for ids, _ in drafts],
            "accepted": [int(accepted.sum()) for _, accepted in drafts],
            "missed": misses,
            "draft_version": [int(row[-1]) if len(row) else -1 for row in versions],
            "target_id": table["target_id"],
        },
        schema=INDEX,
    )
