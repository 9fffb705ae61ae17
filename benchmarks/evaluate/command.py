"""`headway evaluate`: the figures of trained predictors on any data set, beside baselines (docs/evaluation.md)."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.checks import check_out
from benchmarks.datasets.contents import rows, rows_by_source
from benchmarks.datasets.groups import without_near_copies
from benchmarks.datasets.splits import digest, split
from benchmarks.evaluate import report
from benchmarks.evaluate.arguments import add_data, add_output, check_data_options, read_data
from benchmarks.evaluate.figures import evaluator
from benchmarks.terminal import Progress, print_json, shown_progress
from predictors.learned.artifact import SHIPPED, SUFFIX, Artifact, ArtifactError, load
from predictors.learned.models import KINDS, ArtifactKind
from predictors.training.dataset import Dataset, DatasetError

ERRORS = (DatasetError, ArtifactError)


class _CannotTellError(DatasetError):
    """Data that one artifact cannot be evaluated on. Others in its folder may."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--artifact",
        type=Path,
        default=SHIPPED,
        metavar="FILE_OR_DIR",
        help="one artifact, or a folder with several (default: those that come with Headway)",
    )
    add_data(parser)
    parser.add_argument(
        "--train-data",
        action="append",
        default=[],
        metavar="DATA",
        help="what baselines are fitted on; without it and --held-out there are none",
    )
    parser.add_argument(
        "--held-out",
        action="store_true",
        help="only the part of --data that `headway train` held out; baselines are fitted on the rest",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write report.json and report.html")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Exit status: 0. Raises ERRORS for an artifact or data that cannot be used."""
    if args.held_out and args.train_data:
        raise DatasetError("--held-out has its own training data: leave out --train-data")
    check_out(args.out, DatasetError)
    check_data_options(args, [*args.data, *args.train_data])
    artifacts = _artifacts(args.artifact)
    with shown_progress("evaluating") as progress:
        data = read_data(args.data, args)
        train = read_data(args.train_data, args) if args.train_data else None
        notes = []
        if train is not None:
            data, copies = without_near_copies(data, train)
            if copies:
                notes = [f"Prompts left out, because --train-data has near copies of them: {copies}."]
        results, left_out = [], []
        for path, artifact in artifacts:
            if len(artifacts) == 1 or rows(KINDS[artifact.kind], data):
                try:
                    results.append(_evaluated(path, artifact, data, train, notes, args, progress))
                except _CannotTellError as error:
                    if len(artifacts) == 1:
                        raise
                    left_out.append(f"{path.name}: {error}")
    if not results:
        nothing = "nothing in the data that one of these artifacts could be evaluated on"
        raise DatasetError(". ".join((nothing, *notes, *left_out)))
    for line in left_out:
        print(f"headway evaluate: left out: {line}", file=sys.stderr)
    written = None if args.out is None else report.write(args.out, results)
    if args.json:
        print_json(report.report(results))
        return 0
    for each in results:
        print(report.text(each, each.found.figures))
    if written is not None:
        print(f"written to {written}")
    return 0


def _artifacts(place: Path) -> list[tuple[Path, Artifact]]:
    """The artifact, or all in a folder. Raises ArtifactError where there is none, or for one that does not
    fit."""
    paths = sorted(place.glob(f"*{SUFFIX}")) if place.is_dir() else [place]
    if not paths:
        raise ArtifactError(f"{place}: no artifact in this folder (*{SUFFIX})")
    return [(path, _checked(path)) for path in paths]


def _checked(path: Path) -> Artifact:
    artifact = load(path)
    if artifact.kind not in KINDS:
        raise ArtifactError(f"{path}: a {artifact.kind} artifact, which this version does not know")
    return load(path, artifact.kind, KINDS[artifact.kind].model.features)


def _evaluated(
    path: Path,
    artifact: Artifact,
    data: Dataset,
    train: Dataset | None,
    notes: list[str],
    args: argparse.Namespace,
    progress: Progress,
) -> report.Evaluated:
    kind = KINDS[artifact.kind]
    progress(kind.name)
    if args.held_out:
        train, data = _split(artifact, data, kind)
    elif seen := set(data.sources) & {str(row["name"]) for row in artifact.about.get("data", [])}:
        remedy = (
            "it was trained on everything, so only data that came later show how good it is"
            if artifact.about.get("final")
            else "--held-out leaves them out"
        )
        notes = [
            *notes,
            f"The artifact was trained on rows of {', '.join(sorted(seen))}: some of these may be among them ({remedy}).",
        ]
    if not rows(kind, data):
        nothing = f"nothing in the data that a {kind.name} artifact could be evaluated on"
        raise DatasetError(". ".join((nothing, *notes)))
    kind.load(path)  # as it would serve: refuses values that do not fit together
    try:
        found = evaluator(kind)(artifact, data, train, seed=args.seed)
    except DatasetError as error:
        raise _CannotTellError(str(error)) from error
    return report.Evaluated(
        artifact, path, rows_by_source(data), replace(found, notes=(*notes, *found.notes))
    )


def _split(artifact: Artifact, data: Dataset, kind: ArtifactKind) -> tuple[Dataset, Dataset]:
    """The split that `headway train` made for the artifact, made again. Raises DatasetError if the data are not the same:
    what is held out of them now may have been trained on."""
    about = artifact.about
    if about.get("final"):
        raise DatasetError(f"--held-out: this {kind.name} artifact was trained on everything (--final)")
    told = (about.get("held_out"), about.get("seed"), about.get("training_part"))
    if tuple(map(type, told)) != (float, int, str):
        raise DatasetError(f"--held-out: the {kind.name} artifact does not say what was held out")
    train, test = split(data, about["held_out"], about["seed"], of_prompts=kind.of_prompts)
    if digest(train, of_prompts=kind.of_prompts) != about["training_part"]:
        raise DatasetError(
            f"--held-out: the {kind.name} artifact was trained on other data, so its held-out part is not known: name the same"
            " data again, or test it on later data with --train-data"
        )
    return train, test
