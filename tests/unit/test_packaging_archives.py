"""What is shipped: one package and nothing generic beside it, everything in it, and the same from either archive."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("perfscope", "collectors", "probes", "reports", "examples")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The sdist, the wheel built from the tree, and the wheel built from the unpacked sdist."""
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, "sdist", out)
    sdist = next(out.glob("*.tar.gz"))
    (out / "unpacked").mkdir()
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(out / "unpacked")], check=True)
    build(ROOT, "wheel", out / "direct")
    build(next((out / "unpacked").iterdir()), "wheel", out / "indirect")
    return sdist, next((out / "direct").glob("*.whl")), next((out / "indirect").glob("*.whl"))


def build(source: Path, target: str, out: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)],
        cwd=source,
        check=True,
        capture_output=True,
    )


def shipped() -> set[str]:
    """Every file git knows in the five source folders, by its place in the package."""
    known = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True)
    files = {name for name in known.stdout.splitlines() if not (ROOT / name).is_symlink() and (ROOT / name).exists()}
    return {name if name.startswith("perfscope/") else f"perfscope/{name}" for name in files}


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_wheel_holds_every_file_of_the_package(archives: tuple[Path, Path, Path]) -> None:
    assert shipped() - names(archives[1]) == set()


def test_a_wheel_puts_no_generic_name_into_site_packages(archives: tuple[Path, Path, Path]) -> None:
    top = {name.split("/")[0] for name in names(archives[1])}
    assert {name for name in top if not name.endswith(".dist-info")} == {"perfscope"}


def test_the_wheel_built_from_the_sdist_is_the_same(archives: tuple[Path, Path, Path]) -> None:
    _, direct, indirect = archives
    with zipfile.ZipFile(direct) as one, zipfile.ZipFile(indirect) as two:
        assert sorted(one.namelist()) == sorted(two.namelist())
        for name in one.namelist():
            assert one.read(name) == two.read(name), name


def test_an_sdist_can_be_tested(archives: tuple[Path, Path, Path]) -> None:
    with tarfile.open(archives[0]) as archive:
        files = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "tests/noskip.py"} <= files
    assert shipped() - files == set()


def test_an_sdist_holds_nothing_that_was_built_for_this_machine(archives: tuple[Path, Path, Path]) -> None:
    with tarfile.open(archives[0]) as archive:
        assert [name for name in archive.getnames() if name.endswith((".so", ".pyc", ".whl"))] == []


def test_the_distribution_carries_its_licenses(archives: tuple[Path, Path, Path]) -> None:
    licenses = {name.split("/licenses/")[1] for name in names(archives[1]) if ".dist-info/licenses/" in name}
    assert "LICENSE" in licenses
    assert {
        f"perfscope/probes/bpf/LICENSES/{path.name}" for path in (ROOT / "probes/bpf/LICENSES").glob("*")
    } <= licenses


def test_an_installed_wheel_runs_without_the_repository(archives: tuple[Path, Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(archives[1]) as archive:
        archive.extractall(tmp_path)
    code = (
        "import perfscope, perfscope.collectors.base, perfscope.probes, perfscope.reports, perfscope.examples.load\n"
        f"assert perfscope.__file__.startswith({str(tmp_path)!r})\n"
        "from perfscope.cli import run\nrun(['--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "record" in done.stdout


def test_every_entry_of_the_command_line_has_its_module() -> None:
    from perfscope.cli import COMMANDS

    missing = [name for name in COMMANDS if not (ROOT / "perfscope" / "cli" / f"{name}_command.py").exists()]
    assert missing == []
