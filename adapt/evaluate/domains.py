"""Stage `similarity`: compares the domains of several prepared corpora and draws the result."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adapt.evaluate.heatmap import draw
from adapt.evaluate.measure import read_losses
from adapt.evaluate.similarity import Matrix, sample_texts, similarity
from adapt.model.load import load_tokenizer
from adapt.model.locate import Pretrained
from adapt.runner.files import write_atomically

FILE, PICTURE = "similarity.json", "similarity.png"


def compare_domains(
    corpora: Mapping[str, Path], evaluations: Sequence[Path], pretrained: Pretrained, most: int, folder: Path
) -> dict[str, Any]:
    """Compares by words, and by the losses of models where there are any.

    Args:
        corpora: prepared ones, by domain.
        evaluations: of a model for each domain on all of them, in the same order; or none.
        pretrained: has the tokenizer.
        most: documents of a domain that are looked at.
        folder: gets similarity.json and similarity.png.

    Returns:
        Metrics: the matrices by name (see `adapt.evaluate.similarity.Similarity`), `model_loss` among them if there are
        models: row model, column text, mean held-out loss [nats a predicted token].
    """
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    samples = {name: sample_texts(corpus, tokenizer, most) for name, corpus in corpora.items()}
    found = asdict(similarity(samples))
    matrices = {name: found[name] for name in ("overlap", "jaccard", "cross_loss")}
    if evaluations:
        found["model_loss"] = matrices["model_loss"] = _losses(list(corpora), evaluations)
    write_atomically(folder / FILE, json.dumps(found, indent=1))
    draw(matrices, list(corpora), folder / PICTURE)
    return found


def _losses(domains: Sequence[str], evaluations: Sequence[Path]) -> Matrix:
    matrix = []
    for evaluation in evaluations:
        pairs = [read_losses(evaluation, domain) for domain in domains]
        matrix.append([float(losses.sum() / max(counts.sum(), 1)) for losses, counts in pairs])
    return matrix
