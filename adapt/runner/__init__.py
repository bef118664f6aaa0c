"""The stage machinery: keys, records, folders, locks and the runner. It knows nothing of models or of Ray.

- `stage`: the class of stages, with inputs and a result.
- `key`: what a stage's result depends on, as a key.
- `record`: what a finished stage leaves: its result, files and cost.
- `store`: the folders and logs of stages below one root.
- `ensure`: skips finished stages and runs the others, inputs first.
- `parallel`: several stages at once.
- `outputs`: a stage's files, put to disk and checked.
- `digest`: content digests of files.
- `lock`: one run at a time per stage.
- `files`: writes files whole or not at all, and names the cause where storage fails.
- `secret`: the key that signs a user's checkpoints.
"""

from adapt.runner.ensure import ensure, plan_stages
from adapt.runner.parallel import ensure_all
from adapt.runner.record import Record
from adapt.runner.stage import NOTHING, ONE_CPU, Done, Finished, Outcome, Stage
from adapt.runner.store import Store

__all__ = [
    "NOTHING",
    "ONE_CPU",
    "Done",
    "Finished",
    "Outcome",
    "Record",
    "Stage",
    "Store",
    "ensure",
    "ensure_all",
    "plan_stages",
]
