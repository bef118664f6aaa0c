"""Kind `sentence_transformers` of `export.kinds`: modules.json and the pooling, next to the files of transformers.

The pooling is that of `export.sentence_transformers`, of the objective or of the initial model, and otherwise `mean`
(`adapt.model.sentence_vectors`).
"""

from adapt.handover.export_kind import ExportedModel, ExportKind, HandedOver
from adapt.model.locate import MODULES, SENTENCE_LENGTHS, SENTENCE_SETTINGS, read_list
from adapt.support.errors import ModelError

OWN = (MODULES, SENTENCE_LENGTHS, SENTENCE_SETTINGS)
"""Files of sentence-transformers in the folder itself. The modules after the transformer have folders."""


def pooling_files(exported: ExportedModel) -> list[str]:
    """Returns the files of sentence-transformers in an exported folder, by their paths in it.

    Raises:
        ModelError: the folder lacks one of them.
    """
    modules = [str(module["path"]) for module in read_list(exported.folder / MODULES) if isinstance(module, dict)]
    files = [*OWN, *(f"{path}/config.json" for path in modules if path)]
    missing = [name for name in files if not (exported.folder / name).is_file()]
    if missing:
        raise ModelError(f"{exported.folder} lacks {', '.join(missing)}", "run the export again")
    return files


class ToSentenceTransformers(ExportKind):
    """Loads with sentence-transformers. The files are written with those of the model, so that they are only listed."""

    needs_vectors = True

    def write(self, exported: ExportedModel) -> HandedOver:
        """Lists the files of sentence-transformers.

        Raises:
            ModelError: the folder lacks one of them.
        """
        pooling = exported.vectors.pooling if exported.vectors else ""
        return HandedOver("sentence_transformers", pooling_files(exported), note=f"The pooling is {pooling}.")

    def example(self, exported: ExportedModel) -> str:
        """Returns nothing: the card of a model for sentence vectors shows this anyway."""
        return ""
