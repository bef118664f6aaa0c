"""Scripts and kinds of text beside English prose: what a word is there, and that its new tokens are reached."""

from collections import Counter

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from adapt.vocabulary.candidates import by_saved, by_training
from adapt.vocabulary.extend import build_reached, pieces_in
from adapt.vocabulary.words import CountedWord, WordReader, count_chunks, count_words
from tests.tokenizers import byte_level, unigram, wordpiece
from tests.vocabulary.test_words import SENTENCES

KOREAN = "만성 간염 환자는 항바이러스제를 복용한다. 간염 환자는 정기적으로 검사를 받는다."
CHINESE = "慢性肝炎患者需要抗病毒治疗。肝炎患者应当定期检查。"
GERMAN = "Die Blutdruckmessung zeigt, dass Blutdruckmessgeräte für Herzkreislauferkrankungen taugen."
CHEMISTRY = "The dinitrophenylhydrazine test finds a ketone; dinitrophenylhydrazine gives an orange solid (C6H12O6)."
CODE = "def load_rows(path):\n    rows = read_lines(path)\n    return [parse_row(row) for row in rows]"
TEXTS = {"korean": KOREAN, "chinese": CHINESE, "german": GERMAN, "chemistry": CHEMISTRY, "code": CODE}
"""Written for these tests."""
BUILT = {"wordpiece": wordpiece, "byte-level": byte_level, "unigram": unigram}


def counted(text: str, backend: Tokenizer, times: int = 6) -> tuple[WordReader, list[CountedWord]]:
    reader = WordReader(backend)
    return reader, count_words(count_chunks([text] * times)[0], reader)


@pytest.mark.parametrize(
    ("script", "family", "words"),
    [
        ("korean", "byte-level", {"환자는", "간염", "항바이러스제를"}),
        ("chinese", "byte-level", {"慢性肝炎患者需要抗病毒治疗", "肝炎患者应当定期检查"}),  # no blanks: a word is a run
        ("german", "wordpiece", {"blutdruckmessung", "herzkreislauferkrankungen"}),
        ("german", "byte-level", {"Blutdruckmessung", "Blutdruckmessgeräte", "für"}),
        ("german", "unigram", {"Blutdruckmessung", "Herzkreislauferkrankungen"}),
        ("chemistry", "wordpiece", {"dinitrophenylhydrazine", "c6h12o6"}),
        ("chemistry", "byte-level", {"dinitrophenylhydrazine"}),
        ("code", "wordpiece", {"rows", "parse", "lines"}),  # its words end at underscores
        ("code", "byte-level", {"rows", "path"}),
    ],
)
def test_words_are_those_of_the_tokenizer(script: str, family: str, words: set[str]) -> None:
    _, found = counted(TEXTS[script], BUILT[family]())
    assert words <= {word.surface for word in found}


@pytest.mark.parametrize("script", TEXTS)
@pytest.mark.parametrize("family", BUILT)
def test_whole_words_become_tokens_and_come_back_as_text(script: str, family: str) -> None:
    backend = BUILT[family]()
    reader, words = counted(TEXTS[script], backend)
    candidates = by_saved(words, reader, 5)
    if not candidates:
        assert family != "byte-level"  # which knows every byte; the others do not know these scripts
        assert all(word.unknown or len(word.pieces) == 1 or not word.surface.isalnum() for word in words)
        return
    reached = build_reached(backend, candidates, words)
    after = WordReader(reached.rebuilt.backend)
    assert all(len(after.pieces(word.word)) == 1 for word in reached.chosen)
    assert pieces_in(words, after) < pieces_in(words, reader)
    text = TEXTS[script]
    assert reached.rebuilt.backend.decode(reached.rebuilt.backend.encode(text).ids) == backend.decode(
        backend.encode(text).ids
    )
    assert not {*reached.rebuilt.added} & {*backend.get_vocab()}


@pytest.mark.parametrize("script", ["chinese", "korean"])
def test_parts_of_runs_become_tokens_of_bytes(script: str) -> None:
    """Where whole words are too long to come again, a tokenizer of the domain finds what does."""
    backend, text = byte_level(), TEXTS[script]
    reader, words = counted(text, backend)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", mask_token="<mask>")
    trained = fast.train_new_from_iterator([text] * 6, 320, show_progress=False).backend_tokenizer
    reached = build_reached(backend, by_training(words, trained, reader, 5), words)
    found = Counter(len(word.surface) for word in reached.chosen)
    assert found
    assert all(word.surface in text for word in reached.chosen)
    assert pieces_in(words, WordReader(reached.rebuilt.backend)) < 0.8 * pieces_in(words, reader)


def test_an_english_word_is_not_a_token_because_of_other_scripts() -> None:
    backend = byte_level()
    reader, words = counted(KOREAN, backend)
    rebuilt = build_reached(backend, by_saved(words, reader, 5), words).rebuilt.backend
    for text in (SENTENCES["german"], SENTENCES["code"]):
        assert rebuilt.encode(text).ids == backend.encode(text).ids
