"""Tests that users can replace the file of templates, and that prompts use the generator's chat template."""

from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import AddedToken

from adapt.config import Config, GenerateConfig, SynthesizeConfig
from adapt.generate.makers import FromDecoder, Maker, Rewriting, prompt_tokens, shortened_text
from adapt.generate.rewriting import OWN_TEMPLATES, formats_of
from adapt.generate.sampling import Request
from adapt.model.tokenizer import load_tokenizer
from adapt.support.errors import ConfigError
from tests.generate.toys import TEMPLATE, tiny_decoder

REWRITING = SynthesizeConfig(top_p=1.0, min_length=3, max_length=12, micro_batch=4, document_tokens=20)


def test_the_shipped_formats_contain_the_document_once() -> None:
    names = ["question_answer", "table", "summary", "tutorial", "question"]
    formats = formats_of(SynthesizeConfig(formats=names))
    assert [each.name for each in formats] == names
    assert [each.name for each in formats if each.pairs] == ["question"]
    assert all(each.prompt("DOC {x}").count("DOC {x}") == 1 for each in formats)
    assert SynthesizeConfig().formats == names[:-1]


@pytest.mark.parametrize(
    ("text", "formats", "said"),
    [
        ("a: {prompt: 'no place'}", ["a"], "does not contain {document} exactly once"),
        ("a: {prompt: '{document}', pair: true}", ["a"], "or has fields other than"),
        ("a: [1]", ["a"], "has no `prompt` text"),
        ("[1]", ["a"], "has no formats"),
        ("a: {", ["a"], "cannot be read"),
        ("a: {prompt: '{document}'}", ["b"], "no format 'b'"),
        ("a: {prompt: '{document}'}", [], "must name at least one format, and each format only once"),
        ("a: {prompt: '{document}'}", ["a", "a"], "must name at least one format, and each format only once"),
    ],
)
def test_faulty_templates_are_named(text: str, formats: list[str], said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        formats_of(SynthesizeConfig(templates=str(file), formats=formats))
    assert said in caught.value.what


def test_a_missing_file_of_templates_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        formats_of(SynthesizeConfig(templates=str(tmp_path / "nowhere.yaml")))
    assert OWN_TEMPLATES.is_file()


def test_the_chat_template_of_the_generator_is_used(tmp_path: Path) -> None:
    for template in (None, TEMPLATE):
        pretrained = tiny_decoder(tmp_path / str(template is None), template=template)
        tokenizer = load_tokenizer(pretrained.model)
        shown = tokenizer.decode(prompt_tokens(tokenizer, "rewrite it", 0))
        assert shown == ("<s>rewrite it</s>reply:" if template else "<s>rewrite it")


THINKING = TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"


def test_templates_are_asked_for_no_reasoning(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_decoder(tmp_path, template=THINKING).model)
    shown = tokenizer.decode(prompt_tokens(tokenizer, "rewrite it", 0))
    assert shown == "<s>rewrite it</s>reply:<think></think>"


@pytest.mark.parametrize(
    ("template", "output", "text", "dropped"),
    [
        (TEMPLATE, "<think>\na plan\n</think>\n\nwhich loss?\nmore", "which loss?", None),
        (TEMPLATE, "a plan</think>which loss?", "which loss?", None),
        (TEMPLATE, "which loss?", "which loss?", None),
        (TEMPLATE, "<think>\na plan", "", "unfinished reasoning"),
        (TEMPLATE, "<think></think>no<think>a plan", "", "unfinished reasoning"),
        (TEMPLATE + "<think>\n", "a plan", "", "unfinished reasoning"),
        (TEMPLATE + "<think>\n", "a plan\n</think>\nwhich loss?", "which loss?", None),
    ],
)
def test_reasoning_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, output: str, text: str, dropped: str | None
) -> None:
    maker = Rewriting(tiny_decoder(tmp_path, template=template), replace(REWRITING, formats=["question"]))
    maker.load()
    tokens = maker._decoder.tokenizer.encode(output, add_special_tokens=False)
    monkeypatch.setattr(maker._decoder, "generate", lambda *_: [tokens])
    (made,) = maker.make({"ids": [4], "texts": ["the loss of a model"]})
    assert (made.text, made.details.get("dropped")) == (text, dropped)
    assert made.tokens == len(tokens)


def test_long_documents_are_cut_and_cannot_end_the_message(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_decoder(tmp_path).model)
    text = "the loss of the model is large </s> and then"
    assert "</s>" not in shortened_text(tokenizer, text, 100)
    cut = shortened_text(tokenizer, text, 4)
    assert text.startswith(cut)
    assert len(tokenizer.encode(cut, add_special_tokens=False)) == 4


def test_documents_cannot_contain_added_tokens_that_are_special(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_decoder(tmp_path).model)
    tokenizer.add_tokens([AddedToken("<|eot|>", special=True), AddedToken("<|eot|>x", special=True)])
    tokenizer.add_tokens([AddedToken("qubit")])
    assert "<|eot|>" not in tokenizer.all_special_tokens
    assert shortened_text(tokenizer, "a<|eot|>b <|eot|>xc qubit", 100) == "a b  c qubit"


def test_texts_begin_with_the_first_tokens_of_the_prompts_in_turn(tmp_path: Path) -> None:
    prompts = ["the loss of the model is large", "words"]
    section = GenerateConfig(temperatures=[0.5, 1.0], min_length=2, max_length=9, micro_batch=4, prompt_tokens=3)
    maker = FromDecoder(tiny_decoder(tmp_path), section, prompts)
    maker.load()
    made = maker.make({"first": 0, "count": 8})
    tokenizer = load_tokenizer(tmp_path)
    begun = [tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)[:3]) for text in prompts]
    assert all(each.text.startswith(begun[number // 2 % 2]) for number, each in enumerate(made))
    assert [each.details["temperature"] for each in made] == [0.5, 1.0] * 4
    assert all(1 <= each.tokens < 9 for each in made)
    assert maker.make({"first": 5, "count": 1}) == made[5:6]


def test_documents_are_rewritten_in_every_format_whatever_the_order(tmp_path: Path) -> None:
    section = replace(REWRITING, formats=["summary", "question"], temperatures=[1.0])
    maker = Rewriting(tiny_decoder(tmp_path), section)
    maker.load()
    documents = {"ids": [4, 9, 2**40], "texts": ["the loss of a model", "words of the text", "more than each"]}
    made = maker.make(documents)
    assert [each.details["format"] for each in made] == ["summary", "question"] * 3
    assert [each.details.get("positive") for each in made][1::2] == documents["texts"]
    assert all("\n" not in each.text for each in made[1::2])
    assert all(3 <= each.tokens <= 12 for each in made)
    assert len({each.details["source"] for each in made}) == 3
    assert maker.make({"ids": [9], "texts": ["words of the text"]}) == made[2:4]


def test_each_format_takes_all_temperatures_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = replace(REWRITING, formats=["summary", "table", "question"], temperatures=[0.5, 1.0])
    maker = Rewriting(tiny_decoder(tmp_path), section)
    maker.load()
    asked: list[Request] = []

    def generate(requests: list[Request], *_: object) -> list[list[int]]:
        asked.extend(requests)
        return [[5]] * len(requests)

    monkeypatch.setattr(maker._decoder, "generate", generate)
    maker.make({"ids": [4, 9, 6, 7], "texts": ["one", "two", "three", "four"]})
    found = [request.temperature for request in asked]
    assert found == [0.5, 1.0, 0.5, 1.0, 0.5, 1.0] * 2
    assert len({request.number for request in asked}) == 12


@pytest.mark.parametrize("maker", [Rewriting, FromDecoder])
def test_the_field_to_lower_if_memory_runs_out_is_a_field_of_the_configuration(maker: type[Maker]) -> None:
    section, _, field = maker.batch_field.partition(".")
    assert section == {Rewriting: "synthesize", FromDecoder: "generate"}[maker]
    assert hasattr(getattr(Config(), section), field)
