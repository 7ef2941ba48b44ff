"""Models are judged by mutants: a coordinator with one rule broken, which a model that is any good must notice."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

EXAMPLES_MAX = 5000
"""It ends with the first that is noticed. Which one that is depends on what else was imported: Hypothesis takes constants from there."""
VIOLATION = r"\(I34\)|\(I38\)|at the coordinator|is read by|meant for it"
"""What the coordinator itself, or a model, says when something is wrong."""


def expect_caught(model: type[RuleBasedStateMachine]) -> None:
    with pytest.raises(AssertionError, match=VIOLATION):
        run_state_machine_as_test(
            model,
            settings=settings(
                max_examples=EXAMPLES_MAX,
                stateful_step_count=40,
                derandomize=True,
                database=None,
                report_multiple_bugs=False,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
