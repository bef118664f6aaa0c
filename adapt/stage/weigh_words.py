"""Defines the stage `words`, which computes a weight for each word of a domain, for `objective.kind: difference`.

The weights compare how frequent words are in the domain and in general text. The words are counted on the
cluster, one task per shard of the prepared texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adapt.config import Config
from adapt.corpus.token_shards import TokenStream
from adapt.objective.word_weights import FEWEST, Counts, WordWeights, hash_words
from adapt.ray.runtime import telling_stalls
from adapt.runner import Done, Outcome, Stage
from adapt.runner.record import Record
from adapt.show.blocks import Block, Cell, Table, summary
from adapt.stage.context import Tokens
from adapt.stage.prepare_text import Prepared
from adapt.support.errors import ConfigError
from adapt.support.schema import HELDOUT_GLOB, SHARD_GLOB, STARTS, TOKENS, WORD_STARTS

if TYPE_CHECKING:
    from adapt.corpus.cluster_calls import Cluster  # loads Ray

SHOWN = 20
"""Number of words with the largest weights that the record lists."""
PIECE = 4_000_000
"""Number of tokens that are read from a shard at once, to limit the memory that counting needs."""
SEARCHED = 8
"""Number of shards per source that are searched for the spelling of the listed words."""


@dataclass(frozen=True)
class WordsWeighed:
    """Result of weighing words. The weights are in `word-weights.npz`."""

    words: int
    """Number of words of the domain's training text."""
    distinct: int
    """Number of distinct words that occur at least twice. Each of them has its own weight."""
    general_words: int
    """Number of words of general text."""
    unknown_weight: float
    """Weight of words that occur only once."""
    heaviest: dict[str, float]
    """The words with the largest weights, as the tokenizer spells them."""

    def blocks(self, record: Record) -> list[Block]:
        said = (
            f"Weighed {self.distinct:,} words of the domain by their frequency there and their rarity in"
            f" {self.general_words:,} words of general text."
        )
        rows: list[list[Cell | str]] = [[word, Cell(f"{weight:.1f}")] for word, weight in self.heaviest.items()]
        return [*summary(said), Table(("word", "weight"), rows, "Words that are masked most often")]


@dataclass(frozen=True, eq=False)
class WeighWords(Stage[WordsWeighed]):
    """Counts the words of a domain and of general text, and computes their weights by TF-ICF (arXiv 2305.14577)."""

    kind = "words"

    name: str
    config: Config
    tokens: Tokens
    """Tokenizer that converts the words with the largest weights to text."""
    texts: Mapping[str, Stage[Prepared]]
    """Training text of the domain, keyed by source."""
    general: Stage[Prepared]
    """General text that the domain is compared with."""

    def what(self) -> Mapping[str, Any]:
        return {}

    def run(self, folder: Path, done: Done) -> Outcome[WordsWeighed]:
        """Counts on the cluster, and writes the weights.

        Raises:
            DataError: a shard of the prepared text cannot be read.
        """
        from adapt.corpus.cluster_calls import Cluster
        from adapt.model.tokenizer import load_tokenizer

        cluster = Cluster(self.config.resources, folder)
        sources = [sorted(done[text].path.glob(SHARD_GLOB)) for text in self.texts.values()]
        domain = count_marked_words([shard for source in sources for shard in source], None, cluster)
        whole = [shard for glob in (SHARD_GLOB, HELDOUT_GLOB) for shard in sorted(done[self.general].path.glob(glob))]
        general = count_marked_words(whole, domain.hashes[domain.counts >= FEWEST], cluster)
        weights = WordWeights.of(domain, general)
        weights.save(folder)
        heaviest = np.argsort(-weights.weights, kind="stable")[:SHOWN]
        of = self.tokens.made(done).pretrained
        tokenizer = load_tokenizer(of.model, of.tokenizer, of.trust_remote_code)
        first = [shard for source in sources for shard in source[:SEARCHED]]
        ids = spelled(weights.hashes[heaviest], first)
        known = {int(weights.hashes[place]): float(weights.weights[place]) for place in heaviest}
        # excludes special tokens, because they are never predicted
        special = {(number,) for number in tokenizer.all_special_ids}
        named = {
            str(tokenizer.decode(ids[word])).strip(): weight
            for word, weight in known.items()
            if word in ids and tuple(ids[word]) not in special
        }
        return Outcome(WordsWeighed(domain.words, len(weights.hashes), general.words, weights.unknown, named))


def weighed_words(
    name: str, config: Config, tokens: Tokens, texts: Mapping[str, Stage[Prepared]], general: Stage[Prepared] | None
) -> WeighWords:
    """Builds the stage that weighs words for a training run."""
    kind = config.objective.kind
    if general is None:
        raise ConfigError(
            f"objective.kind {kind} compares the domain's words with general text, but there is none",
            "set evaluation.general_paths to general text, or objective.kind to mlm",
        )
    if config.corpus.streaming:
        raise ConfigError(
            f"objective.kind {kind} counts the words of prepared text, but corpus.streaming is set",
            "leave corpus.streaming out, or set objective.kind to mlm",
        )
    return WeighWords(name, config, tokens, texts, general)


def count_marked_words(shards: Sequence[Path], listed: np.ndarray | None, cluster: "Cluster") -> Counts:
    """Counts the words of prepared text on the cluster, one task per shard.

    Args:
        shards: token shards with the column of word starts.
        listed: hashes of the words whose frequencies are counted; None counts all words. The total number of words is
            always counted.
        cluster: counts the words of the shards in parallel.

    Raises:
        DataError: a shard cannot be read.
    """
    total = Counts.empty()
    with telling_stalls("weigh_words", cluster.folder):
        for counted in cluster.spread(partial(_counts_of, listed=listed), shards):
            total = sum(counted, total)
    return total


def _counts_of(shard: Path, listed: np.ndarray | None) -> Iterator[Counts]:
    yield count_shard(shard, listed)


def count_shard(shard: Path, listed: np.ndarray | None = None) -> Counts:
    """Counts the words of one shard; see `count_marked_words`."""
    total = Counts.empty()
    for tokens, starts in _pieces(shard):
        hashes, counts = np.unique(hash_words(tokens, starts)[0], return_counts=True)
        total += Counts(hashes, counts.astype(np.int64), int(counts.sum())).only(listed)
    return total


def _pieces(shard: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the tokens of a shard in pieces, and marks the first token of each word. No piece divides a word."""
    stream = TokenStream((shard,))
    begin = 0
    while begin < stream.tokens:
        end = min(begin + PIECE, stream.tokens)
        starts = stream.slice(begin, end, WORD_STARTS) | stream.slice(begin, end, STARTS)
        if end < stream.tokens and len(inside := np.flatnonzero(starts[1:])):
            end = begin + 1 + int(inside[-1])  # leaves out the last word, which may continue in the next piece
            starts = starts[: end - begin]
        yield stream.slice(begin, end, TOKENS), starts
        begin = end


def spelled(words: np.ndarray, shards: Sequence[Path]) -> dict[int, list[int]]:
    """Finds the tokens of words. Searches one shard after another, until all words are found.

    Returns:
        The token ids of each word that was found, keyed by its hash.
    """
    found: dict[int, list[int]] = {}
    for shard in shards:
        for tokens, starts in _pieces(shard):
            hashes, sizes = hash_words(tokens, starts)
            ends = np.cumsum(sizes)
            for place in np.flatnonzero(np.isin(hashes, words)):
                word = tokens[ends[place] - sizes[place] : ends[place]]
                found.setdefault(int(hashes[place]), word.astype(int).tolist())
            if len(found) == len(words):
                return found
    return found
