"""Kinds of stages, one a file. Each is a frozen dataclass: its fields are its settings and the stages that it reads."""
