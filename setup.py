"""Adds the recipes and search spaces to the wheel, which lie beside the package here. All else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = {"recipes": ("jobs/recipes", "*.yaml"), "spaces": ("tune_spaces", "*.py")}
"""Folders of the package, each with what it holds."""


class WithShipped(build_py):
    """Copies them into the wheel; an editable installation reads them where they are."""

    def run(self) -> None:
        """Copies the modules, then the folders in SHIPPED."""
        super().run()
        for name, (folder, pattern) in ({} if self.editable_mode else SHIPPED).items():
            target = Path(self.build_lib, "adapt", name)
            target.mkdir(parents=True, exist_ok=True)
            for file in Path(folder).glob(pattern):
                shutil.copyfile(file, target / file.name)


setup(cmdclass={"build_py": WithShipped})
