"""Stages: their keys, records, folders and locks, and the runner. The package does not depend on models or Ray.

- `stage`: base class of stages, with inputs and a result; computes a stage's key from everything that determines its
  result.
- `record`: the record of a finished stage with its result, files and cost.
- `store`: the folders and logs of stages in a storage root.
- `ensure`: skips finished stages and runs the others, inputs first, one by one or several at the same time.
- `notifications`: messages to a webhook when a job, a chain or a search ends.
- `digest`: computes content digests of files, flushes a stage's files to disk, and checks that they have not changed.
- `lock`: lets only one process at a time run a stage, in a folder or on a bucket.
- `claim`: gives one process the right to work on a stage, uploads the stage's files, and commits its record.
- `bucket`, `bucket_errors`: the client of a bucket, and explanations of the errors of the bucket's store.
- `bucket_records`, `mirror`: records in a bucket, and the local copy of the bucket.
- `folder_copy`: copies of a stage's folder on the other nodes of a cluster, if the storage root is a bucket.
- `files`: writes files completely or not at all, and explains failures of storage.
- `secret`: the key that signs a user's checkpoints.
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
