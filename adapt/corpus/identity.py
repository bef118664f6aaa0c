"""The part of a corpus's configuration that decides which documents are read, for the keys of stages."""

from typing import Any

from adapt.config import CorpusConfig, what
from adapt.corpus.cleaning import catalogue
from adapt.runner.digest import Digests
from adapt.runner.packages import deciding

_LATER = ("heldout_fraction", "deduplicate", "near_ngram", "near_permutations", "near_threshold")
_EVALUATION = ("decontaminate_ngram", "decontaminate_overlap")


def reading_identity(corpus: CorpusConfig, digests: Digests) -> dict[str, Any]:
    """The settings of reading and cleaning; evaluation sets by the content of their files.

    Raises:
        ConfigError: `corpus.cleaning` or `corpus.decontaminate` is wrong.
        DataError: a file of an evaluation set is missing.
    """
    settings = {name: value for name, value in what(corpus).items() if name not in (*_LATER, *_EVALUATION, "cleaning")}
    settings["id_field"] = None  # a field of earlier versions: corpora that they prepared keep their keys
    settings["cleaning"] = catalogue.identity(corpus.cleaning)
    if corpus.decontaminate:
        from adapt.corpus.screening.evaluation import evaluation_manifests  # numpy, which other plans do not need

        fields = {
            evaluation.name: {"text_field": evaluation.text_field, "pair_field": evaluation.pair_field}
            for evaluation in corpus.decontaminate
        }
        settings["decontaminate"] = {
            **{name: getattr(corpus, name) for name in _EVALUATION},
            "sets": {
                name: {"digest": manifest.digest, **fields[name]}
                for name, manifest in evaluation_manifests(corpus, digests).items()
            },
        }
    return settings


def dedup_identity(corpus: CorpusConfig) -> dict[str, Any]:
    """What counts as a duplicate."""
    if corpus.deduplicate == "exact":
        return {"deduplicate": "exact"}
    return {**{name: getattr(corpus, name) for name in _LATER[1:]}, **deciding("rensa")}
