"""Computes the contrastive loss of DAS, between new and earlier knowledge (arXiv 2302.03241, section 4.2).

See docs/science/equations.md, section "DAS". A view is the mean of the last hidden states of a document. All views of a
micro-batch that need a gradient are packed into one sequence, so they need only one pass.

The loss compares documents of the global batch, no matter how ranks and passes split the batch. In a step of several
passes, the views of all passes are first computed without gradient. The contrastive loss of these views gives the
gradient of each view. Then every pass computes its views again and runs the backward pass from these gradients (as in
arXiv 2101.06983).

`Disagreement` measures importance for general knowledge with two views that differ by dropout (section 4.1), because
the text from which the model learnt general knowledge is not available.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from adapt.method.collectives import RunningMean, counted, gathered
from adapt.method.das.method import DasOptions
from adapt.model.layers import Gates, Kind, Values, layers_of
from adapt.model.packing.attention import QuickDropout, draw_again, random_state
from adapt.model.packing.packed import Packed, sent
from adapt.model.size import ALIASES
from adapt.model.sparse_prediction import loss_and_states, loss_at, states_of
from adapt.model.states import document_means, last_hidden_state
from adapt.objective.objective import Batch, Corrupted
from adapt.support.errors import ModelError

Views = tuple[Tensor, ...]
"""Views of some documents: first view, second view, and possibly the view of earlier knowledge. Each [documents, H]."""


@dataclass(frozen=True)
class Text:
    """A micro-batch, and the indices of its documents that the contrastive loss compares."""

    corrupted: Corrupted
    whole: Packed
    numbers: Tensor
    """Indices of the compared documents in the micro-batch, int64 [compared], on the host."""

    @property
    def compared(self) -> Packed:
        """The compared documents, packed into one sequence."""
        return self.whole.only(self.numbers)


class Contrast:
    """Computes the views of a step's micro-batches and their contrastive loss.

    Args:
        config: options of DAS.
        gates: gates of the model. None if no importance is known yet. Documents then have no view of earlier knowledge.
        importance: importance of every unit; None if `gates` is None.
        injected: dropout for models that have no dropout. It does not affect the first view.
        first_general: number of the first row of replayed general text; None without general text.
    """

    def __init__(
        self,
        config: DasOptions,
        gates: Gates | None = None,
        importance: Values | None = None,
        injected: "Injected | None" = None,
        first_general: int | None = None,
    ) -> None:
        self._config = config
        self._gates = gates
        self._importance: dict[Kind, Tensor] = dict(importance or {})
        self._injected = injected
        self._first_general = first_general
        self._is_exact = gates is not None and config.contrast_cost == "exact"
        self.mean = RunningMean()
        """Mean contrast per document [nats] since the last report. The method adds each micro-batch's documents."""

    def losses(self, model: nn.Module, parts: Sequence[Corrupted]) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
        """Yields the losses of a step's passes, like `adapt.method.base.Method.losses`. All ranks call this.

        If a row contains only part of a document, the part counts as a document, even if it has only one or two tokens.

        Args:
            model: a model with its head, or a wrapper of such a model.
            parts: this rank's micro-batches of the step.

        Yields:
            For each micro-batch, three values. First, the summed cross entropy of its predictions [nats]. Second, a
            term to add to the loss, or None if no rank has documents to compare. Its gradient is the micro-batch's part
            of the gradient of `contrast_weight` times the mean contrast. Third, the contrast (contrastive loss) of each
            compared document of the micro-batch [nats], without gradient.
        """
        texts, documents = self._texts(parts)
        if not documents:
            yield from self._plainly(model, texts)
            return
        share = self._config.contrast_weight / documents
        yield from self._in_one_pass(model, texts[0], share) if len(texts) == 1 else self._twice(model, texts, share)

    def _plainly(self, model: nn.Module, texts: Sequence[Text]) -> Iterator[tuple[Tensor, None, Tensor]]:
        for text in texts:
            loss = loss_at(model, text.whole, text.corrupted.asked(), text.corrupted.answers())
            yield loss, None, loss.new_zeros(0)

    def _in_one_pass(self, model: nn.Module, text: Text, share: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        known = self._known(model, text)
        with self._joined(text) as together:
            loss, views = self.training_pass(model, text, together)
            compared = self._compared((*views, *known))
            yield loss, compared.sum() * share, compared.detach()

    def _twice(self, model: nn.Module, texts: Sequence[Text], share: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Runs all passes without gradient to compare the views, then runs each pass again and yields its losses.

        The repeated pass uses the same dropout masks. Its backward pass starts from the gradients of the compared
        views.
        """
        views, known, states = zip(*(self._ahead(model, text) for text in texts), strict=True)
        leaves = [torch.cat(view).requires_grad_() for view in zip(*views, strict=True)]
        compared = self._compared((*leaves, *(torch.cat(negatives) for negatives in zip(*known, strict=True))))
        counts = [len(text.numbers) for text in texts]
        gradients = [gradient.split(counts) for gradient in torch.autograd.grad(compared.sum() * share, leaves)]
        contrasts = compared.detach().split(counts)
        for text, contrast, wanted, state in zip(texts, contrasts, zip(*gradients, strict=True), states, strict=True):
            draw_again(state, text.whole.input_ids.device)
            with self._joined(text) as together:
                loss, again = self.training_pass(model, text, together)
                products = [(view * gradient).sum() for view, gradient in zip(again, wanted, strict=True)]
                yield loss, torch.stack(products).sum(), contrast

    def _texts(self, parts: Sequence[Corrupted]) -> tuple[list[Text], int]:
        """Chooses this rank's documents to compare. Also returns the number of compared documents in the global batch.

        With `contrast_cost: economy`, evenly spaced documents are chosen. Rows are shuffled, so the choice is random.
        """
        candidates = [self._candidates(part) for part in parts]
        ranks, rank = counted(sum(map(len, candidates)))
        total = compared = sum(ranks)
        if self._config.contrast_cost == "economy":
            compared = min(total, max(2, ceil(self._config.economy_fraction * total)))
        numbers, texts, begin = torch.arange(compared) * total // max(compared, 1), [], sum(ranks[:rank])
        for part, documents in zip(parts, candidates, strict=True):
            end = begin + len(documents)
            own = numbers[(numbers >= begin) & (numbers < end)] - begin
            texts.append(Text(part, part.packed(), documents[own]))
            begin = end
        return texts, compared

    def _candidates(self, part: Corrupted) -> Tensor:
        """Returns the indices of a micro-batch's documents that may be compared, int64 [documents], on the host.

        In a trial that measures the memory use, rows have no numbers, so general text cannot be recognized. Then all
        documents are compared, which needs the most memory.
        """
        rows = (part.starts & part.real).nonzero()[:, 0]  # index of each document's row in the micro-batch
        if self._config.contrast_text == "all" or part.rows is None:
            return torch.arange(len(rows))
        if self._first_general is None:
            return rows[:0]
        return (part.rows[rows] >= self._first_general).nonzero().flatten()

    @contextmanager
    def _joined(self, text: Text) -> Iterator[Packed]:
        """Packs a micro-batch, and copies of its compared documents for the other views, into one sequence.

        Inside the block, gates and injected dropout act on the copies. Call backward() inside the block too, because
        checkpointed layers run again in the backward pass.
        """
        together = Packed.joined(text.whole, *[text.compared] * (2 if self._is_exact else 1))
        index = torch.arange(together.tokens, device=together.input_ids.device)
        with ExitStack() as stack:
            if self._is_exact:
                stack.enter_context(self._gated(index >= text.whole.tokens + text.compared.tokens))
            if self._injected:
                stack.enter_context(self._injected.on(index >= text.whole.tokens))
            yield together

    def training_pass(self, model: nn.Module, text: Text, together: Packed) -> tuple[Tensor, Views]:
        """Runs the training pass of a packed sequence. Returns the objective's loss and the views with gradient."""
        loss, states = loss_and_states(model, together, text.corrupted.asked(), text.corrupted.answers())
        return loss, self._views(states, text, together)

    @torch.no_grad()
    def _ahead(self, model: nn.Module, text: Text) -> tuple[Views, Views, list[Tensor]]:
        """Computes the views of a micro-batch without gradient, before its training pass.

        Returns:
            The views that the training pass computes again with gradient, the view of earlier knowledge if the training
            pass does not compute it, and the random state from which dropout was drawn.
        """
        known, state = self._known(model, text), random_state(text.whole.input_ids.device)
        with self._joined(text) as together:
            return self._views(states_of(model, together), text, together), known, state

    def _views(self, states: Tensor, text: Text, together: Packed) -> Views:
        means = document_means(states.float(), together)
        own, numbers = len(text.whole.documents), sent(text.numbers, means.device)
        return means[:own].index_select(0, numbers), *means[own:].tensor_split(2 if self._is_exact else 1)

    def _known(self, model: nn.Module, text: Text) -> Views:
        """Returns the view of earlier knowledge, computed in a separate pass without gradient.

        Returns no view if there are no gates, or if `contrast_cost: exact` computes this view in the training pass.
        """
        if self._gates is None or self._is_exact:
            return ()
        # every rank must run a pass, so a rank without compared documents runs one document and ignores the result
        packed = text.compared if len(text.numbers) else text.whole.only(torch.zeros(1, dtype=torch.int64))
        injected = self._injected.on() if self._injected else nullcontext()
        with torch.no_grad(), self._gates.set(self._importance_on(packed.input_ids.device)), injected:
            return (document_means(states_of(model, packed).float(), packed)[: len(text.numbers)],)

    def _compared(self, views: Views) -> Tensor:
        first, second, previous = (*views, None)[:3]
        assert first is not None
        assert second is not None
        return info_nce(first, second, previous, self._config.contrast_temperature, self._config.contrast_documents)

    @contextmanager
    def _gated(self, tokens: Tensor) -> Iterator[None]:
        """Returns a context manager that multiplies unit outputs by importance where `tokens`, bool [N], is true."""
        assert self._gates
        importance = self._importance_on(tokens.device)
        values = {kind: torch.stack((torch.ones_like(layers), layers), 1) for kind, layers in importance.items()}
        with self._gates.set(values, tokens.long()):
            yield

    def _importance_on(self, device: torch.device) -> dict[Kind, Tensor]:
        self._importance = {kind: sent(layers, device) for kind, layers in self._importance.items()}
        return self._importance


def info_nce(first: Tensor, second: Tensor, previous: Tensor | None, temperature: float, most: int) -> Tensor:
    """Computes the contrastive loss of each document, from three views of the documents.

    The loss of document n follows arXiv 2302.03241, section 4.2:
    loss_n = -log exp(s(first_n, second_n)) / sum_j [exp(s(first_n, second_j)) + exp(s(first_n, previous_j))].
    Here s is the cosine divided by t, and j runs over the documents in the group of document n.

    Args:
        first: first views of this rank's documents, [D, H]; D may be 0.
        second: second views of the same documents, [D, H].
        previous: views of earlier knowledge of these documents, [D, H]; None on all ranks if there are no such views.
        temperature: the temperature t.
        most: maximum number of documents in a group. The documents of all ranks are split into the fewest possible
            groups.

    Returns:
        Losses [nats], [D]. All ranks must run the backward pass, since views of other ranks get a gradient too.
    """
    views = (second,) if previous is None else (second, previous)
    rows, begin = gathered(torch.cat(views, 1))  # gathers both views with one collective operation
    end = begin + len(first)
    cut = groups(len(rows), most)
    losses = []
    for start, stop in [group for group in cut if begin < group[1] and group[0] < end] or cut[:1]:
        candidates = torch.cat(rows[start:stop].chunk(len(views), dim=1))
        low, high = min(max(begin, start), stop), min(max(end, start), stop)
        scores = normalize(first[low - begin : high - begin]) @ normalize(candidates).T / temperature
        own = torch.arange(low - start, high - start, device=first.device)
        losses.append(cross_entropy(scores, own, reduction="none"))
    return torch.cat(losses)


def groups(documents: int, most: int) -> list[tuple[int, int]]:
    """Splits documents into as few ranges [begin, end) as possible, of about equal size, with at most `most` each."""
    count = max(1, -(-documents // most))
    ends = [documents * (number + 1) // count for number in range(count)]
    return list(zip([0, *ends], ends, strict=False))


class Disagreement:
    """KL divergence between the last hidden states of two passes, after a softmax over the features of each token.

    The divergence is the mean of both directions. Both passes draw dropout from the same distribution, so the mean has
    the same expectation as one direction, but less noise. Without dropout, the divergence and its gradient are exactly
    0.
    """

    def corrupt(self, batch: Batch) -> Corrupted:
        """Returns the unmasked text. All text tokens are positions at which the passes are compared."""
        return Corrupted(batch.tokens, batch.real, batch.starts, batch.real, batch.tokens[batch.real])

    def loss(self, model: nn.Module, corrupted: Corrupted) -> Tensor:
        """Returns the divergence summed over the tokens [nats], float32 scalar."""
        packed = corrupted.packed()
        first, second = (last_hidden_state(model, packed).float().log_softmax(-1) for _ in range(2))
        return ((first.exp() - second.exp()) * (first - second)).sum() / 2


class Injected:
    """Dropout on the output of each attention and feed-forward layer, for models without dropout. Off by default.

    The dropout is applied by forward hooks, which are never removed. They run after the hooks of the gates.

    Args:
        model: a model whose weights are not sharded.
        p: dropout probability.
    """

    def __init__(self, model: Any, p: float) -> None:
        self._drop = QuickDropout(p)
        self._is_on = False
        self._tokens: Tensor | None = None
        for layer in layers_of(model):
            for name in (layer.pattern.attention_out, layer.pattern.outer):
                layer.part(name).register_forward_hook(self)

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        """Applies dropout to a layer's output (a forward hook), if dropout is on and the module is in training mode."""
        if not (self._is_on and module.training):
            return output
        dropped: Tensor = self._drop(output)
        return dropped if self._tokens is None else torch.where(self._tokens[:, None], dropped, output)

    @contextmanager
    def on(self, tokens: Tensor | None = None) -> Iterator[None]:
        """Turns the dropout on inside the block, for passes in training mode.

        Args:
            tokens: mask of the tokens with dropout, bool [N]; None for all tokens.
        """
        before = self._is_on, self._tokens
        self._is_on, self._tokens = True, tokens
        try:
            yield
        finally:
            self._is_on, self._tokens = before


def contrast_of(model: Any, config: DasOptions, importance: Values | None, first_general: int | None) -> Contrast:
    """Prepares a model for the contrastive loss. Adds gates for `importance`, and dropout if the model has none.

    Args:
        model: a model with its head.
        config: options of DAS.
        importance: importance of every unit; None if it is not known yet.
        first_general: number of the first row of replayed general text; None without general text.
    """
    gates = None if importance is None else Gates(model)
    return Contrast(config, gates, importance, injected(model, config.injected_dropout), first_general)


def injected(model: Any, p: float) -> Injected | None:
    """Adds dropout to a model without dropout, so that two passes differ. Returns None if the model has its own.

    Raises:
        ModelError: the model has no dropout, and p is 0.
    """
    if has_dropout(model):
        return None
    if not p:
        raise ModelError(
            f"{type(model).__name__} has no dropout, so the two passes over a text that das compares are equal",
            "set das.injected_dropout above 0, or set das.contrast_weight to 0 and das.general_importance to none",
        )
    return Injected(model, p)


def has_dropout(model: Any) -> bool:
    """Returns whether the model has any dropout in training mode, in its modules or in its attention."""
    attention = (getattr(model.config, name, None) for name in ALIASES["attention_dropout"])
    return any(attention) or any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
