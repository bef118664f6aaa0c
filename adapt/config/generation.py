"""Configuration of generated text: text to replay in place of general text, and rewritten documents of the domain."""

from dataclasses import dataclass, field
from typing import Any

from adapt.config.fields import NonNegativeInt, PositiveFloat, PositiveFraction, PositiveInt, how, how_list


@dataclass(frozen=True)
class GenerateConfig:
    """Text that a model generates, to be replayed in place of general text (mixture.replay_kind)."""

    tokens: PositiveInt = 1_000_000
    """Number of tokens to generate, before filters drop some of the texts."""
    generator: str | None = how(None)
    """mixture.replay_kind `decoder`: folder or Hugging Face id of the decoder that generates."""
    prompts: str | list[str] = how_list()
    """Texts whose first tokens begin the generated texts: paths as in corpus.paths. An empty list begins with the
    start token, as in arXiv 2605.26097. Not for `gibbs`."""
    prompt_field: str = "text"
    """Field that holds the text of the prompts."""
    prompt_tokens: PositiveInt = 16
    """Largest number of tokens of a prompt. The generated text contains its prompt."""
    temperatures: list[PositiveFloat] = field(default_factory=lambda: [0.7, 1.0, 1.3])
    """Temperatures, which successive texts take in turn: scores are divided by the temperature before a token is drawn.
    Higher values give more varied and less coherent text. Several temperatures follow arXiv 2605.26097; these values
    are ours."""
    top_p: PositiveFraction = 1.0
    """Each token is drawn from the most probable tokens that together have this probability (nucleus sampling, arXiv
    1904.09751). 1 draws from all tokens."""
    min_length: PositiveInt = 16
    """Smallest number of tokens of a text; the end-of-text token is not drawn before. `gibbs`: texts have between
    min_length and max_length tokens, uniformly."""
    max_length: PositiveInt = 256
    """Largest number of tokens of a text, with its prompt. At most the model's longest input less the start token."""
    sweeps: PositiveInt = 10
    """`gibbs`: number of times that every position of a text is drawn anew."""
    masked_fraction: PositiveFraction = 0.15
    """`gibbs`: share of a text's positions that are masked and drawn together. A small share, down to one position, is
    closer to Gibbs sampling and takes 1 / masked_fraction passes of the model per sweep."""
    cleaning: list[str | dict[str, Any]] | None = None
    """Cleaning steps that filter the generated text, as in corpus.cleaning. null takes corpus.cleaning, and the step
    `repetition` after it. Add `language` to keep only some languages."""
    seed: NonNegativeInt = 0
    """Seed of the generated text. Trainings with different `seed` share the text."""
    micro_batch: PositiveInt = how(32)
    """Number of texts that a device generates at the same time. Lower it if memory is short."""


@dataclass(frozen=True)
class SynthesizeConfig:
    """Documents of the domain that a generator rewrites in other formats, to train on both (dontstop dapt)."""

    generator: str | None = how(None)
    """Folder or Hugging Face id of the decoder that rewrites documents, usually a large instruct model. null rewrites
    nothing."""
    formats: list[str] = field(default_factory=lambda: ["question_answer", "table", "summary", "tutorial"])
    """Formats in which every document is rewritten: names in the file of templates. A format with `pairs: true`, such
    as `question`, writes pairs for retrieval.pairs to pairs.jsonl in the stage's folder and adds no training text."""
    templates: str | None = how(None)
    """YAML file with the prompt of each format, {NAME: {prompt: …, pairs: false}}, where `{document}` stands for the
    document. null takes the templates of dontstop (adapt/generate/templates.yaml)."""
    share: PositiveFraction = 1.0
    """Share of the domain's training documents that are rewritten, chosen by a hash of their text."""
    document_tokens: PositiveInt = 512
    """Longer documents are truncated to this number of the generator's tokens."""
    temperatures: list[PositiveFloat] = field(default_factory=lambda: [0.7])
    """Temperatures, as in generate.temperatures."""
    top_p: PositiveFraction = 0.9
    """Probability of the tokens that are drawn from, as in generate.top_p."""
    min_length: PositiveInt = 16
    """Smallest number of tokens of a rewritten document."""
    max_length: PositiveInt = 512
    """Largest number of tokens of a rewritten document."""
    cleaning: list[str | dict[str, Any]] | None = None
    """Cleaning steps that filter the rewritten documents, as in generate.cleaning."""
    seed: NonNegativeInt = 0
    """Seed of the rewritten documents, as in generate.seed."""
    micro_batch: PositiveInt = how(32)
    """Number of documents that a device rewrites at the same time."""
