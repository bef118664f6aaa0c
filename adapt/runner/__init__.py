"""Runs stages and stores their results. The package does not depend on models or Ray.

- `stage`: defines the base class of stages, and computes a stage's key from everything that determines its result.
- `record`: reads and writes the record of a finished stage, with its result, files and cost.
- `store`: finds the folders and logs of stages in a storage root.
- `ensure`: skips finished stages and runs the others, inputs first, one by one or several at the same time.
- `notifications`: sends messages to a webhook when a job, a chain or a search ends.
- `digest`: computes content digests of files, flushes a stage's files to disk, and checks that they have not changed.
- `lock`: lets only one process at a time run a stage, in a storage root that is a folder or a bucket.
- `claim`: gives one process the right to work on a stage, uploads the stage's files, and commits its record.
- `bucket`, `bucket_errors`: read and write objects of an S3 bucket, and explain the store's errors.
- `bucket_records`, `mirror`: manage the records in a bucket, and the local copy of the bucket.
- `folder_copy`: copies a stage's folder to the other nodes of a cluster, if the storage root is a bucket.
- `files`: writes files completely or not at all, and explains failures of storage.
- `secret`: signs a user's checkpoints with the user's key.
"""

from adapt.runner.ensure import ensure, ensure_all, plan_stages
from adapt.runner.record import Record
from adapt.runner.stage import NOTHING, ONE_CPU, Done, Finished, Outcome, Shown, Stage
from adapt.runner.store import Store

__all__ = [
    "NOTHING",
    "ONE_CPU",
    "Done",
    "Finished",
    "Outcome",
    "Record",
    "Shown",
    "Stage",
    "Store",
    "ensure",
    "ensure_all",
    "plan_stages",
]
