"""The stage machinery: keys, records, folders, locks and the runner. It knows nothing of models or of Ray."""

from adapt.chain.parallel import ensure_all
from adapt.chain.record import Record
from adapt.chain.run import Outcome, Stage, ensure, plan
from adapt.chain.store import Store

__all__ = ["Outcome", "Record", "Stage", "Store", "ensure", "ensure_all", "plan"]
