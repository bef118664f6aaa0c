"""Stages: their keys, records, folders and locks, and the runner. The package does not depend on models or Ray.

- `stage`: base class of stages, with inputs and a result.
- `key`: computes a stage's key from everything that determines its result.
- `record`: the record of a finished stage with its result, files and cost.
- `store`: the folders and logs of stages in a storage root.
- `ensure`: skips finished stages and runs the others, inputs first.
- `notifications`: messages to a webhook when a job, a chain or a search ends.
- `parallel`: runs several stages at the same time.
- `outputs`: flushes a stage's files to disk, and checks that they have not changed.
- `digest`: content digests of files.
- `lock`: lets only one process at a time run a stage.
- `claim`: the right to work on a stage, and the commit of its record, in a folder or on a bucket.
- `bucket`, `bucket_errors`: the client of a bucket, and what the errors of its store mean.
- `lease`: the lock of a stage in a bucket.
- `bucket_records`, `mirror`, `local_cache`: records in a bucket, the local copy of the bucket, and its size.
- `folder_copy`: copies of a stage's folder on the other nodes of a cluster, if the storage root is a bucket.
- `uploads`: uploads the files of a stage while it runs.
- `files`: writes files completely or not at all, and explains failures of storage.
- `secret`: the key that signs a user's checkpoints.
"""

from adapt.runner.ensure import ensure, plan_stages
from adapt.runner.parallel import ensure_all
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
