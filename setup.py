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
CONSTRUCTION, FIELDS = Path("router/native/construction.pyx"), Path("router/native/fields.pyx")
OPTIONS, FIELD_TYPES = Path("router/native/options.pyx"), FIELDS.with_suffix(".pxd")


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


def compiled(package: str) -> list[Extension]:
    """The modules in a package's `native`: from the package's modules of their names, or from Cython (`router.compiled.compiled_from`)."""
    folder = Path(package.replace(".", "/"))
    native = sorted(path for suffix in ("pxd", "pyx") for path in (folder / "native").glob(f"*.{suffix}"))
    beside = (folder / f"{path.stem}.py" for path in native)
    digested = [*(path for path in beside if path.is_file()), *native]
    return [
        extension(f"{package}.native.{path.stem}", path, digested)
        for path in digested
        if path.suffix != ".pxd"
    ]


setup(
    options={"build_ext": {"parallel": True}},  # on all cores
    ext_modules=[
        *map(kernel, KERNEL_NAMES),
        *compiled("backends"),
        *compiled("backends.engine"),
        *compiled("benchmarks.pipelines"),
        extension("router.native.construction", CONSTRUCTION, [CONSTRUCTION]),
        extension("router.native.options", OPTIONS, [OPTIONS, FIELD_TYPES]),
        extension("router.native.fields", FIELDS, [FIELDS, FIELD_TYPES]),
    ],
)
