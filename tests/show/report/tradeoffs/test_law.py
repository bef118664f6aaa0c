"""Which trainings a law is fitted to, and what it is said to name."""

from adapt.show.report.tradeoffs.law import law_findings
from adapt.show.report.tradeoffs.points import BASE, LossOn, MeasuredAlike, Mixed, TradeOff

LENGTHS, SHARES = (1_000_000, 3_000_000, 10_000_000), (0.0, 0.1, 0.25, 0.5)


def losses(tokens: int, replay: float) -> tuple[float, float]:
    """On the domain and on general text; only with 20% replayed or more the latter is 3 or less after 10 M tokens."""
    length = tokens / 10_000_000
    domain = 1.5 + 0.3 * (1 - replay) ** 0.5 / length**0.2 + 0.1 / (1 - replay + 0.1)
    general = 2.75 + 0.2 * replay / length**0.2 + 0.07 / (replay + 0.13)
    return domain, general


def studied(lengths: tuple[int, ...] = LENGTHS, rates: tuple[str, ...] = ("1e-4",)) -> MeasuredAlike:
    base = TradeOff(BASE, {}, LossOn(4.0), LossOn(losses(10_000_000, 0.2)[1] + 1e-4), 0.0)
    models = [base]
    for rate in rates:
        for tokens in lengths:
            for replay in SHARES:
                domain, general = (LossOn(value) for value in losses(tokens, replay))
                values = {"rate": rate, "length": str(tokens), "replay": str(replay)}
                models.append(TradeOff(f"rate {rate}", values, domain, general, 1.0, Mixed(tokens, replay, rate)))
    return MeasuredAlike(models)


def test_the_smallest_share_that_keeps_general_text_is_named_with_how_well_the_law_fits() -> None:
    (finding,) = law_findings(studied())
    assert finding.head == "Replay share by the D-CPT law, 12 trainings as rate 1e-4"
    share = int(finding.text.partition("%")[0])
    assert 18 <= share <= 21
    assert "keeps the loss on general text at" in finding.text
    assert "over 10,000,000 tokens" in finding.text
    assert finding.text.count("of the spread explained") == 2


def test_each_learning_rate_has_a_law_of_its_own() -> None:
    assert len(law_findings(studied(rates=("1e-4", "5e-4")))) == 2


def test_one_length_or_no_share_that_suffices_is_said_or_left_out() -> None:
    assert law_findings(studied(lengths=LENGTHS[:1])) == []
    found = studied()
    base = TradeOff(BASE, {}, LossOn(4.0), LossOn(1.0), 0.0)
    (finding,) = law_findings(MeasuredAlike([base, *found.models[1:]]))
    assert finding.text.startswith("No share up to 50% keeps")
    assert finding.tone == "open"
    assert law_findings(MeasuredAlike(found.models[1:])) == []  # nothing to keep
