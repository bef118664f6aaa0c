"""Writes the metadata header of a model card, which the Hugging Face Hub checks and uses to find models."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from adapt.config import ExportConfig
from adapt.evaluate.compared_models import BenchmarksCompared
from adapt.evaluate.measurements import LossChange, RetrievalChange
from adapt.model.model_card import is_hub_id
from adapt.support.errors import ConfigError, nearest

LICENSES = frozenset(
    (
        *("afl-3.0", "agpl-3.0", "apache-2.0", "apple-amlr", "apple-ascl", "artistic-2.0"),
        *("bigcode-openrail-m", "bigscience-bloom-rail-1.0", "bigscience-openrail-m", "bsd", "bsd-2-clause"),
        *("bsd-3-clause", "bsd-3-clause-clear", "bsl-1.0", "c-uda", "cc", "cc-by-2.0", "cc-by-2.5"),
        *("cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nc-nd-3.0"),
        *("cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0"),
        *("cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0"),
        *("cdla-sharing-1.0", "creativeml-openrail-m", "deepfloyd-if-license", "ecl-2.0", "epl-1.0", "epl-2.0"),
        *("etalab-2.0", "eupl-1.1", "eupl-1.2", "fair-noncommercial-research-license", "gemma", "gfdl", "gpl"),
        *("gpl-2.0", "gpl-3.0", "h-research", "intel-research", "isc", "lgpl", "lgpl-2.1", "lgpl-3.0"),
        *("lgpl-lr", "llama2", "llama3", "llama3.1", "llama3.2", "llama3.3", "llama4", "lppl-1.3c", "mit"),
        *("mpl-2.0", "ms-pl", "ncsa", "odbl", "odc-by", "ofl-1.1", "openmdw-1.0", "openrail", "openrail++"),
        *("osl-3.0", "other", "pddl", "postgresql", "unknown", "unlicense", "wtfpl", "zlib"),
    )
)
"""Identifiers of licences that the Hub accepts (https://huggingface.co/docs/hub/repositories-licenses)."""
LARGEST_LOSS = 100.0
"""Metadata contain a perplexity only for losses below this limit [nats per token], so that it is a finite number."""
LANGUAGE = re.compile(r"[a-z]{2,3}|multilingual|code")
"""Pattern of the language codes that the Hub accepts."""


def check_metadata(export: ExportConfig) -> None:
    """Checks the licence and the languages, which the Hub would refuse only after the training.

    Raises:
        ConfigError: the Hub does not know the licence or a language.
    """
    if export.license and export.license not in LICENSES:
        raise ConfigError(
            f"export.license: {export.license!r} is not a licence identifier of the Hugging Face Hub",
            nearest(export.license, LICENSES, "use an identifier from the Hub's list, such as apache-2.0, or `other`"),
        )
    for language in languages(export):
        if not LANGUAGE.fullmatch(language):
            raise ConfigError(
                f"export.language: {language!r} is not a language code",
                "use an ISO 639 code of two or three lower-case letters, such as en, or `multilingual`",
            )


def languages(export: ExportConfig) -> list[str]:
    """Returns the configured languages as a list."""
    named = export.language or []
    return [named] if isinstance(named, str) else named


def card_head(
    name: str,
    base_model: str,
    task: str,
    library: str,
    losses: Sequence[LossChange],
    retrieval: RetrievalChange | None,
    further: Mapping[str, Any],
    benchmarks: BenchmarksCompared | None = None,
) -> str:
    """Returns the YAML metadata that a model card has between two `---` lines at its top.

    Args:
        name: name of the model.
        base_model: id or folder of the model that was trained further. It is left out if it is a folder.
        task: a pipeline tag of the Hub.
        library: name of the library that loads the model.
        losses: held-out losses, which become the Hub's `model-index`.
        retrieval: retrieval with the model's vectors, which is added to `model-index`.
        further: licence, language and datasets, keyed by their field names in the metadata.
        benchmarks: scores on standard tasks, which are added to `model-index`.
    """
    datasets = [dataset for dataset in further.get("datasets", []) if is_hub_id(dataset)]
    results = [*_losses(losses, task, datasets), *_retrieval(retrieval), *_benchmarks(benchmarks, task)]
    return ModelCardData(
        base_model=base_model if is_hub_id(base_model) else None,
        license=further.get("license"),
        language=further.get("language"),
        datasets=datasets or None,
        library_name=library,
        pipeline_tag=task,
        tags=[*([] if library == "transformers" else [library]), task, "domain-adaptation", "dontstop"],
        model_name=name if results else None,
        eval_results=results or None,
    ).to_yaml()


def _losses(losses: Sequence[LossChange], task: str, datasets: Sequence[str]) -> list[EvalResult]:
    """Returns the loss after training on each text and, for losses per token, the perplexity.

    Losses that are not finite numbers are left out, because the Hub's metadata cannot hold them.
    """
    results = []
    for change in losses:
        is_domain = change.text == "domain"
        known = datasets[0] if is_domain and len(datasets) == 1 else "text"
        about: dict[str, Any] = {
            "task_type": task,
            "dataset_type": known,
            "dataset_name": f"held-out text of the {'domain' if is_domain else 'general corpus'}",
            "dataset_config": change.text,  # the Hub groups results by this field, not by `dataset_name`
            "dataset_split": "held-out",
        }
        loss, kind = change.after.value, change.of or "predicted tokens"
        if not math.isfinite(loss):
            continue
        results.append(
            EvalResult(**about, metric_type="loss", metric_name=f"loss of {kind}", metric_value=round(loss, 4))
        )
        if not change.of and loss < LARGEST_LOSS:
            value = round(math.exp(loss), 3)
            results.append(EvalResult(**about, metric_type="perplexity", metric_value=value))
    return results


def _retrieval(retrieval: RetrievalChange | None) -> list[EvalResult]:
    """Returns the measures of retrieval after training that are finite numbers."""
    return [
        EvalResult(
            task_type="sentence-similarity",
            dataset_type="text",
            dataset_name="retrieval.pairs",
            metric_type=measure,
            metric_value=round(change.after.value, 4),
        )
        for measure, change in (retrieval.measures.items() if retrieval else ())
        if math.isfinite(change.after.value)
    ]


def _benchmarks(benchmarks: BenchmarksCompared | None, task: str) -> list[EvalResult]:
    """Returns the scores after training on standard tasks that are finite numbers."""
    return [
        EvalResult(
            task_type=task,
            dataset_type="text",
            dataset_name=row.task,
            dataset_config=row.library,
            metric_type=row.metric,
            metric_value=round(row.scores[benchmarks.models[-1]].value, 4),
        )
        for row in (benchmarks.rows if benchmarks else ())
        if benchmarks and math.isfinite(row.scores[benchmarks.models[-1]].value)
    ]
