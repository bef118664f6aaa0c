"""Adds recipes, search spaces and a bill of materials to the wheel. pyproject.toml has the rest."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SHIPPED = {"recipes": ("jobs/recipes", "*.yaml"), "spaces": ("tune_spaces", "*.py")}
"""Folders to create in the package, each with its source folder and the pattern of its files."""
LOCKED = ("cluster/torch.txt", "cluster/requirements.txt")
"""Files with the exact version and the hash of each package that dontstop was tested with."""
BILL = "dontstop.cdx.json"
"""Name of the bill of materials in the folder `sboms` of the wheel's metadata (PEP 770)."""


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


class WithBill(bdist_wheel):
    """Writes the bill of materials into the wheel's metadata, but not into that of an editable installation."""

    def write_wheelfile(self, wheelfile_base: str, *further: Any, **named: Any) -> None:
        """Writes the file WHEEL, then the bill of materials."""
        super().write_wheelfile(wheelfile_base, *further, **named)
        if not self.get_finalized_command("build_py").editable_mode:
            folder = Path(wheelfile_base, "sboms")
            folder.mkdir(exist_ok=True)
            bill = bill_of_materials(self.distribution.get_version())
            (folder / BILL).write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")


def bill_of_materials(version: str) -> dict[str, Any]:
    """Returns the bill of materials (CycloneDX 1.6): the tested versions of packages, with their hashes.

    Packages of optional extras are listed too. The wheel itself contains none of the packages.
    """
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in project["dependencies"]}
    lines = [line for file in LOCKED for line in Path(file).read_text(encoding="utf-8").splitlines()]
    parts = [component(*line.split(" --hash=sha256:")) for line in lines if not line.startswith("#")]
    own = {**named("dontstop", version), "licenses": [{"license": {"id": project["license"]}}]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": parts,
        "dependencies": [
            {"ref": own["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts if part["name"] in needed]}
        ],
    }


def component(pinned: str, digest: str) -> dict[str, Any]:
    """Returns the entry of a package such as `numpy==2.3.0`."""
    name, version = pinned.split("==")
    return {**named(name, version), "hashes": [{"alg": "SHA-256", "content": digest.strip()}]}


def named(name: str, version: str) -> dict[str, Any]:
    """Returns the name and the version of a package, and its address on PyPI."""
    url = f"pkg:pypi/{name}@{version}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


if __name__ == "__main__":
    setup(cmdclass={"build_py": WithShipped, "bdist_wheel": WithBill})
