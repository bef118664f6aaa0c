"""Sends the folder of a model to the Hugging Face Hub (`export.push`, `dontstop push`).

The token is read only from the environment, and is neither logged nor stored. huggingface_hub uploads the files. After
an interruption, it does not send files again that the Hub already has. The local folder is not changed, so a failure
loses nothing. Each error shows the command that retries the push.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from adapt.handover.task_kinds import EXAMPLES, TRAINED_GLINER
from adapt.model.locate import CONFIG, OFFLINE, model_files
from adapt.runner.bucket_records import DIGITS
from adapt.runner.record import RECORD_FILE
from adapt.support.errors import AdaptError, ConfigError, HubError, ModelError
from adapt.support.redact import TOKEN_FORM, redact

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TOKEN = "HF_TOKEN"
"""Environment variable for a Hub token with write access."""
CARD = "README.md"
_PART = r"[A-Za-z0-9](?:[\w.-]*\w)?"
NAME = re.compile(rf"{_PART}/{_PART}(?<!\.git)", re.ASCII)
"""Pattern of the name of a repository with its owner. The Hub refuses names that end in `-`, `.` or `.git`."""
KEPT_HERE = (RECORD_FILE, "*.log", ".*", "**/.*", "log.jsonl", EXAMPLES, f"{TRAINED_GLINER}/*")
"""Patterns of files that are not sent: the stage's record, logs, hidden files, the user's training data, and
the folder into which the card's GLiNER example writes the model that it trains on these data."""
STAGE_FOLDER = re.compile(rf".+-[0-9a-f]{{{DIGITS}}}")
"""Pattern of the name of a stage's folder, which ends in the first digits of the key."""
REPLACED = (
    *("*.safetensors", "*.safetensors.index.json", "model_head.pkl", "config_setfit.json"),
    *("onnx/*", "gguf/*"),
)
"""Patterns of files that a push removes from the Hub if the new model does not have them. Otherwise, libraries would
load these files of an earlier model."""


@dataclass(frozen=True)
class Sent:
    """A model on the Hub."""

    url: str
    """Address of the model's page."""
    commit: str
    """Hash of the commit that has the files."""


def push_command_of(folder: Path, repository: str) -> str:
    """Returns the command that pushes a folder."""
    return f"dontstop push {shlex.quote(str(folder))} {repository}"


def check_repository(repository: str) -> None:
    """Checks the name of a repository."""
    if not NAME.fullmatch(repository) or "--" in repository or ".." in repository or len(repository) > 96:
        raise ConfigError(
            f"export.push: {repository!r} is not the name of a repository on the Hugging Face Hub",
            "write OWNER/NAME with letters, digits, -, _ and ., such as me/bert-physics",
        )


def check_access(folder: Path, repository: str) -> str:
    """Checks before any stage runs that a token is set and that the network is not switched off. Returns the token.

    Args:
        folder: folder of the model, which may not exist yet.
        repository: name of the repository with its owner.

    Raises:
        HubError: no token is set, the token has invalid characters, or an environment variable keeps the Hugging Face
            libraries from using the network.
    """
    later = f"or remove export.push and push later: {push_command_of(folder, repository)}"
    if offline := next((name for name in OFFLINE if os.environ.get(name, "0") not in ("", "0")), None):
        raise HubError(f"cannot push to {repository}, because {offline} is set", f"unset {offline}, {later}")
    token = os.environ.get(TOKEN, "").strip()
    if not token:
        raise HubError(
            f"cannot push to {repository}, because {TOKEN} is not set",
            f"set {TOKEN} to a token with write access (https://huggingface.co/settings/tokens), {later}",
        )
    if not TOKEN_FORM.fullmatch(token):
        raise HubError(
            f"cannot push to {repository}, because {TOKEN} has spaces, line breaks or other characters that a token"
            " cannot have",
            f"copy the token again, without surrounding characters, {later}",
        )
    return token


def check_finished(folder: Path) -> None:
    """Checks that the stage that wrote a folder is finished.

    The folder is a stage's folder, or a folder in it. A finished stage has a record, which is written last.
    """
    for place in (folder.absolute(), folder.absolute().parent):
        if STAGE_FOLDER.fullmatch(place.name) and not (place / RECORD_FILE).is_file():
            raise ModelError(
                f"{place} has no {RECORD_FILE}, so its stage is not finished, and files may be missing or incomplete",
                "run the command that makes the model again; if the folder is a complete copy, remove the stage's key"
                " from the end of its name",
            )


def push_folder(folder: Path, repository: str, private: bool = True) -> Sent:
    """Sends a model to the Hub. Creates the repository if needed. An existing repository keeps its visibility.

    Args:
        folder: folder of the model, in the format of transformers.
        repository: name of the repository with its owner.
        private: whether a new repository is private.

    Raises:
        ConfigError: the name does not have the form OWNER/NAME.
        ModelError: the folder has no model, or its stage is not finished.
        HubError: there is no token or network, the token may not write, the Hub refuses the card, or the upload failed.
    """
    check_repository(repository)
    if not (folder / CONFIG).is_file():
        raise ModelError(
            f"{folder} has no {CONFIG}, so it contains no model", "name a folder such as runs/export/papers-KEY"
        )
    model_files(folder)
    check_finished(folder)
    token = check_access(folder, repository)
    with named_failures(folder, repository):
        api = _hub().HfApi(token=token)
        check_card(folder, repository)
        address = api.create_repo(repository, private=private, exist_ok=True)
        return Sent(str(address), upload(api, folder, repository))


def _hub() -> ModuleType:
    """Returns huggingface_hub, which takes time to load."""
    import huggingface_hub

    return huggingface_hub


def upload(api: HfApi, folder: Path, repository: str) -> str:
    """Uploads the files that the Hub does not have yet, and returns the hash of the last commit.

    The first commit also removes the weights of an earlier push that are not in the folder.
    """
    message = f"Upload {folder.name} with dontstop"
    done = api.upload_folder(
        repo_id=repository,
        folder_path=folder,
        commit_message=message,
        ignore_patterns=[*KEPT_HERE],
        delete_patterns=[*REPLACED],
    )
    return str(done.oid)


def check_card(folder: Path, repository: str) -> None:
    """Checks the YAML header of the model card with the Hub's own parser."""
    card = folder / CARD
    if not card.is_file():
        return
    try:
        _hub().ModelCard(card.read_text(encoding="utf-8"), ignore_metadata_errors=False)
    except Exception as error:  # errors of the YAML parser, and ValueErrors of huggingface_hub
        raise HubError(
            f"the YAML header of {card} is not valid: {str(error).splitlines()[0]}",
            f"correct the header, then run: {push_command_of(folder, repository)}",
        ) from error


@contextmanager
def named_failures(folder: Path, repository: str) -> Iterator[None]:
    """Converts errors of huggingface_hub and of the network to errors that say where the model is and what to do.

    Raises:
        HubError: the block raised an error.
    """
    try:
        yield
    except AdaptError:
        raise
    except Exception as error:  # errors of huggingface_hub, of the HTTP client and of sockets
        why, fix = _reason(error, repository)
        raise HubError(
            f"the push to {repository} failed: {why}. The model stays in {folder}",
            f"{fix}: {push_command_of(folder, repository)}",
        ) from error


_OF_HTTP = ("httpx", "httpcore", "httpx2", "httpcore2")
"""HTTP packages whose errors mean that a connection failed. huggingface_hub uses either the first or the last two."""


def _reason(error: BaseException, repository: str) -> tuple[str, str]:
    """Returns why a push failed and how to fix it, according to an error and the errors that caused it."""
    errors = [error]
    while cause := errors[-1].__cause__ or errors[-1].__context__:
        errors.append(cause)
    for found in errors:
        status = getattr(getattr(found, "response", None), "status_code", None)
        if status in (401, 403):
            return "the Hub refused the token", f"set {TOKEN} to a token that may write to {repository}"
        if status is not None:
            return f"the Hub answered with status {status}: {_first_line(found)}", "try again later"
        if isinstance(found, ConnectionError) or type(found).__module__.split(".")[0] in _OF_HTTP:
            return f"the Hub cannot be reached: {_first_line(found)}", "try again on a machine that can reach the Hub"
    return f"{type(error).__name__}: {_first_line(error)}", "try again"


def _first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, without the token and without the signatures in upload URLs."""
    token, said = os.environ.get(TOKEN, "").strip(), str(error)
    said = redact(said.replace(token, "***") if token else said)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
