"""From shards to the batches of each rank: functions of the seed, and never of how shards are read.

- `order`: which row stands at which place.
- `group`: sources that are passed through together.
- `slots`: how many samples of each period a group has.
- `mixture`: which row of which source is sample j of a run.
- `stream`: the batches as they reach a rank.
"""
