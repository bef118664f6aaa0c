"""What a stage took of the devices, for its record."""

from typing import Any


def cost_of(device_seconds: float, price_per_hour: float | None) -> dict[str, Any]:
    """The device time, and what it costs in the currency of the price; None where no price is given."""
    hours = device_seconds / 3600
    cost = None if price_per_hour is None else hours * price_per_hour
    return {"device_seconds": device_seconds, "device_hours": hours, "cost": cost}
