"""A Hugging Face Llama folder as a GGUF file for llama.cpp, without torch.

Tensor layouts: https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

PRECISIONS = {
    "bfloat16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "float16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "float32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}
"""Of the matrices; vectors are always float32, as llama.cpp wants them."""


def write_gguf(
    folder: Path, destination: Path, dtype: str, write_vocabulary: Callable[[gguf.GGUFWriter, int], None]
) -> None:
    """Write the model in `folder` to the file `destination` with matrices in `dtype`, one of `PRECISIONS`.

    `write_vocabulary(writer, size)` adds the tokens. Raises `ValueError` if it is no plain Llama.
    """
    config = json.loads((folder / "config.json").read_text())
    quantization, file_type = PRECISIONS[dtype]
    writer = gguf.GGUFWriter(destination, "llama")
    writer.add_file_type(file_type)
    _write_shape(writer, config)
    write_vocabulary(writer, config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in read_tensors(folder):
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        module = name.split(".")[-2]
        if module in heads:
            tensor = _interleaved(tensor, heads[module])
        gguf_name = names.get_name(name, (".weight",))
        if gguf_name is None:
            raise ValueError(f"a Llama has no tensor {name!r}")
        if tensor.ndim == 1:
            writer.add_tensor(gguf_name, tensor)
        else:
            writer.add_tensor(gguf_name, gguf.quantize(tensor, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_tensors(folder: Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Names and values of every tensor in the folder's safetensors files.

    Read by hand, because the library's numpy reader knows no bfloat16. The format:
    https://huggingface.co/docs/safetensors
    """
    for file in sorted(folder.glob("*.safetensors")):
        content = np.memmap(file, dtype=np.uint8, mode="r")
        start = 8 + int(content[:8].view("<u8")[0])
        header = json.loads(content[8:start].tobytes())
        header.pop("__metadata__", None)
        for name, entry in header.items():
            first, end = entry["data_offsets"]
            data = content[start + first : start + end].tobytes()
            yield name, _as_float32(data, entry["dtype"]).reshape(entry["shape"])


def _as_float32(data: bytes, dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view(np.float32)
    return np.frombuffer(data, {"F16": "<f2", "F32": "<f4"}[dtype]).astype(np.float32)


def _interleaved(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of a query or key projection [heads * size, in] reordered: llama.cpp rotates neighbours, Hugging
    Face rotates the halves of a head."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def _write_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10_000.0)}
    plain_rope = rope.get("rope_type", "default") == "default" and not config.get("rope_scaling")
    if config["model_type"] != "llama" or config.get("attention_bias") or config.get("mlp_bias") or not plain_rope:
        raise ValueError(
            "only Llama models without biases or rope scaling can be written as GGUF, "
            f"not {config['model_type']!r} with rope {rope}"
        )
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
