"""The version of hotdraft that runs."""

from importlib import metadata


def installed_version() -> str:
    """Version of the installed distribution; a bare checkout has none."""
    try:
        return metadata.version("hotdraft")
    except metadata.PackageNotFoundError:
        return "unknown"
