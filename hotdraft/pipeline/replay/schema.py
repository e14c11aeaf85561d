"""The columns of a shard, one row a request, and the records that they hold."""

import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from hotdraft.pipeline.replay.sample import BY_POSITION, ReplaySample

SCHEMA = pa.schema(
    [
        ("request_id", pa.string()),
        ("created_at", pa.float64()),
        ("domain", pa.string()),
        ("temperature", pa.float32()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("output_ids", pa.list_(pa.int32())),
        ("target_top_ids", pa.list_(pa.int32())),
        ("target_top_logprobs", pa.list_(pa.float16())),
        ("target_tail_logprob", pa.list_(pa.float32())),
        ("drafted_ids", pa.list_(pa.int32())),
        ("accepted", pa.list_(pa.bool_())),
        ("draft_versions", pa.list_(pa.int32())),
        ("top_p", pa.float32()),
        ("top_k", pa.int32()),
        ("min_p", pa.float32()),
        ("salted", pa.bool_()),
        ("target_id", pa.string()),
        ("draft_id", pa.string()),
    ]
)
ADDED = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "salted": False, "target_id": "", "draft_id": ""}
"""Columns that older shards lack, and what their rows have there."""
BY_TOP_TOKEN = ("target_top_ids", "target_top_logprobs")
"""Columns [N, K], row-major."""


def is_held_out(prompt_ids: Sequence[int] | np.ndarray, fraction: float) -> bool:
    """Whether a prompt [P] belongs to the gate's split: fixed by its tokens, so that all its answers do."""
    return zlib.crc32(np.asarray(prompt_ids, np.int32).tobytes()) / 2**32 < fraction


def table_of(samples: Sequence[ReplaySample]) -> pa.Table:
    return pa.Table.from_pylist([_to_row(sample) for sample in samples], schema=SCHEMA)


def _to_row(sample: ReplaySample) -> dict:
    return {name: _flat(getattr(sample, name)) for name in SCHEMA.names}


def _flat(value: object) -> object:
    return value.reshape(-1) if isinstance(value, np.ndarray) else value


def sample_from_row(row: dict) -> ReplaySample:
    """The `ReplaySample` of one row of `SCHEMA`."""
    length = len(row["output_ids"])
    return ReplaySample(
        request_id=row["request_id"],
        created_at=row["created_at"],
        domain=row["domain"],
        temperature=row["temperature"],
        prompt_ids=np.asarray(row["prompt_ids"], np.int32),
        output_ids=np.asarray(row["output_ids"], np.int32),
        target_top_ids=np.asarray(row["target_top_ids"], np.int32).reshape(length, -1),
        target_top_logprobs=np.asarray(row["target_top_logprobs"], np.float16).reshape(length, -1),
        target_tail_logprob=np.asarray(row["target_tail_logprob"], np.float32),
        drafted_ids=np.asarray(row["drafted_ids"], np.int32),
        accepted=np.asarray(row["accepted"], bool),
        draft_versions=np.asarray(row["draft_versions"], np.int32),
        top_p=row["top_p"],
        top_k=row["top_k"],
        min_p=row["min_p"],
        salted=bool(row["salted"]),  # of `datasets` in NumPy's format it is an array of one
        target_id=row["target_id"],
        draft_id=row["draft_id"],
    )


def pieces(column: pa.ChunkedArray) -> list:
    """A value a row, lists as arrays; several times faster than rows one at a time."""
    values = column.combine_chunks()
    if not len(values) or not pa.types.is_list(values.type):
        return values.to_pylist()
    offsets = values.offsets.to_numpy()
    return np.split(values.flatten().to_numpy(zero_copy_only=False), offsets[1:-1] - offsets[0])


def completed(table: pa.Table) -> pa.Table:
    """`table` of an older shard in the present schema, with what `ADDED` says; ValueError if it is none."""
    check_columns(table.column_names)
    for name in table.column_names:
        column, wanted = table[name], SCHEMA.field(name).type
        column.validate(full=True)  # text is not looked at when it is read
        if _kind(column.type) != _kind(wanted):
            raise ValueError(f"{name} is {column.type} and not {wanted}")
        if column.null_count or (pa.types.is_list(wanted) and any(c.flatten().null_count for c in column.chunks)):
            raise ValueError(f"{name} has nulls")
    lengths = {name: _lengths(table[name]) for name in table.column_names if pa.types.is_list(table[name].type)}
    for name in BY_POSITION:
        if name not in BY_TOP_TOKEN and not np.array_equal(lengths[name], lengths["output_ids"]):
            raise ValueError(f"{name} and output_ids differ in length")
    top, count = lengths["target_top_ids"], lengths["output_ids"]
    if not np.array_equal(top, lengths["target_top_logprobs"]) or (top % np.maximum(count, 1)).any():
        raise ValueError("target_top_ids, target_top_logprobs and output_ids differ in length")
    return with_added(table).select(SCHEMA.names).cast(SCHEMA).replace_schema_metadata(None)


def check_columns(names: Sequence[str]) -> None:
    """ValueError if they are not those of a shard, an older one or not."""
    expected = [name for name in SCHEMA.names if name not in ADDED or name in names]
    if sorted(names) != sorted(expected):
        differing = sorted(set(names) ^ set(expected))
        raise ValueError(f"it has other columns than a shard: {', '.join(differing) or 'some of them twice'}")


def with_added(table: pa.Table, schema: pa.Schema = SCHEMA) -> pa.Table:
    """`table` with the columns of `schema` that it lacks behind those that it has."""
    for name, value in ADDED.items():
        if name in schema.names and name not in table.column_names:
            column = pa.repeat(pa.scalar(value, schema.field(name).type), len(table))
            table = table.append_column(schema.field(name), column)
    return table


def _kind(type_: pa.DataType) -> tuple[bool, pa.DataType]:
    """Without the name of a list's items, which depends on the writer."""
    is_list = pa.types.is_list(type_)
    return is_list, type_.value_type if is_list else type_


def _lengths(column: pa.ChunkedArray) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *(np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks)])
