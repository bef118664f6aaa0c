"""The replay share that the D-CPT law names, where trainings differ enough in length and mixture to fit it."""

from adapt.show.blocks import FindingBlock
from adapt.show.report.tradeoffs.points import BASE, MeasuredAlike, Mixed, TradeOff
from adapt.statistics.mixture_law import LARGEST, MixtureLaw, fit_law, share_that_keeps


def law_findings(measured: MeasuredAlike) -> list[FindingBlock]:
    """A finding for each group of trainings that differ in length and replay share alone and are enough for a fit."""
    groups: dict[str, list[tuple[Mixed, TradeOff]]] = {}
    for model in measured.models:
        if model.mixed:
            groups.setdefault(model.mixed.settings, []).append((model.mixed, model))
    before = next((model for model in measured.models if model.label == BASE), None)
    return [finding for group in groups.values() if before and (finding := _finding(group, before))]


def _finding(group: list[tuple[Mixed, TradeOff]], before: TradeOff) -> FindingBlock | None:
    tokens = [mixed.tokens for mixed, _ in group]
    replay = [mixed.replay for mixed, _ in group]
    domain = fit_law(tokens, [1 - share for share in replay], [model.domain.value for _, model in group])
    general = fit_law(tokens, replay, [model.general.value for _, model in group])
    if domain is None or general is None:
        return None
    longest, (_, first) = max(tokens), group[0]
    share = share_that_keeps(general, longest, before.general.value)
    fit = (
        f"Trainings left out are predicted within {_error(domain)} on the domain and {_error(general)} on general text"
    )
    head = f"Replay share by the D-CPT law, {len(group)} trainings as {first.label}"
    if share is None:
        text = f"No share up to {LARGEST:.0%} keeps the loss on general text at {before.general.value:.2f}"
        return FindingBlock(head, f"{text} over {longest:,} tokens. {fit}.", "open")
    text = (
        f"{share:.0%} of replayed text keeps the loss on general text at {before.general.value:.2f} over {longest:,}"
        f" tokens, with {domain.loss(longest, 1 - share):.2f} on the domain"
    )
    return FindingBlock(head, f"{text}. {fit}.")


def _error(law: MixtureLaw) -> str:
    return f"{law.error:.3f} nats ({max(law.explained, 0.0):.0%} of the spread explained)"
