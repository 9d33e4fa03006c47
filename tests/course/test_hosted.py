"""Where others host notebooks: our wheel with their releases; lessons install themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
COLAB = ROOT / "tests" / "hosted" / "colab.txt"
ADDRESS = "https://github.com/someone/d2lpar"
LIMIT_S = 900  # of a cell, on a busy machine

pytestmark = pytest.mark.slow  # it installs 3 GB


def run(*words, **options):
    return subprocess.run([*map(str, words)], check=True, capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment that has what Colab has, pip, and nothing of ours."""
    folder = tmp_path_factory.mktemp("colab")
    uv = sys.executable, "-m", "uv"
    run(*uv, "venv", "--quiet", folder / "venv", "--python", sys.executable)
    python = folder / "venv" / "bin" / "python"
    names = [line.split("==")[0] for line in COLAB.read_text().splitlines() if "==" in line]
    run(*uv, "pip", "install", "--quiet", "--python", python, "--constraint", COLAB, "pip", *names)
    return python


def test_the_wheel_and_the_source_build_and_the_wheel_installs(python, tmp_path):
    uv = sys.executable, "-m", "uv"
    run(*uv, "build", "--quiet", "--out-dir", tmp_path, ROOT)
    assert {path.suffix for path in tmp_path.iterdir()} >= {".whl", ".gz"}
    [wheel] = tmp_path.glob("*.whl")
    place = tmp_path / "there"
    run(*uv, "pip", "install", "--quiet", "--python", python, "--no-deps", "--target", place, wheel)
    program = "import d2lpar as par; print(par.devices(2, verbose=False)[1], par.scoreboard.rows())"
    env = os.environ | {"PYTHONPATH": str(place)}
    assert run(python, "-c", program, env=env, cwd=tmp_path).stdout.startswith("vgpu:1 [Row(")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The course as it is where it has an address, committed."""
    folder = tmp_path_factory.mktemp("published") / "d2lpar"
    run("git", "clone", "--quiet", ROOT, folder)
    project = folder / "pyproject.toml"
    setting = f'[project.urls]\nRepository = "{ADDRESS}"\n'
    project.write_text(project.read_text().replace("[project.urls]\n", setting))
    env = os.environ | {"PYTHONPATH": str(folder)}
    run(sys.executable, folder / "tools" / "addresses.py", env=env)
    mine = "-c", "user.name=d2lpar", "-c", "user.email=d2lpar@example.org"
    run("git", "-C", folder, *mine, "commit", "--quiet", "--all", "--message", "Say the address")
    return folder


@pytest.mark.parametrize("lesson", ["00", "03", "04"])
def test_a_lesson_that_is_opened_by_a_link_installs_the_course_and_runs(
    python, published, tmp_path, lesson
):
    [path] = (published / "notebooks").glob(f"{lesson}_*.ipynb")
    uninstall = "-m", "uv", "pip", "uninstall", "--quiet", "--python", python
    run(sys.executable, *uninstall, "d2lpar")  # what the lesson before this one has installed
    kernel = tmp_path / "kernels" / "colab"
    kernel.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "colab"}))
    (tmp_path / "content").mkdir()
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PIP_CONSTRAINT": str(COLAB),
        "GIT_CONFIG_COUNT": "2",  # our own commits stand for what the address will have
        "GIT_CONFIG_KEY_0": f"url.{published}.insteadOf", "GIT_CONFIG_VALUE_0": ADDRESS,
        "GIT_CONFIG_KEY_1": "safe.directory", "GIT_CONFIG_VALUE_1": "*",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(tmp_path))
        client = NotebookClient(
            nbformat.read(path, as_version=4), timeout=LIMIT_S, kernel_name="colab",
            resources={"metadata": {"path": str(tmp_path / "content")}}, store_widget_state=False,
        )  # fmt: skip
        client.execute(env=env)
    assert (tmp_path / "content" / "d2lpar" / "notebooks" / path.name).exists()
