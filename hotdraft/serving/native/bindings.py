"""The native library, by ctypes: its calls let go of the GIL, and it knows neither Python nor torch.

It is compiled when hotdraft is installed, where there is a compiler; what serves does without it otherwise.
"""

import ctypes
import os
import platform
import weakref
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_void_p
from enum import IntEnum
from functools import cache
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

FOLDER = Path(__file__).parent
MACHINES = ("x86_64", "AMD64")


class Format(IntEnum):
    """How a linear layer's weights lie in memory, see `native.h`."""

    FLOAT32 = 0
    BFLOAT16 = 1
    W8A16 = 2


class LinearStruct(ctypes.Structure):
    _fields_ = [
        ("format", c_int32),
        ("inputs", c_int32),
        ("outputs", c_int32),
        ("reserved", c_int32),
        ("panels", c_void_p),
        ("bias", c_void_p),
    ]


class StatesStruct(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("count", "size", "max_length", "slots")),
        *((name, c_void_p) for name in ("layers", "values", "committed")),
    ]


OWN_STATES = 2
"""`HD_OWN` of `native.h`."""


class ModelStruct(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("layers", "hidden", "intermediate", "heads", "kv_heads")),
        *((name, c_int32) for name in ("head_dim", "max_length", "half")),
        *((name, c_float) for name in ("epsilon", "head_epsilon", "scaling", "reserved")),
        *((name, c_void_p) for name in ("norms", "head_norms", "cos", "sin", "embedding")),
        ("linears", POINTER(POINTER(LinearStruct))),
        ("keys_values", c_void_p),
        *((name, POINTER(StatesStruct)) for name in ("records", "reads")),
        *((name, c_void_p) for name in ("state_norm", "own")),
    ]


CONFIDENCES = 8
"""`HD_CONFIDENCES` of `native.h`."""


class DraftingStruct(ctypes.Structure):
    _fields_ = [
        ("most", c_int32),
        ("ranks", c_int32),
        *(
            (name, c_void_p)
            for name in ("ks", "reads", "rates", "floors", "vocabulary", "drafted", "confidences", "sound")
        ),
        *((name, c_void_p) for name in ("others", "chances")),
    ]


class NativeError(RuntimeError):
    """Why there is no native library here, or none that can compute."""


class NotCompiledError(NativeError):
    """That the library of these sources is yet to be compiled."""


@cache
def native_library() -> ctypes.CDLL:
    """The library. Raises `NativeError` where there is none."""
    if (machine := platform.machine()) not in MACHINES:
        raise NativeError(f"it is of instructions of x86-64, and this processor is {machine}")
    path = next((path for suffix in EXTENSION_SUFFIXES if (path := FOLDER / f"_native{suffix}").exists()), None)
    checkout = FOLDER.parents[2]
    if not (checkout / "pyproject.toml").is_file():
        if path is None:
            raise NotCompiledError("hotdraft was installed without a C++ compiler")
        return load_library(path)
    if path is None or fingerprint().encode() not in path.read_bytes():
        its = "it" if path is None else "its present sources"
        raise NotCompiledError(
            f"hotdraft is imported from {checkout}, where `pip install -e .` has not compiled {its}"
        )
    return load_library(path)


def fingerprint() -> str:
    """Of the sources, which a library has in it that is compiled of them."""
    files = sorted(path for path in (FOLDER / "source").iterdir() if path.suffix in (".cpp", ".h", ".inl"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def load_library(path: Path) -> ctypes.CDLL:
    """The library of a build. Raises `NativeError` where it cannot be loaded."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"the native library cannot be loaded: {error}") from error
    _declare(library)
    return library


def find_instructions(wanted: str = "auto") -> str:
    """The instructions to compute with: amx, avx512_bf16, avx512 or avx2. Raises `NativeError` for none."""
    found = native_library().hd_instructions(None if wanted == "auto" else wanted.encode())
    if found is None:
        missing = "neither AVX-512 nor AVX2" if wanted == "auto" else f"no {wanted}"
        raise NativeError(f"this processor has {missing}")
    return found.decode()


def supports(instructions: str, format: Format) -> bool:
    """Whether there is a way to compute with weights of that format."""
    return bool(native_library().hd_supports(instructions.encode(), format))


class ThreadPool:
    """The threads that native forwards are computed with, the caller's included."""

    def __init__(self, instructions: str, threads: int) -> None:
        """Raises `NativeError` if there cannot be so many."""
        self._library = native_library()
        self.threads = threads
        self.instructions = instructions
        self.handle = c_void_p(self._library.hd_pool_create(instructions.encode(), threads))
        if not self.handle:
            raise NativeError(f"the system gives it no {threads} threads")
        weakref.finalize(self, _end_pool, self.handle, os.getpid()).atexit = False

    @property
    def stalls(self) -> int:
        """Waits for a thread that was kept from its core; forwards go on with one thread for a while then."""
        return self._library.hd_pool_stalls(self.handle)

    def read_speed(self, address: int, size: int) -> float:
        """Bytes a second of reading `size` bytes at `address` once, in several streams a thread."""
        return self._library.hd_read_speed(self.handle, address, size)


def _end_pool(pool: c_void_p, process: int) -> None:
    if os.getpid() == process:  # one that was forked off has none of the threads
        native_library().hd_pool_destroy(pool)


def _declare(library: ctypes.CDLL) -> None:
    model, pool = POINTER(ModelStruct), c_void_p
    signatures = {
        "hd_instructions": (c_char_p, [c_char_p]),
        "hd_supports": (c_int32, [c_char_p, c_int32]),
        "hd_packed_bytes": (c_size_t, [c_int32, c_int32, c_int32]),
        "hd_pack": (None, [c_int32, c_void_p, c_int32, c_int32, c_void_p]),
        "hd_unpack": (None, [c_int32, c_void_p, c_int32, c_int32, c_void_p]),
        "hd_slot_bytes": (c_size_t, [model]),
        "hd_move": (None, [model, c_int32, c_int32, c_int32]),
        "hd_move_key": (None, [model, c_int32, c_int32, c_int32]),
        "hd_clear": (None, [model, c_int32]),
        "hd_pool_create": (c_void_p, [c_char_p, c_int32]),
        "hd_pool_destroy": (None, [pool]),
        "hd_pool_stalls": (c_int64, [pool]),
        "hd_forward": (
            None,
            [model, pool, *[c_int32] * 3, *[c_void_p] * 4, c_int32, c_void_p],
        ),
        "hd_draft": (
            None,
            [model, pool, c_int32, c_int32, c_void_p, c_void_p, POINTER(DraftingStruct)],
        ),
        "hd_read_speed": (c_double, [pool, c_void_p, c_size_t]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
