"""Build a wheel that holds the C++ tier, for the torch and the Python that are installed here: `make wheel`.

pip does not ask this file: what it builds by itself is pure, and needs neither torch nor a compiler.
"""

import sys
import tempfile
import warnings
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

from aotkit.torch_private.native import PACKAGED, building


class WithLibrary(build_py):
    def run(self) -> None:
        super().run()
        inside = PACKAGED.resolve().relative_to(Path(__file__).resolve().parents[3])
        path = Path(self.build_lib, inside, building.place())
        building.build(path)
        path.with_suffix(".lock").unlink()


class ForThisPlatform(Distribution):
    def has_ext_modules(self) -> bool:
        return True


def build_wheel(folder: str) -> None:
    """Put the wheel into a folder.

    Raises:
        RuntimeError: the compiler fails.
    """
    with tempfile.TemporaryDirectory() as aside:  # files of an earlier build would get into this one, and into pip's
        commands = ["egg_info", "--egg-base", aside, "build", "--build-base", aside]
        arguments = ["--quiet", *commands, "bdist_wheel", "--dist-dir", folder]
        warnings.filterwarnings("ignore", "setup.py install is deprecated")  # setuptools' own way to a wheel
        setup(script_args=arguments, cmdclass={"build_py": WithLibrary}, distclass=ForThisPlatform)


if __name__ == "__main__":
    build_wheel(*sys.argv[1:])
