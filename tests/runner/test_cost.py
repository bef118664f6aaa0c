"""What devices cost."""

from adapt.runner.cost import cost_of


def test_the_cost_is_hours_times_the_price_and_unknown_without_one() -> None:
    assert cost_of(5400.0, 2.0) == {"device_seconds": 5400.0, "device_hours": 1.5, "cost": 3.0}
    assert cost_of(5400.0, None)["cost"] is None
    assert cost_of(5400.0, 0.0)["cost"] == 0.0
