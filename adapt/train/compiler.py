"""Whether torch.compile can work here. Loads no heavy library."""

import os
import shutil

from adapt.errors import ConfigError


def check_compiler(on_gpu: bool) -> None:
    """Looks for the compiler that torch.compile calls: C++ for CPUs, C for the launchers of GPU kernels.

    Raises:
        ConfigError: there is none.
    """
    names = [os.environ.get("CC"), "gcc", "clang", "cc"] if on_gpu else [os.environ.get("CXX", "g++")]
    if not any(name and shutil.which(name) for name in names):
        raise ConfigError(
            "training.compile needs a compiler, and none was found: looked for " + ", ".join(filter(None, names)),
            "install g++ (or set CXX to a C++ compiler), or leave training.compile off",
        )
