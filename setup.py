"""Adds the recipes and search spaces to the wheel. They are outside the package folder. pyproject.toml has the rest."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = {"recipes": ("jobs/recipes", "*.yaml"), "spaces": ("tune_spaces", "*.py")}
"""Folders to create in the package, each with its source folder and the pattern of its files."""


class WithShipped(build_py):
    """Copies the folders in SHIPPED into the wheel. An editable installation reads the source folders instead."""

    def run(self) -> None:
        """Copies the modules, then the folders in SHIPPED."""
        super().run()
        for name, (folder, pattern) in ({} if self.editable_mode else SHIPPED).items():
            target = Path(self.build_lib, "adapt", name)
            target.mkdir(parents=True, exist_ok=True)
            for file in Path(folder).glob(pattern):
                shutil.copyfile(file, target / file.name)


setup(cmdclass={"build_py": WithShipped})
