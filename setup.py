"""The compiled modules: the kernels of the predictors (`predictors.kernels`) and the reading of an engine's stream
(`backends.scanning`), the construction of objects (`router.compiled`), loops over options (`router.core.option_columns`),
the model of engines (`backends.engine`), and the simulation of pipelines (`benchmarks.pipelines`). All else about the package
is in pyproject.toml."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from setuptools import Extension, setup

KERNELS = Path("predictors/kernels/native")
CALIBRATION = Path("predictors/kernels/reference/calibration.py")
KERNEL_NAMES = ("calibration", "distributions", "estimates", "histories", "networks", "residuals", "words")
READING = [
    Path("backends", name)
    for name in (
        "assemble.py",
        "connection.py",
        "engine_numbers.py",
        "post.py",
        "sse.py",
        "sse_events.py",
        "stream.py",
        "native/assemble.pxd",
        "native/connection.pxd",
        "native/post.pxd",
        "native/scanner.pyx",
        "native/sse.pxd",
        "native/sse_events.pxd",
        "native/stream.pxd",
    )
]
ENGINE = [
    Path("backends/engine", name)
    for name in (
        "batching.py",
        "decoding.py",
        "kv.py",
        "series.py",
        "native/batching.pxd",
        "native/decoding.pxd",
        "native/kv.pxd",
        "native/series.pxd",
    )
]

CONSTRUCTION, FIELDS = Path("router/native/construction.pyx"), Path("router/native/fields.pyx")
OPTIONS, FIELD_TYPES = Path("router/native/options.pyx"), FIELDS.with_suffix(".pxd")
PIPELINES = [
    Path("benchmarks/pipelines", name)
    for name in ("engine.py", "native/engine.pxd", "native/schedulers.pxd", "schedulers.py")
]


def extension(name: str, source: Path, digested: Sequence[Path], *flags: str) -> Extension:
    """Where it cannot be compiled, the installation goes on without it: `optional`. `digested` are the files of which the
    module tells that it was made from them. A compiler for ARM would fuse products and sums (`-ffp-contract`), which Python and
    NumPy round one by one."""
    generated = source.with_suffix(".c")
    if generated.is_file() and generated.stat().st_mtime < max(path.stat().st_mtime for path in digested):
        generated.unlink()  # Cython does not know that it depends on all of them
    digest = sha256(b"".join(path.read_bytes() for path in digested)).hexdigest()[:16]
    return Extension(
        name,
        [str(source)],
        depends=[str(path) for path in digested],
        define_macros=[("HEADWAY_SOURCE", f'"{digest}"')],
        extra_compile_args=["-O3", "-g0", "-ffp-contract=off", *flags],
        libraries=["m"],  # else its functions are those of the oldest version, each in a check of errors
        optional=True,
    )


def kernel(name: str) -> Extension:
    source = CALIBRATION if name == "calibration" else KERNELS / f"{name}.pyx"
    digested = [
        *sorted(KERNELS.glob("*.pxd")),
        FIELD_TYPES,
        CALIBRATION,
        *([] if source == CALIBRATION else [source]),
    ]
    flags = ("-fno-math-errno", "-fno-trapping-math")
    return extension(f"predictors.kernels.native.{name}", source, digested, *flags)


setup(
    options={"build_ext": {"parallel": True}},  # on all cores
    ext_modules=[
        *map(kernel, KERNEL_NAMES),
        *(
            extension(f"backends.native.{path.stem}", path, READING)
            for path in READING
            if path.suffix == ".py"
        ),
        extension("backends.native.scanner", Path("backends/native/scanner.pyx"), READING),
        *(
            extension(f"backends.engine.native.{path.stem}", path, ENGINE)
            for path in ENGINE
            if path.suffix == ".py"
        ),
        extension("backends.engine.native.source", Path("backends/engine/native/source.pyx"), ENGINE),
        extension("router.native.construction", CONSTRUCTION, [CONSTRUCTION]),
        extension("router.native.options", OPTIONS, [OPTIONS, FIELD_TYPES]),
        extension("router.native.fields", FIELDS, [FIELDS, FIELD_TYPES]),
        extension("benchmarks.pipelines.native.engine", Path("benchmarks/pipelines/engine.py"), PIPELINES),
        extension(
            "benchmarks.pipelines.native.schedulers", Path("benchmarks/pipelines/schedulers.py"), PIPELINES
        ),
        extension(
            "benchmarks.pipelines.native.source", Path("benchmarks/pipelines/native/source.pyx"), PIPELINES
        ),
    ],
)
