"""Tests the warnings about tokenizers that do not know the words of a corpus or split them into letters."""

from dataclasses import asdict

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from adapt.corpus import text_profile
from adapt.corpus.text_profile import Legibility, count_sample, read_legibility
from adapt.model.tokenize.text_tokenizer import TextTokenizer
from tests.samples import sentences

KOREAN = "이 연구에서는 새로운 언어 모형을 제안하고 여러 과제에서 그 성능을 평가한다. 환자의 혈압은 천천히 안정되었다."
CHINESE = "本文提出了一种新的语言模型训练方法。并在多个任务上评估了其性能。今天北京天气晴朗。"
THAI = "งานวิจัยนี้นำเสนอวิธีการใหม่ในการฝึกแบบจำลองภาษา วันนี้อากาศดีและอุณหภูมิสูงกว่าเมื่อวาน"
HINDI = "यह अध्ययन भाषा मॉडल को प्रशिक्षित करने की एक नई विधि प्रस्तावित करता है।"
ENGLISH = sentences(300, seed=5)


@pytest.fixture(autouse=True)
def small_vocabularies_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the constant SPELLS from 1,000 to 100 tokens.

    Pieces of words are only counted for tokenizers with at least SPELLS tokens, and these tests use small tokenizers.
    """
    monkeypatch.setattr(text_profile, "SPELLS", 100)


def wordpiece(texts: list[str]) -> TextTokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return TextTokenizer(tokenizer, tokenizer.get_vocab_size(), tokenizer.token_to_id("[UNK]"), None)


def byte_level(texts: list[str]) -> TextTokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return TextTokenizer(tokenizer, tokenizer.get_vocab_size(), None, None)


def measured(texts: list[str], tokenizer: TextTokenizer) -> Legibility:
    return Legibility.of(count_sample(texts, tokenizer))


FOREIGN = {"Korean": KOREAN, "Chinese": CHINESE, "Thai": THAI, "Hindi": HINDI}


@pytest.mark.parametrize("language", FOREIGN)
def test_another_script_gives_unknown_words_or_many_byte_pieces(language: str) -> None:
    texts = [FOREIGN[language]] * 60
    (unknown,) = measured(texts, wordpiece(ENGLISH)).faults()
    assert "100.0% of the words have a part that the tokenizer does not know (limit 2%)" in unknown
    assert "model.path" in unknown
    assert "dontstop vocabulary scratch" in unknown
    found = measured(texts, byte_level(ENGLISH))
    assert found.unknown_share == 0
    (spelled,) = found.faults()
    assert "the tokenizer splits words too finely" in spelled
    assert "dontstop vocabulary extend" in spelled


@pytest.mark.parametrize("language", FOREIGN)
@pytest.mark.parametrize("build", [wordpiece, byte_level])
def test_a_tokenizer_of_the_same_language_gives_no_warning(language: str, build) -> None:  # type: ignore[no-untyped-def]
    # leaves out Hindi for byte-level tokenizers such as GPT-2's, because they cut Hindi words at vowel signs
    if (build, language) != (byte_level, "Hindi"):
        assert measured([FOREIGN[language]] * 60, build([FOREIGN[language]] * 60)).faults() == []
    assert measured(ENGLISH, build(ENGLISH)).faults() == []


def test_another_language_of_the_same_script_gives_many_pieces() -> None:
    german = ["Krankheitsverläufe Behandlungsergebnisse Zusammenarbeit Pflegekräfte Bundesgerichtshof"] * 60
    (fault,) = measured(german, byte_level(ENGLISH)).faults()
    assert "tokens per word (maximum 2.5)" in fault


def test_only_pieces_of_words_are_counted() -> None:
    """The sample has the words never, the, never. Its punctuation and digits are not part of words."""
    tokenizer = wordpiece([*ENGLISH, "never, (2000) the"])
    found = measured(["never, (2000) the -- never!"], tokenizer)
    assert (found.words, found.spaced_pieces, found.bytes) == (3, 3, len("neverthenever"))
    assert (found.pieces_per_word, found.unknown_share) == (1.0, 0.0)


def test_few_words_and_tokenizers_of_letters_give_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured([KOREAN], wordpiece(ENGLISH)).faults() == []
    assert measured(["", "12 34"], wordpiece(ENGLISH)).unknown_share is None
    monkeypatch.setattr(text_profile, "SPELLS", 1000)
    found = measured([KOREAN] * 60, byte_level(ENGLISH))
    assert (found.pieces_per_word, found.bytes_per_piece, found.faults()) == (None, None, [])


def test_a_sample_is_spread_over_the_whole_chunk() -> None:
    texts = [*ENGLISH, *[KOREAN] * 300]
    found = measured(texts, wordpiece(ENGLISH))
    assert found.words < 2000
    assert found.unknown_share
    assert 0.2 < found.unknown_share < 0.8


def test_figures_of_sources_are_added_unless_one_is_missing() -> None:
    one, two = measured(ENGLISH, wordpiece(ENGLISH)), measured([KOREAN] * 60, wordpiece(ENGLISH))
    both = Legibility.together([one, asdict(two)])
    assert both
    assert both.words == one.words + two.words
    assert both.unknown_share == two.unknown_words / both.words
    assert Legibility.together([one, None]) is None
    assert Legibility.together([]) is None
    assert read_legibility({"legibility": asdict(one)}) == one
    assert read_legibility({}) is None
