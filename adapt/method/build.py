"""The method that a configuration asks for."""

from adapt.config import Config
from adapt.method.base import Method
from adapt.method.das import Das


def make_method(config: Config) -> Method:
    """Makes it; `prepare_model` comes next."""
    return Das(config.das) if config.method.kind == "das" else Method()
