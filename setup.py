"""The compiled kernels of the predictors (`predictors.kernels`). All else about the package is in pyproject.toml."""

from hashlib import sha256
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("predictors/kernels/native")


def extension(name: str) -> Extension:
    """Where it cannot be compiled, the installation goes on without it: `optional`."""
    sources = [*sorted(FOLDER.glob("*.pxd")), FOLDER / f"{name}.pyx"]
    digest = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    return Extension(
        f"predictors.kernels.native.{name}",
        [str(sources[-1])],
        depends=list(map(str, sources[:-1])),
        define_macros=[("HEADWAY_SOURCE", f'"{digest}"')],
        extra_compile_args=["-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"],
        optional=True,
    )


setup(
    ext_modules=[
        extension(name) for name in ("distributions", "estimates", "histories", "networks", "residuals")
    ]
)
