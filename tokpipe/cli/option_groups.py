"""Options that several commands share come in lists; this puts them on a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def with_options(*groups: list[Callable[[F], F]]) -> Callable[[F], F]:
    """Decorate a command with groups of options, in the order given."""

    def decorate(function: F) -> F:
        for option in reversed([option for group in groups for option in group]):
            function = option(function)
        return function

    return decorate
