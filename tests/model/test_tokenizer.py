"""Tests how tokenizers are loaded, how special tokens in a text become text, and how tokenizers are compared."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import (
    AutoTokenizer,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
)

from adapt.model.locate import Pretrained
from adapt.model.tokenizer import are_alike, load_text_tokenizer, load_tokenizer
from tests import tokenizers
from tests.model.checkpoints import exchange_tokens
from tests.objective.rows import wrapped
from tests.tokenizers import FAMILIES, ODD, SPECIAL


@pytest.mark.heavy
def test_loading_a_tokenizer_does_not_import_model_classes(tiny_bert: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from adapt.model.tokenizer import load_text_tokenizer\n"
        "from adapt.model.locate import Pretrained\n"
        f"folder = Path({str(tiny_bert)!r})\n"
        "print(load_text_tokenizer(Pretrained(folder, folder))('the')['input_ids'])\n"
        "sys.exit(str([name for name in sys.modules if 'transformers.model' in name and '.modeling_' in name]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    known = {"transformers.modeling_utils", "transformers.models.bert.modeling_bert"}
    assert ran.stdout.startswith("["), ran.stderr
    assert not [name for name in known if name in ran.stderr]


TEXTS = [
    text for name in SPECIAL for text in (name, f"as {name} here", f"<b>x{name}y</b>", f"{name}{name}.", f"({name})")
]


@pytest.fixture(params=FAMILIES)
def pretrained(request: pytest.FixtureRequest, tmp_path: Path) -> Pretrained:
    tokenizer = wrapped(Tokenizer.from_str(FAMILIES[request.param]().to_str()))
    tokenizer.save_pretrained(tmp_path)
    BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id).save_pretrained(tmp_path)
    return Pretrained(tmp_path, tmp_path)


def found(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    """Returns the special tokens that result from a text, except for the unknown token."""
    tokens = [tokenizer.convert_ids_to_tokens(number) for number in tokenizer(text, add_special_tokens=False).input_ids]
    return [token for token in tokens if token in SPECIAL and token != "<unk>"]


def test_a_special_token_in_a_text_is_tokenized_as_text(pretrained: Pretrained) -> None:
    tokenizer = load_text_tokenizer(pretrained)
    for text in TEXTS:
        assert found(tokenizer, text) == []
        assert [each.ids for each in tokenizer.backend_tokenizer.encode_batch_fast([text])] == [
            tokenizer(text).input_ids
        ]
    assert tokenizer("<unk>", add_special_tokens=False).input_ids != [tokenizer.unk_token_id]


def test_the_letters_of_a_special_token_have_their_offsets(pretrained: Pretrained) -> None:
    encoding = load_text_tokenizer(pretrained).backend_tokenizer.encode("x<mask>y", add_special_tokens=False)
    assert {place for begin, end in encoding.offsets for place in range(begin, end)} == set(range(8))
    assert len(encoding.ids) > 4


def test_all_other_text_has_the_same_tokens_as_before(pretrained: Pretrained) -> None:
    plain, literal = load_tokenizer(pretrained.model), load_text_tokenizer(pretrained)
    for text in [*ODD, "a < b > c", "<b>bold</b>", "[s] masks", "<s", "s>", ""]:
        assert literal(text).input_ids == plain(text).input_ids
        assert literal(text, "pair").input_ids == plain(text, "pair").input_ids
    assert literal("a").input_ids[0] == plain.bos_token_id


def test_the_tokenizer_of_a_saved_model_recognizes_its_mask_token(pretrained: Pretrained, tmp_path: Path) -> None:
    before = (pretrained.tokenizer / "tokenizer.json").read_bytes()
    load_text_tokenizer(pretrained)
    load_tokenizer(pretrained.model).save_pretrained(tmp_path / "out")
    assert (pretrained.tokenizer / "tokenizer.json").read_bytes() == before
    assert found(AutoTokenizer.from_pretrained(tmp_path / "out"), "as <mask> here") == ["<mask>"]


ROLES = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>", "cls": "<s>", "sep": "</s>"}


@pytest.fixture
def other(tmp_path: Path, tiny_bert: Path) -> Path:
    """Copies the folder of the tiny BERT and returns the path of the copy."""
    return shutil.copytree(tiny_bert, tmp_path / "other")


def alike(one: Path, other: Path) -> bool:
    return are_alike(Pretrained(one, one), Pretrained(other, other))


def test_a_tokenizer_saved_again_by_transformers_is_equal(tiny_bert: Path, other: Path) -> None:
    AutoTokenizer.from_pretrained(tiny_bert, model_max_length=64).save_pretrained(other)
    assert (other / "tokenizer_config.json").read_bytes() != (tiny_bert / "tokenizer_config.json").read_bytes()
    assert alike(tiny_bert, other)


@pytest.mark.parametrize(
    ("tokenizer", "config"),
    [
        (tokenizers.wordpiece(), BertConfig),
        (tokenizers.byte_level(), GPT2Config),
        (tokenizers.roberta(), RobertaConfig),
        (tokenizers.unigram(), XLMRobertaConfig),
        (tokenizers.wordless(), LlamaConfig),
    ],
)
def test_published_tokenizers_equal_those_saved_by_transformers(
    tokenizer: Tokenizer, config: type, tmp_path: Path
) -> None:
    """Compares a tokenizer folder with few settings, like published folders, with the same tokenizer after a save."""
    published, written = tmp_path / "published", tmp_path / "written"
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": tokenizer.token_to_id("<pad>")}
    for folder in (published, written):
        config(**sizes).save_pretrained(folder)
    tokenizer.save(str(published / "tokenizer.json"), pretty=False)
    settings = {f"{name}_token": token for name, token in ROLES.items()}
    (published / "tokenizer_config.json").write_text(json.dumps(settings))
    AutoTokenizer.from_pretrained(published).save_pretrained(written)
    files = [(folder / "tokenizer.json").read_bytes() for folder in (published, written)]
    assert files[0] != files[1]
    assert alike(published, written)


def test_a_tokenizer_that_truncates_is_equal(tiny_bert: Path, other: Path) -> None:
    file = other / "tokenizer.json"
    cut = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps({**json.loads(file.read_text()), "truncation": cut}))
    assert alike(tiny_bert, other)


def test_a_tokenizer_with_two_ids_swapped_is_different(tiny_bert: Path, other: Path) -> None:
    exchange_tokens(other)
    assert not alike(tiny_bert, other)


def test_a_tokenizer_with_another_special_token_is_different(tiny_bert: Path, other: Path) -> None:
    AutoTokenizer.from_pretrained(tiny_bert, mask_token="[UNK]").save_pretrained(other)
    assert not alike(tiny_bert, other)
