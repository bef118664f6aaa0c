"""From a configuration to the stages of a job. The only place where the parts are wired together."""

from adapt.stages.catalogue import Catalogue

__all__ = ["Catalogue"]
