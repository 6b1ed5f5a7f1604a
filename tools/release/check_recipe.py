"""Renders conda's recipe as rattler-build does, for each Python: `make lint-packages`.

This finds wrong fields, templates and version specifiers. Only conda's solver could tell whether
the packages that it names fit together.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "packages" / "conda" / "recipe.yaml"
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
# What conda-forge sets for all of its recipes.
VARIANTS = {
    "python": [f"{version}.* *_cpython" for version in PYTHONS],
    "cxx_compiler": ["gxx"],
    "c_stdlib": ["sysroot"],
    "c_stdlib_version": ["2.34"],
}
PLATFORM = "linux-64"


def main() -> int:
    platform = PlatformConfig(
        build_platform=PLATFORM, host_platform=PLATFORM, target_platform=PLATFORM
    )
    recipe = Stage0Recipe.from_file(RECIPE)
    rendered = recipe.render(VariantConfig(VARIANTS), RenderConfig(platform=platform))
    builds = [variant.recipe.to_dict()["build"]["string"] for variant in rendered]
    print(f"{RECIPE.relative_to(ROOT)}: {' '.join(builds)}")
    found = [match[1] for build in builds if (match := re.match(r"py(\d+)h", build))]
    return int(found != [version.replace(".", "") for version in PYTHONS])


if __name__ == "__main__":
    sys.exit(main())
