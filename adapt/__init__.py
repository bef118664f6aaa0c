"""dontstop: adapts language models to domains and tasks, on Ray, without making them forget."""

__version__ = "0.2.0"
