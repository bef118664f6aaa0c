"""Stage `similarity`: compares the domains of several prepared corpora and draws the result."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from adapt.evaluate.heatmap import MATRICES, draw_heatmap
from adapt.evaluate.measure import read_losses
from adapt.evaluate.results import Rows, Similar
from adapt.evaluate.similarity import sample_texts, similarities
from adapt.model.locate import Pretrained
from adapt.model.tokenizer import load_tokenizer
from adapt.runner.files import write_atomically

FILE, PICTURE = "similarity.json", "similarity.png"


def compare_domains(
    corpora: Mapping[str, Path], evaluations: Sequence[Path], pretrained: Pretrained, most: int, folder: Path
) -> Similar:
    """Compares domains by their words, and by the losses of models if there are any.

    Args:
        corpora: prepared ones, by domain.
        evaluations: of a model for each domain on all of them, in the same order; or none.
        pretrained: has the tokenizer.
        most: documents of a domain that are looked at.
        folder: gets similarity.json and similarity.png.
    """
    tokenizer = load_tokenizer(pretrained.model, pretrained.tokenizer, pretrained.trust_remote_code)
    samples = {name: sample_texts(corpus, tokenizer, most) for name, corpus in corpora.items()}
    similar = similarities(samples)
    if evaluations:
        similar = replace(similar, model_loss=_losses(list(corpora), evaluations))
    measured = {name: value for name, value in asdict(similar).items() if value is not None}
    write_atomically(folder / FILE, json.dumps(measured, indent=1))
    matrices = {name: value for name, value in measured.items() if name in MATRICES}
    draw_heatmap(matrices, list(corpora), folder / PICTURE)
    return similar


def _losses(domains: Sequence[str], evaluations: Sequence[Path]) -> Rows:
    matrix = []
    for evaluation in evaluations:
        pairs = [read_losses(evaluation, domain) for domain in domains]
        matrix.append([float(losses.sum() / max(counts.sum(), 1)) for losses, counts in pairs])
    return matrix
