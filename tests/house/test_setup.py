"""The scripts around the course: setting up, recording notebooks, comparing them."""

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import d2lpar

ROOT = Path(__file__).resolve().parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup_env = load(ROOT / "setup_env.py")
addresses = load(ROOT / "tools" / "addresses.py")
build = load(ROOT / "tools" / "build.py")


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with what set-up reads, as the working directory, and nothing set up."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.setattr(setup_env, "may_have_gpu", lambda: True)
    return folder


# The files


def test_the_lock_pins_all_that_the_course_asks_for():
    asked = re.findall(r"^[a-z0-9-]+", (ROOT / "requirements.in").read_text(), re.MULTILINE)
    pinned = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert "torch" in asked
    assert set(asked) <= set(pinned)


def test_every_requirement_of_the_lock_has_hashes():
    blocks = re.split(r"^(?=\w)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    assert len(blocks) > 100
    assert [block for block in blocks[1:] if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("name", ["requirements.lock", "environment.yml", "Makefile", ".ci/run"])
def test_no_file_names_a_registry_or_a_path_of_one_machine(name):
    assert not re.search(r"https?:|file:|/(home|root|tmp)/", (ROOT / name).read_text())


def test_set_up_is_readable_to_the_pythons_that_it_refuses():
    ast.parse((ROOT / "setup_env.py").read_text(), feature_version=(3, 6))


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_help_lists_what_most_need_and_help_all_every_documented_verb():
    def listed(verb):
        shown = subprocess.run(["make", verb], cwd=ROOT, check=True, capture_output=True, text=True)
        return re.findall(r"^  make ([a-z-]+) ", shown.stdout, re.MULTILINE)

    verbs = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed("help") == ["lab", "test", "notebooks", "lint", "help-all"]
    assert "bench" in verbs
    assert listed("help-all") == verbs


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize(
    "path", [*(ROOT / ".github/workflows").glob("*.yml")], ids=lambda path: path.stem
)
def test_a_workflow_calls_make_so_that_options_of_tests_stand_in_one_place(path):
    commands = re.findall(r"run: (\S.*)", path.read_text())
    assert commands
    for command in commands:
        assert command.startswith("make ")
        subprocess.run([*command.split(), "-n"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


# Setting up


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 15, 0)])
def test_another_python_is_refused_by_name(version, monkeypatch):
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setenv("PYTHON", "chosen")  # so no other is looked for
    with pytest.raises(SystemExit, match=re.escape(".".join(map(str, version)))):
        setup_env.require_python()


def test_a_suitable_python_on_the_path_takes_over(tmp_path, monkeypatch):
    """The first of python3.14 to python3.11 that runs; one that only exists is passed over."""
    for name, body in {"python3.13": "exit 127", "python3.12": "echo 3.12"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    started = []
    monkeypatch.setattr(sys, "version_info", (3, 9, 0))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.setattr(os, "execv", lambda path, arguments: started.append((path, arguments)))
    with pytest.raises(SystemExit):  # the real execv would not have returned
        setup_env.require_python()
    assert started[0] == (str(tmp_path / "python3.12"), [str(tmp_path / "python3.12"), *sys.argv])


def test_a_missing_ensurepip_names_the_package(clone, monkeypatch):
    monkeypatch.setattr(setup_env.importlib.util, "find_spec", {}.get)
    with pytest.raises(SystemExit, match="python3-venv"):
        setup_env.set_up("")
    assert not (clone / ".venv").exists()


def test_a_folder_that_cannot_be_written_to_is_named(clone, monkeypatch):
    monkeypatch.setattr(setup_env.os, "chdir", lambda folder: None)  # we are there
    clone.chmod(0o555)
    user = os.geteuid()
    if user == 0:  # who may write everywhere
        os.seteuid(65534)
    try:
        with pytest.raises(SystemExit, match="a clone cannot be written to"):
            setup_env.main()
    finally:
        os.seteuid(user)
        clone.chmod(0o755)


@pytest.mark.parametrize("what", ["other JSON", "binary", "folder", "wrong kinds"])
@pytest.mark.parametrize("name", ["STAMP", "NEW_STAMP", "LOCKED", "UNFINISHED"])
def test_what_make_has_not_written_is_put_aside_and_told(clone, monkeypatch, capsys, what, name):
    path = Path(getattr(setup_env, name))
    path.parent.mkdir(exist_ok=True)
    contents = {"other JSON": b"[1, 2]", "binary": b"\xff\x00", "wrong kinds": b'{"python": [3]}'}
    if what == "folder":
        path.mkdir()
        (path / "mine").write_text("the user's")
    else:
        path.write_bytes(contents[what])
    monkeypatch.setattr(setup_env, "build", lambda torch, *_, **__: torch)
    monkeypatch.setattr(setup_env, "version_here", lambda: "3.11")
    with setup_env.one_at_a_time():
        setup_env.set_up("")
    asides = list(Path().glob(f"{path.name}.old-*/{path.name}"))
    if what == "folder":
        assert (asides[0] / "mine").read_text() == "the user's"
    elif name == "STAMP":
        assert asides[0].read_bytes() == contents[what]
    assert capsys.readouterr().out.count("is not what make writes") == len(asides)
    assert json.loads(Path(setup_env.STAMP).read_text())["python"]


def test_who_waits_for_another_make_hears_of_whom_and_gives_up(clone, monkeypatch, capsys):
    monkeypatch.setattr(setup_env, "SAY_AFTER_S", 0.3)
    monkeypatch.setattr(setup_env, "LOCK_S", 0.6)
    waited = rf"waited 1 s for .venv.lock \(process {os.getpid()} since"
    with (
        setup_env.one_at_a_time(),
        pytest.raises(OSError, match=waited),
        setup_env.one_at_a_time(),
    ):
        pass
    assert f"It is process {os.getpid()} since" in capsys.readouterr().out


def test_the_stamp_tells_an_environment_of_ours_from_the_users_own(clone):
    assert setup_env.read_stamp() is None
    assert not setup_env.wanted_stamp(None, "")["users_own"]  # there is none
    (clone / ".venv").mkdir()
    (clone / ".venv" / "pyvenv.cfg").touch()
    assert setup_env.wanted_stamp(None, "")["users_own"]
    setup_env.write_stamp({"python": "3.12"})
    assert setup_env.read_stamp() == {"python": "3.12"}
    assert not setup_env.wanted_stamp({"python": "3.12"}, "")["users_own"]
    (clone / ".venv" / "d2lpar.json").write_text("")
    assert setup_env.read_stamp() == {}


def test_only_an_environment_that_cannot_be_completed_is_thrown_away(clone, monkeypatch):
    wanted = setup_env.wanted_stamp(None, "")
    monkeypatch.setattr(setup_env, "version_here", lambda: wanted["python"])
    own = {**wanted, "users_own": True}
    assert not setup_env.is_spoiled(None, own)
    assert not setup_env.is_spoiled({**own, "torch": "cpu"}, own)
    assert not setup_env.is_spoiled({**wanted, "root": "where the clone was"}, wanted)
    assert not setup_env.is_spoiled({**wanted, "inputs": "an earlier lock"}, wanted)
    assert setup_env.is_spoiled({}, wanted)  # of a set-up that kept its mark inside
    assert setup_env.is_spoiled({**wanted, "python": "3.9"}, wanted)
    assert setup_env.is_spoiled({**wanted, "torch": "cpu"}, wanted)
    (clone / setup_env.UNFINISHED).touch()
    assert setup_env.is_spoiled(wanted, wanted)


def test_the_choice_of_torch_outlives_the_call_that_made_it(clone):
    chosen = setup_env.wanted_stamp(None, "cpu")
    assert chosen["torch"] == "cpu"
    assert setup_env.wanted_stamp(chosen, "") == chosen


def test_a_changed_lock_or_place_is_noticed(clone, tmp_path, monkeypatch):
    before = setup_env.wanted_stamp(None, "")
    (clone / "requirements.lock").write_text("torch==3.0\n")
    assert setup_env.wanted_stamp(before, "") != before
    moved = clone.rename(tmp_path / "moved")
    monkeypatch.chdir(moved)
    assert setup_env.wanted_stamp(before, "")["root"] != before["root"]


def test_the_small_torch_comes_without_cuda(clone):
    def names(torch):
        return set(re.findall(r"^([\w-]+)==", setup_env.requirements(torch), re.MULTILINE))

    left_out = names("default") - names("cpu")
    assert {"nvidia-cublas", "triton", "cuda-toolkit"} <= left_out
    assert {"torch", "torchvision", "numpy", "jupyterlab"} <= names("cpu")
    assert all(name.startswith(("nvidia-", "cuda-", "triton")) for name in left_out)


def test_hashes_are_left_out_only_where_another_index_has_other_wheels(clone):
    def unhashed(torch):
        blocks = re.split(r"^(?=\w)", setup_env.requirements(torch), flags=re.MULTILINE)[1:]
        return [block for block in blocks if "--hash" not in block]

    torch, torchvision = unhashed("cpu")
    assert re.fullmatch(r"torch==[\d.]+\n", torch)
    assert re.fullmatch(r"torchvision==[\d.]+\n", torchvision)
    assert unhashed("default") == []


@pytest.mark.parametrize(
    ("driver", "answers", "asked", "built"),
    [
        (False, True, "", "cpu"),
        (False, False, "", "default"),
        (True, True, "", "default"),
        (True, True, "cpu", "cpu"),
        (False, True, "default", "default"),
        (False, False, "cpu", None),
    ],
)
def test_torch_has_cuda_where_it_is_of_use_or_nothing_else_can_be_had(
    clone, monkeypatch, driver, answers, asked, built
):
    """Without a driver the small build, but where its index cannot be reached; or what is asked."""
    installed = []

    def in_venv(module, *words, **options):
        small = "--torch-backend" in words
        if small and not answers:
            raise subprocess.CalledProcessError(2, module)
        if "--dry-run" not in words and "torch==" in options.get("input", ""):
            installed.append("cpu" if small else "default")

    (clone / setup_env.VENV / "bin").mkdir(parents=True)
    (clone / setup_env.PYTHON).touch()
    monkeypatch.setattr(setup_env, "in_venv", in_venv)
    monkeypatch.setattr(setup_env, "has", lambda module: module == "pip")
    monkeypatch.setattr(setup_env, "may_have_gpu", lambda: driver)
    choice = setup_env.torch_choice(None, asked)
    if built is None:  # what is asked for is never replaced by something else
        with pytest.raises(subprocess.CalledProcessError):
            setup_env.build(choice, False, may_choose=not asked)
        return
    assert setup_env.build(choice, False, may_choose=not asked) == built
    assert installed == [built]


def test_a_choice_that_could_not_be_had_is_remembered(clone, monkeypatch):
    monkeypatch.setattr(setup_env, "may_have_gpu", lambda: False)
    monkeypatch.setattr(setup_env, "build", lambda *_, **__: "default")
    monkeypatch.setattr(setup_env, "version_here", lambda: "3.11")
    setup_env.set_up("")
    done = setup_env.read_stamp()
    assert done["torch"] == "default"
    assert setup_env.is_finished(done, setup_env.wanted_stamp(done, ""))


def test_who_waits_for_downloads_hears_how_far_they_are(clone, monkeypatch, capsys):
    monkeypatch.setattr(setup_env, "SAY_EVERY_S", 0.05)
    received = iter(range(0, 10**9, 10**7))
    monkeypatch.setattr(setup_env, "received_bytes", lambda: next(received))
    setup_env.run(sys.executable, "-c", "import time; time.sleep(0.3)")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  0 s, 10 MB received"
    assert len(lines) > 1


def test_a_torch_that_was_there_is_kept(clone, monkeypatch):
    monkeypatch.setattr(setup_env, "has", {"torch"}.__contains__)
    assert setup_env.torch_choice(None, "cpu") == "kept"
    assert setup_env.torch_choice({"torch": "kept"}, "cpu") == "kept"
    monkeypatch.setattr(setup_env, "may_have_gpu", lambda: False)
    assert setup_env.torch_choice(None, "") == "default"  # not the small one in its place
    assert setup_env.torch_choice({"torch": "default"}, "cpu") == "cpu"  # ours, so replaced
    assert not re.search(r"^torch", setup_env.requirements("kept"), re.MULTILINE)


def test_the_second_of_two_calls_waits_for_the_first(clone, capsys):
    pytest.importorskip("fcntl", reason="make is not for Windows")
    entered = threading.Event()

    def second():
        with setup_env.one_at_a_time():
            entered.set()

    with setup_env.one_at_a_time():
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.2)
    assert entered.wait(30)
    thread.join()
    assert "waiting" in capsys.readouterr().out


# Recording notebooks


def save(path, *cells):
    nbformat.write(new_notebook(cells=list(cells)), path)
    return path


def tagged(cell, *tags):
    cell.metadata.tags = list(tags)
    return cell


def test_recording_stores_outputs_of_the_fixed_world_and_says_what_changed(tmp_path, capsys):
    path = save(
        tmp_path / "01_a.ipynb",
        new_code_cell("import os, ipywidgets\nos.environ['D2LPAR_DATA']"),
        new_code_cell("  "),
        new_code_cell("ipywidgets.IntSlider(value=3)"),
        tagged(new_code_cell("raise ValueError('expected')"), "raises-exception"),
    )
    assert build.main([str(path)]) == 0
    assert "(nothing) -> 'synthetic'" in capsys.readouterr().out

    notebook = build.read(path)
    world, empty, widget, error = notebook.cells
    assert world.outputs[0].data["text/plain"] == "'synthetic'"
    assert [cell.execution_count for cell in notebook.cells] == [1, None, 2, 3]
    assert widget.outputs[0].data == {"text/plain": "IntSlider(value=3)"}
    assert error.outputs[0].traceback == ["ValueError: expected"]
    assert notebook.metadata == build.METADATA
    assert empty.outputs == []

    recorded = path.read_bytes()
    assert build.main(["--check", str(path)]) == 0
    assert build.main([str(path)]) == 0
    assert "no change" in capsys.readouterr().out
    assert path.read_bytes() == recorded


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (new_code_cell("1 / 0"), r"In \[2\] failed[\s\S]*ZeroDivisionError"),
        (new_code_cell("import warnings\nwarnings.warn('old')"), "In .2. writes to stderr"),
        (tagged(new_code_cell("2"), "raises-exception"), "In .2. is tagged `raises-exception`"),
        (new_code_cell("3;"), "In .2. ends in `;`"),
        (new_code_cell("print('0123456789\\n' * 50_000)"), "kB is more than 400 kB"),
    ],
)
def test_a_notebook_that_fails_stays_as_it_was(cell, reason, tmp_path, capsys):
    path = save(tmp_path / "01_a.ipynb", new_code_cell("1"), cell)
    before = path.read_bytes()
    assert build.main([str(path)]) == 1
    assert re.search(reason, capsys.readouterr().err)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["01_a.ipynb"]


def test_links_follow_the_files_on_disk(tmp_path):
    names = ["00_start", "01_hardware", "03_multi"]
    for name in names:
        heading = new_markdown_cell(f"# About {name[3:]}\n\nText.")
        save(tmp_path / f"{name}.ipynb", heading, tagged(new_markdown_cell("old"), "navigation"))
    (tmp_path / "deeper").mkdir()
    save(
        tmp_path / "deeper/03_multi.ipynb", heading, tagged(new_markdown_cell("old"), "navigation")
    )
    (tmp_path / "museum").mkdir()
    for number in (1, 2):
        room = new_markdown_cell(f"# Room {number}")
        links = tagged(new_markdown_cell("old"), "navigation")
        save(tmp_path / f"museum/0{number}_bug.ipynb", room, links)
    paths = build.course(tmp_path)
    build.relink(tmp_path)
    links = [build.read(path).cells[-1].source for path in paths]
    assert [line.partition(" | Open in ")[0] for line in links] == [
        "[About hardware →](01_hardware.ipynb)",
        "[Contents](00_start.ipynb) | [About multi →](03_multi.ipynb)",
        "[← About hardware](01_hardware.ipynb) | [Contents](00_start.ipynb)",
        "[← About multi](../03_multi.ipynb) | [Contents](../00_start.ipynb)",
        "[Museum](README.md) | [Contents](../00_start.ipynb) | [Room 2 →](02_bug.ipynb)",
        "[← Room 1](01_bug.ipynb) | [Museum](README.md) | [Contents](../00_start.ipynb)",
    ]


ADDRESS = "https://github.com/someone/course"


def test_the_first_links_of_a_notebook_open_it_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "repository", lambda: ADDRESS)
    folder = tmp_path / "notebooks"
    (folder / "deeper").mkdir(parents=True)
    save(folder / "00_start.ipynb", new_markdown_cell("# Start"))
    cells = [tagged(new_markdown_cell("old"), "navigation") for _ in range(2)]
    path = save(folder / "deeper" / "03_multi.ipynb", *cells)
    build.relink(folder)
    first, last = (cell.source for cell in build.read(path).cells)
    page = f"{ADDRESS.removeprefix('https://')}/blob/main/notebooks/deeper/03_multi.ipynb"
    place = page.removeprefix("github.com")
    assert f"(https://colab.research.google.com/github{place})" in first
    assert f"(https://kaggle.com/kernels/welcome?src=https://{page})" in first
    assert "Open in" not in last


def test_a_notebook_installs_the_course_where_it_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "repository", lambda: ADDRESS)
    folder = tmp_path / "notebooks"
    (folder / "deeper").mkdir(parents=True)
    links = tagged(new_markdown_cell("old"), "navigation")
    save(folder / "00_start.ipynb", links, new_markdown_cell("# Start"), new_code_cell("1"))
    save(folder / "deeper" / "00_start.ipynb", new_markdown_cell("# S"), new_code_cell("1"), links)
    for _ in range(2):  # the second time it is there
        build.relink(folder)
    near, far = (build.read(path) for path in build.course(folder))
    assert [cell.cell_type for cell in near.cells] == ["markdown", "code", "markdown", "code"]
    assert [cell.cell_type for cell in far.cells] == ["code", "markdown", "code", "markdown"]
    assert near.cells[1].metadata.tags == ["install"]
    assert "%cd course/notebooks\n" in near.cells[1].source
    assert '"..[lessons]"' in near.cells[1].source
    assert "%cd course/notebooks/deeper\n" in far.cells[0].source
    assert '"../..[lessons]"' in far.cells[0].source


def test_without_an_address_a_notebook_has_no_link_to_one_and_says_what_is_missing(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(build, "repository", lambda: None)
    links = tagged(new_markdown_cell("old"), "navigation")
    path = save(tmp_path / "00_start.ipynb", links, new_code_cell("1"))
    build.relink(tmp_path)
    first, install, _ = build.read(path).cells
    assert "http" not in first.source + install.source
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="make lab"):
        exec(install.source)


@pytest.mark.parametrize("name", addresses.MARKED)
def test_pages_have_the_address_of_the_project_and_none_without_one(name):
    path = ROOT / name
    text = path.read_text(encoding="utf-8")
    assert addresses.filled(text, path.suffix, addresses.repository()) == text
    with_one = addresses.filled(text, path.suffix, ADDRESS)
    without = addresses.filled(with_one, path.suffix, None)
    assert ADDRESS.removeprefix("https://") in unquote(with_one)
    assert ADDRESS.removeprefix("https://") not in unquote(without)
    assert addresses.filled(without, path.suffix, ADDRESS) == with_one


def test_badges_lead_to_the_first_lesson(tmp_path):
    badges = addresses.texts(ADDRESS)["badges"]
    for page in (
        "https://codespaces.new/someone/course",
        "https://colab.research.google.com/github/someone/course/blob/main/notebooks/00_start_here.ipynb",
        f"https://kaggle.com/kernels/welcome?src={ADDRESS}/blob/main/notebooks/00_start_here.ipynb",
    ):
        assert f"({page})" in badges
    assert (ROOT / addresses.START).exists()


def test_the_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert d2lpar.__version__ == version
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_links_replace_no_text(tmp_path):
    cell = tagged(new_markdown_cell("# Heading\n\nText."), "navigation")
    path = save(tmp_path / "00_start.ipynb", cell)
    with pytest.raises(build.BuildError, match=r"00_start\.ipynb: cell 1"):
        build.relink(path.parent)


def test_changes_are_compared_cell_by_cell():
    def notebook(*texts):
        cells = [new_code_cell("run()", id=name) for name in "abc"]
        for cell, text in zip(cells, texts, strict=True):
            cell.outputs = [new_output("stream", text=text)]
        return new_notebook(cells=[*cells[:2], tagged(cells[2], "nbval-ignore-output")])

    old = notebook("1\n2.8 s\n3\n", "same", "measured 1")
    new = notebook("1\n2.9 s\n3\n4\n", "same", "measured 2")
    assert build.changes(old, new) == [(1, ["2.8 s -> 2.9 s", "(nothing) -> 4"])]


def test_normal_form_drops_what_editors_leave():
    cell = new_code_cell("1", metadata={"execution": {}, "scrolled": True, "tags": ["kept"]})
    notebook = new_notebook(cells=[cell], metadata={"widgets": {"state": {}}})
    build.normalise(notebook)
    assert notebook.cells[0].metadata == {"tags": ["kept"]}
    assert notebook.metadata == build.METADATA


# Comparing notebooks


def test_nbval_compares_in_the_recorded_world_and_refuses_what_was_never_run(tmp_path):
    pytest.importorskip("nbval")
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    ask = "import os\nos.environ['D2LPAR_DATA']"
    for name, answer in {"same": "'synthetic'", "other": "'downloaded'"}.items():
        result = new_output("execute_result", {"text/plain": answer}, execution_count=1)
        save(tmp_path / f"{name}.ipynb", new_code_cell(ask, execution_count=1, outputs=[result]))
    save(tmp_path / "never.ipynb", new_code_cell(ask))

    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-p", "no:xdist"]
    run = subprocess.run([*command, "."], cwd=tmp_path, capture_output=True, text=True)
    assert re.search("FAILED other.ipynb", run.stdout)
    assert re.search("ERROR never.ipynb.*no recorded run", run.stdout)
    assert "1 failed, 1 passed, 1 error" in run.stdout


def test_kernels_of_the_course_wait_without_spinning(clone, monkeypatch):
    """IPython runs the file before a kernel's first cell, whoever started it."""
    from IPython.core.application import ENV_CONFIG_DIRS
    from traitlets.config import Config

    assert str(Path(sys.prefix, *Path(setup_env.KERNEL_CONFIG).parts[1:-1])) in ENV_CONFIG_DIRS
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    setup_env.configure_kernels()
    code = (clone / setup_env.KERNEL_CONFIG).read_text()
    exec(code, {"c": Config()})
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    exec(code, {"c": Config()})
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_a_users_own_configuration_of_kernels_stays(clone):
    config = clone / setup_env.KERNEL_CONFIG
    config.parent.mkdir(parents=True)
    config.write_text("c.mine = True\n")
    setup_env.configure_kernels()
    assert config.read_text() == "c.mine = True\n"
