"""What ranks on different machines agree on."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from adapt.errors import ConfigError
from adapt.train.agree import agreed_precision, least_of_ranks
from tests.train.ranks import Ranks

CPU = torch.device("cpu")


def chosen(wanted: str, has_bf16: list[bool]) -> str:
    """A rank's precision, on a machine that multiplies in bf16 or not; or what it is told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_bf16[dist.get_rank()]})
        try:
            return agreed_precision(wanted, CPU)
        except ConfigError as error:
            return error.what


@pytest.mark.parametrize(
    ("has_bf16", "expected"),
    [([True, True], "bf16"), ([True, False], "fp32"), ([False, True], "fp32"), ([False, False], "fp32")],
)
def test_auto_is_bf16_where_all_machines_have_it(
    ranks: Callable[[int], Ranks], has_bf16: list[bool], expected: str
) -> None:
    assert ranks(2).run(chosen, "auto", has_bf16) == [expected, expected]
    assert ranks(2).run(chosen, "fp32", has_bf16) == ["fp32", "fp32"]


def test_a_machine_that_cannot_do_what_is_asked_says_so(ranks: Callable[[int], Ranks]) -> None:
    can, cannot = ranks(2).run(chosen, "bf16", [True, False])
    assert can == "bf16"
    assert "no bf16 arithmetic" in cannot


def least(numbers: list[int]) -> int:
    return least_of_ranks(numbers[dist.get_rank()], CPU)


def test_the_least_of_all_ranks(ranks: Callable[[int], Ranks]) -> None:
    assert ranks(2).run(least, [7, 3]) == [3, 3]
