"""How setuptools compiles the library, before hotdraft can be imported: its sources' fingerprint goes into it."""

from pathlib import Path
from runpy import run_path

from setuptools import Extension
from setuptools.command.build_ext import build_ext


class Build(build_ext):
    def build_extension(self, ext: Extension) -> None:
        bindings = run_path(str(Path(__file__).with_name("bindings.py")))
        ext.define_macros.append(("HD_SOURCES", f'"{bindings["fingerprint"]()}"'))
        super().build_extension(ext)
