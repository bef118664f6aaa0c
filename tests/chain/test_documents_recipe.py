"""Tests recipe `documents`: from a folder of PDF, HTML and DOCX files to sentence vectors and a SetFit classifier."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from tests import drive
from tests.corpus.documents.made_documents import docx, page, pdf, scanned_pdf, write
from tests.corpus.documents.public_domain import SENTENCES, paragraphs
from tests.drive import Jobs

jobs = pytest.fixture(drive.jobs)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def model(folder: Path) -> Path:
    """Makes a random BERT whose tokenizer knows the words of the documents."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=1200, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **names).save_pretrained(folder)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=256,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlanguage: de\n---\n")
    return folder


def documents(folder: Path) -> Path:
    """Writes 30 documents of each kind, and two documents that cannot be read."""
    files: dict[str, bytes | str] = {"scan.pdf": scanned_pdf(), "secret.pdf": pdf(["a"], password="secret")}
    for number in range(30):
        files[f"{number}.html"] = page(paragraphs(3, number))
        files[f"{number}.docx"] = docx(paragraphs(3, 100 + number))
        files[f"{number}.pdf"] = pdf(paragraphs(2, 200 + number))
    files["copy.html"] = files["7.html"]
    return write(folder, files)


def task(folder: Path) -> list[str]:
    """Writes a classification task with two labels, and returns the command-line arguments that configure it."""
    arguments = ["--task.name=parity"]
    for split, first in (("train", 0), ("dev", 16), ("test", 24)):
        rows = [{"text": SENTENCES[first + number], "label": ("even", "odd")[number % 2]} for number in range(8)]
        file = folder / f"{split}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        arguments.append(f"--task.{split}={file}")
    return arguments


def records(root: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(root.glob(f"{kind}/*/stage.json"))]


@pytest.mark.slow
def test_a_folder_of_documents_becomes_sentence_vectors_and_a_classifier(jobs: Jobs, tmp_path: Path) -> None:
    setfit = pytest.importorskip("setfit")
    from sentence_transformers import SentenceTransformer

    given = {"documents": documents(tmp_path / "files"), "model": model(tmp_path / "model")}
    arguments = ["run", "documents", *(f"--{name}={path}" for name, path in given.items())]
    arguments += ["--mlm_steps=4", "--tsdae_steps=4", "--resources.workers=1"]
    arguments += ["--export.kinds=[setfit]", *task(tmp_path)]
    job = jobs.start(tmp_path, arguments, "chain.py")
    assert job.result()["metrics"] == {"finished": 2, "missing": 0}

    prepared = next(each["metrics"] for each in records(job.root, "prepare") if each["metrics"].get("train_documents"))
    assert {reason: count for reason, count in prepared["bad"].items() if count} == {
        "document is a scan without text": 1,
        "document is encrypted": 1,
    }
    assert prepared["dropped"] == {"duplicate": 1}
    assert prepared["train_documents"] + prepared["heldout_documents"] == 90
    assert prepared["profile"]["languages"]["en"] > 0.9
    fault = "the model's card names the language de"
    exports = records(job.root, "export")
    assert len(exports) == 2
    assert all(fault in each["metrics"]["text_faults"][0] for each in exports)
    cards = [file.read_text() for file in job.root.glob("export/*/README.md")]
    assert all("languages en" in card and fault in card for card in cards)
    assert fault in next(job.root.glob("reports/documents/report.md")).read_text()

    for folder in job.root.glob("export/[!.]*"):
        vectors = SentenceTransformer(str(folder), device="cpu").encode(SENTENCES[:2])
        assert vectors.shape == (2, 32)
        classifier = setfit.SetFitModel.from_pretrained(str(folder))
        assert {*classifier.predict(SENTENCES[:4])} <= {"even", "odd"}
