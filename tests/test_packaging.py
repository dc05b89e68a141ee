"""Installation with and without a compiler, from this very checkout."""

from __future__ import annotations

import importlib.machinery
import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import netless
from support import MUST_ISOLATE, PATIENCE, build_launcher, need

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.isolated


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, since a build leaves files."""
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the tests are not in a checkout")
    copy = tmp_path_factory.mktemp("source") / "netless"
    ignore = shutil.ignore_patterns("*.so", "build", "*.egg-info", ".git", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignore, symlinks=True)
    return copy


BUILD_TOOLS = ("setuptools", "_distutils_hack", "pkg_resources", "cffi", "pycparser")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with this one's setuptools and cffi, and nothing else of it."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for outer in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for name in BUILD_TOOLS:
            for found in (*outer.glob(name), *outer.glob(f"{name}-*.dist-info")):
                replace(site / found.name, found)
        for found in outer.glob("_cffi_backend*"):
            replace(site / found.name, found)
    return folder


def replace(target: Path, source: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    if not target.exists():
        target.symlink_to(source)


def install(environment: Path, source: Path, **variables: str) -> subprocess.CompletedProcess:
    """``pip install`` where no compiler is on the path."""
    command = [environment / "bin" / "python", "-m", "pip", "install", "--no-build-isolation"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NETLESS", "CC", "PYTHON"))}
    clean["PATH"] = str(environment / "bin")
    return subprocess.run(
        [*command, "--no-deps", "--no-index", "--force-reinstall", str(source)],
        env={**clean, **variables},
        capture_output=True,
        text=True,
    )


def has_build_tools(environment: Path) -> bool:
    check = "import setuptools, cffi; assert int(setuptools.__version__.split('.')[0]) >= 77"
    return subprocess.run([environment / "bin" / "python", "-c", check]).returncode == 0


@pytest.fixture(scope="module")
def without_compiler(environment: Path, source: Path) -> Path:
    if not has_build_tools(environment):
        assert not MUST_ISOLATE, "setuptools 77 and cffi are not installed beside the tests"
        pytest.skip("setuptools 77 and cffi are not installed beside the tests")
    done = install(environment, source)
    assert done.returncode == 0, done.stderr + done.stdout
    return environment


def test_installs_without_a_compiler_and_isolates(without_compiler: Path) -> None:
    source = (
        "import netless, os, subprocess;"
        "import netless._popen as p; assert not p._native.is_available();"
        "link = ['readlink', '/proc/self/ns/net'];"
        "assert netless.check_output(link) != subprocess.check_output(link);"
        "print(netless.probe().mechanism)"
    )
    python = without_compiler / "bin" / "python"
    done = subprocess.run([python, "-c", source], capture_output=True, text=True, cwd="/")
    assert done.stdout == "wrapper\n", done.stderr


def test_command_line_works_without_a_compiler(without_compiler: Path) -> None:
    netless = without_compiler / "bin" / "netless"
    run = [netless, "run", "--"]
    inside = subprocess.check_output([*run, "readlink", "/proc/self/ns/net"], text=True)
    assert inside.strip() != os.readlink("/proc/self/ns/net")
    for command, status in (
        (["/bin/sh", "-c", "exit 7"], 7),
        (["/no/such/program"], 127),
        (["/etc/passwd"], 126),
    ):
        done = subprocess.run([*run, *command], capture_output=True, text=True)
        assert done.returncode == status, done.stderr
    told = subprocess.run([netless, "doctor"], capture_output=True, text=True)
    assert told.returncode == 0
    assert "ready (wrapper)" in told.stdout
    assert "extension: no" in told.stdout


def test_required_extension_makes_a_missing_compiler_an_error(
    environment: Path, source: Path
) -> None:
    assert install(environment, source, NETLESS_REQUIRE_NATIVE="1").returncode != 0


# ---- loud, where the extension is missing ----


MISSING = "the native extension of netless is missing"


def run_python(
    environment: Path, source: str, *options: str, **variables: str
) -> subprocess.CompletedProcess:
    file = environment / "script.py"
    file.write_text(source)
    return subprocess.run(
        [environment / "bin" / "python", *options, file],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, **variables},
        timeout=PATIENCE,
    )


def test_first_launch_by_the_wrapper_warns_once(without_compiler: Path) -> None:
    source = "import netless\nnetless.require()\nnetless.run(['true'])\nnetless.call('true')\n"
    done = run_python(without_compiler, source)
    assert done.returncode == 0
    told = [line for line in done.stderr.splitlines() if MISSING in line]
    assert len(told) == 1, done.stderr
    # At the line of the program, not inside netless.
    assert told[0].startswith(f"{without_compiler}/script.py:3: RuntimeWarning: {MISSING}")
    assert 'Isolation(mechanism="wrapper")' in told[0]


def test_as_an_error_the_warning_runs_nothing(without_compiler: Path, marker) -> None:
    source = f"import netless\nfor _ in 'ab':\n  try: netless.run({list(marker.command)})\n"
    source += "  except RuntimeWarning as error: print(error)\n"
    done = run_python(without_compiler, source, "-W", "error")
    assert done.stdout.count(MISSING) == 2, done.stderr
    assert not marker.written()
    assert run_python(without_compiler, source).returncode == 0  # the control
    assert marker.written()


def test_who_asks_for_the_wrapper_is_not_warned(without_compiler: Path) -> None:
    source = "import netless\nwrapper = netless.Isolation(mechanism='wrapper')\n"
    source += "print(netless.check_output(['id', '-u'], isolation=wrapper))"
    done = run_python(without_compiler, source, "-W", "error")
    assert (done.returncode, done.stderr) == (0, "")


def test_command_line_says_that_the_extension_is_missing(without_compiler: Path) -> None:
    netless = without_compiler / "bin" / "netless"
    for options, count in ((["--mechanism", "wrapper"], 0), ([], 1)):
        done = subprocess.run(
            [netless, "run", *options, "--", "echo", "x"], capture_output=True, text=True
        )
        assert done.stdout == "x\n"
        assert done.stderr.count(f"netless: warning: {MISSING}") == count, done.stderr
        assert len(done.stderr.splitlines()) == count
    told = subprocess.run([netless, "doctor"], capture_output=True, text=True)
    assert "warning: the native extension is missing" in told.stdout
    assert told.stderr == ""


# ---- what was built before is never what is installed ----


def build(
    environment: Path, source: Path, *command: str | Path, **variables: str
) -> subprocess.CompletedProcess:
    """With the compiler of this machine."""
    need("gcc")
    assert has_build_tools(environment)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NETLESS", "CC", "PYTHON"))}
    clean["PATH"] = f"{environment / 'bin'}:/usr/bin:/bin"
    return subprocess.run(
        [environment / "bin" / "python", *command],
        env={**clean, **variables},
        cwd=source,
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE,
    )


PIP = ("-m", "pip", "-v", "--disable-pip-version-check")
OFFLINE = ("--no-build-isolation", "--no-deps", "--no-index")
IN_PLACE = ("setup.py", "build_ext", "--inplace")


def in_wheel(environment: Path, source: Path, folder: Path) -> tuple[set[str], str]:
    """The names of the files of a wheel that is built now, and what was said."""
    done = build(environment, source, *PIP, "wheel", *OFFLINE, "-w", folder, source)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("netless-*.whl")
    names = {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    wheel.unlink()
    return names, done.stdout + done.stderr


def break_extension(source: Path) -> None:
    file = source / "csrc" / "descriptors.c"
    file.write_text(f"#error broken\n{file.read_text()}")


@pytest.fixture
def tree(source: Path, tmp_path: Path) -> Path:
    """A copy that may be broken."""
    return Path(shutil.copytree(source, tmp_path / "tree", symlinks=True))


EXTENSION = "_spawn.abi3.so"


@pytest.mark.build
def test_a_failed_build_ships_nothing_of_the_one_before(
    environment: Path, tree: Path, tmp_path: Path
) -> None:
    if not has_extension_suffix(EXTENSION):
        pytest.skip("this interpreter has no stable ABI")
    ghost = tree / "src" / "netless" / "_ghost.py"
    ghost.write_text("")
    names, said = in_wheel(environment, tree, tmp_path)
    assert {EXTENSION, "netless-exec", "_ghost.py", "_popen.py"} <= names  # the control
    assert "WARNING" not in said
    ghost.unlink()
    break_extension(tree)
    for left in ("bdist.*/wheel/netless", "scripts-*", "lib.*"):  # of a build that was interrupted
        for parent in ("bdist.linux-x86_64/wheel/netless", "scripts-3.11", "lib"):
            (tree / "build" / parent).mkdir(parents=True, exist_ok=True)
        for folder in (tree / "build").glob(left):
            (folder / "_interrupted.py").write_text("")
    names, said = in_wheel(environment, tree, tmp_path)
    assert "_popen.py" in names
    assert not names & {EXTENSION, "netless-exec", "_ghost.py", "_interrupted.py"}
    # Last, and not between a compiler's lines.
    end = said[said.rindex("building extension") :] if "building extension" in said else ""
    assert "the native extension could not be built" in end
    assert "netless-exec could not be built" in end
    assert "NETLESS_REQUIRE_NATIVE=1" in end


def has_extension_suffix(name: str) -> bool:
    return any(name == f"_spawn{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)


def extensions(tree: Path) -> list[str]:
    return sorted(path.name for path in (tree / "src" / "netless").glob("_spawn*.so"))


@pytest.mark.build
@pytest.mark.parametrize("required", ["0", "1"])
@pytest.mark.parametrize("way", ["setup.py", "pip install -e"])
def test_a_failed_build_in_place_leaves_no_old_extension(
    way: str, required: str, environment: Path, tree: Path
) -> None:
    editable = (
        *PIP,
        "install",
        *OFFLINE,
        "--force-reinstall",
        "--target",
        tree / "site",
        "-e",
        tree,
    )
    command = IN_PLACE if way == "setup.py" else editable
    done = build(environment, tree, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    built = extensions(tree)
    assert len(built) == 1  # the control
    # Of an older build: the interpreter would rather load this one.
    older = f"_spawn{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    (tree / "src" / "netless" / older).write_bytes(b"")
    other = tree / "src" / "netless" / "_spawn.cpython-399-x86_64-linux-gnu.so"
    other.write_bytes(b"")  # another interpreter's
    break_extension(tree)
    done = build(environment, tree, *command, NETLESS_REQUIRE_NATIVE=required)
    assert (done.returncode == 0) == (required == "0"), done.stdout + done.stderr
    assert extensions(tree) == [other.name]
    if required == "0":
        assert "the native extension could not be built" in done.stdout + done.stderr


@pytest.mark.build
def test_a_build_in_place_is_never_taken_for_up_to_date(environment: Path, tree: Path) -> None:
    """Time stamps do not tell of another version or other switches."""
    assert build(environment, tree, *IN_PLACE).returncode == 0
    file = tree / "src" / "netless" / "__init__.py"
    file.write_text(file.read_text().replace(netless.__version__, "99.0"))
    code = "import sys; sys.path.insert(0, 'src'); import netless; print(netless._native.MECHANISM)"
    done = build(environment, tree, "-c", code)
    assert "was built as version" in done.stderr  # the control
    assert build(environment, tree, *IN_PLACE).returncode == 0
    done = build(environment, tree, "-c", code)
    assert done.stdout.strip(), done.stderr


@pytest.mark.build
def test_a_folder_that_the_caller_chose_is_not_emptied(environment: Path, tree: Path) -> None:
    """Only what is ours is taken out of it."""
    chosen = tree / "chosen"
    for name in ("netless/_ghost.py", "theirs/file.py", "theirs.py"):
        (chosen / name).parent.mkdir(parents=True, exist_ok=True)
        (chosen / name).write_text("")
    done = build(environment, tree, "setup.py", "build", "--build-lib", chosen)
    assert done.returncode == 0, done.stderr
    found = {str(path.relative_to(chosen)) for path in chosen.rglob("*.py")}
    assert {"theirs/file.py", "theirs.py", "netless/_popen.py"} <= found
    assert "netless/_ghost.py" not in found


@pytest.mark.build
def test_the_launcher_has_the_interpreters_word_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 32-bit interpreter on a 64-bit kernel, whose machine is x86_64 all the same."""
    need("gcc")
    if platform.machine() != "x86_64" or sys.maxsize < 2**32:
        pytest.skip("this machine runs no 32-bit x86 programs beside its own")
    module = build_launcher()
    for bits, elf_class, machine in ((64, 2, 62), (32, 1, 3)):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "maxsize", 2 ** (bits - 1) - 1)
            compilers = list(module._compilers())
        assert compilers
        for number, compiler in enumerate(compilers):  # zig too, where it is installed
            output = tmp_path / f"netless-exec-{bits}-{number}"
            module.link(output, compiler)
            header = output.read_bytes()[:20]
            assert (header[4], header[18]) == (elf_class, machine), compiler
            # Itself, since a program of the other word size may not run under its filter.
            told = subprocess.check_output([output, "--", output, "--version"], timeout=PATIENCE)
            assert told.startswith(b"netless-exec ")


# ---- one version ----


def test_extension_of_another_version_is_refused(tmp_path: Path) -> None:
    """Neither used nor passed over for the wrapper."""
    copy = tmp_path / "netless"
    shutil.copytree(
        Path(netless.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__")
    )
    file = copy / "__init__.py"
    text = file.read_text()
    file.write_text(text.replace(f'__version__ = "{netless.__version__}"', '__version__ = "99.0"'))
    command = [sys.executable, "-c", "import netless; print(netless.__version__)"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    if not netless._native.is_available():  # the control: nothing to refuse
        assert done.stdout == "99.0\n"
        return
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("ImportError: the extension netless._spawn was built as version")
    assert f" {netless.__version__}, but netless is 99.0:" in message
    assert "pip install" in message


@pytest.mark.parametrize("disabled", [0, 1])
def test_free_threaded_builds_have_no_stable_abi(
    disabled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.14t cannot load abi3: its wheel must not claim to be one."""
    setup = ROOT / "setup.py"
    if not setup.exists():
        pytest.skip("the tests are not in a checkout")
    setuptools = pytest.importorskip("setuptools")
    told: dict[str, object] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **keywords: told.update(keywords))
    found = sysconfig.get_config_var
    monkeypatch.setattr(
        sysconfig,
        "get_config_var",
        lambda name: disabled if name == "Py_GIL_DISABLED" else found(name),
    )
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(setup))
    has_tag = told["options"] == {"bdist_wheel": {"py_limited_api": "cp310"}}
    assert has_tag == (not disabled and sys.implementation.name == "cpython")
    assert has_tag or not told["options"]
