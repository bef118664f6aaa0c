"""Defines the stage `push`, which sends an exported model to the Hugging Face Hub (`export.push`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapt.config import ExportConfig
from adapt.handover.push import check_access, check_repository, push_folder
from adapt.runner import NOTHING, Done, Outcome, Stage
from adapt.runner.record import Record
from adapt.show.blocks import Block, TextBlock
from adapt.stage.context import Context
from adapt.stage.export_model import Export


@dataclass(frozen=True)
class Pushed:
    """Result of a push."""

    url: str
    """Address of the model's page."""
    commit: str
    """Hash of the commit that has the files."""

    def blocks(self, record: Record) -> list[Block]:
        return [TextBlock(f"Pushed to {self.url}")]


@dataclass(frozen=True, eq=False)
class Push(Stage[Pushed]):
    """Sends a model to the Hub. A failed push has no record, so the same command tries it again."""

    kind = "push"
    takes = NOTHING

    name: str
    settings: ExportConfig
    repository: str
    export: Export
    folder: Path
    """Folder of the export, for messages."""

    @classmethod
    def of(cls, context: Context, export: Export | None) -> "Push | None":
        """Creates the stage that pushes an export. Returns None if `export.push` is not set.

        Args:
            context: context of the job.
            export: stage that writes the model to push. None if the job makes no model, or several models.

        Raises:
            ConfigError: `export.push` is not the name of a repository.
        """
        config = context.config
        if export is None or config.export.push is None:
            return None
        check_repository(config.export.push)
        return cls(config.name, config.export, config.export.push, export, context.store.folder_of(export))

    def what(self) -> Mapping[str, Any]:
        return {"repository": self.repository}

    def refuse_early(self) -> None:
        """Checks that there is a token and that the network may be used."""
        check_access(self.folder, self.repository)

    def run(self, folder: Path, done: Done) -> Outcome[Pushed]:
        """Sends the files.

        Raises:
            HubError: the push failed. The model remains, and the message names the command that pushes it later.
        """
        sent = push_folder(done[self.export].path, self.repository, self.settings.private)
        return Outcome(Pushed(sent.url, sent.commit))
