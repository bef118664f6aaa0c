"""From a configuration to the stages of a job. The only place where the parts are wired together."""

from adapt.stages.base import Start
from adapt.stages.catalogue import Catalogue
from adapt.stages.running import run_stages

__all__ = ["Catalogue", "Start", "run_stages"]
