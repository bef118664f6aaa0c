"""The stage machinery: keys, records, folders, locks and the runner. It knows nothing of models or of Ray."""

from adapt.runner.parallel import ensure_all
from adapt.runner.record import Record
from adapt.runner.run import ensure, plan_stages
from adapt.runner.stage import Done, Finished, Outcome, Stage
from adapt.runner.store import Store

__all__ = ["Done", "Finished", "Outcome", "Record", "Stage", "Store", "ensure", "ensure_all", "plan_stages"]
