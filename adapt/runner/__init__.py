"""The stage machinery: keys, records, folders, locks and the runner. It knows nothing of models or of Ray."""

from adapt.runner.parallel import ensure_all
from adapt.runner.record import Record
from adapt.runner.run import Outcome, Stage, ensure, plan
from adapt.runner.store import Store

__all__ = ["Outcome", "Record", "Stage", "Store", "ensure", "ensure_all", "plan"]
