"""What a run says of itself while it trains.

- `progress`: where it is.
- `meter`: loss, speed, and how long the devices waited.
- `cores`: how long its threads waited for a core, and what the user is told then.
- `track`: metrics to files and trackers.
- `ray_metrics`: the same for Prometheus.
- `notice`: words from its processes to the user.
- `watch`: shows all that at the driver.
"""
