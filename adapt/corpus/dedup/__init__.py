"""Which documents are duplicates of others.

- `minhash`: signatures, and the bands in which alike documents meet.
- `buckets`: candidates, partition by partition.
- `clusters`: of each, the first document stays.
- `deduplicate`: the stage, over all files and sources.
- `report`: what was dropped.
"""
