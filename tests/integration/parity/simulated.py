"""The simulator's side of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.simulator import Arrival, Fleet, InstanceLoss, Simulation
from predictors.online.predictor import OnlinePredictor
from router.core.events import Instruction
from tests.integration.parity.traces import Run, instruction_step, listen, rows_of_result


def simulated_run(
    fleet: Fleet,
    arrivals: Iterable[Arrival],
    seed: int,
    losses: Sequence[InstanceLoss] = (),
    predictor: OnlinePredictor | None = None,
) -> Run:
    """What the simulator does with a workload; `predictor` serves in place of the fleet file's."""
    run = Run()
    told: list[dict[str, object]] = []

    def on_instruction(instruction: Instruction, at_s: float) -> None:
        told.append(instruction_step(instruction, at_s))

    simulation = Simulation(
        fleet, seed=seed, losses=losses, on_instruction=on_instruction, predictor=predictor
    )
    listen(simulation.scheduler, run.hear)
    arrivals = list(arrivals)
    result = simulation.run(arrivals)
    assert told == [step for step in run.steps if step["what"] in {"Dispatch", "Cancel", "Refuse"}]
    run.rows = rows_of_result(result, [arrival.request.id for arrival in arrivals])
    return run
