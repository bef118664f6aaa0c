"""What methods against forgetting are compared to, under the names that papers have for it. None changes training."""

from __future__ import annotations

from typing import Any, ClassVar

from adapt.method.base import Method


class One(Method):
    """ONE: each domain is learnt by a model of its own, from the model to begin with. Nothing can be forgotten."""

    kind: ClassVar[str] = "one"
    mode: ClassVar[str | None] = "separate"

    def what(self) -> dict[str, Any]:
        """That of plain training, which it is."""
        return Method().what()


class Joint(Method):
    """JOINT: all domains are learnt at once, mixed, by one model."""

    kind: ClassVar[str] = "joint"
    mode: ClassVar[str | None] = "joint"

    def what(self) -> dict[str, Any]:
        """That of plain training, which it is."""
        return Method().what()
