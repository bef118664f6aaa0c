"""Kind `transformers` of `export.kinds`: every export is a folder of transformers, so nothing is added."""

from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver
from adapt.model.locate import model_files


class ToTransformers(ExportKind):
    """Loads with transformers."""

    def write(self, exported: ExportedModel) -> HandedOver:
        """Lists the files of the model.

        Raises:
            ModelError: the folder lacks config.json or weights.
        """
        files = [str(file.relative_to(exported.folder)) for file in model_files(exported.folder)]
        return HandedOver("transformers", files)

    def example(self, exported: ExportedModel) -> str:
        """Returns nothing: every card shows how to load the model with transformers."""
        return ""
