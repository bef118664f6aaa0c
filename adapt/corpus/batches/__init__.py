"""From shards to the batches of each rank: functions of the seed, and never of how shards are read.

- `order`: which row stands at which place.
- `group`: sources that are passed through together.
- `slots`: where text whose share changes along a run stands.
- `mixture`: which row of which source is sample j of a run.
- `stream`: the batches as they reach a rank.
"""
