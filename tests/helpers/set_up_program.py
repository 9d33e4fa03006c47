"""Runs set-up under a stand-in for the user's Python, and ends it before its n-th step.

Called with the clone, the stand-in, the number of the step (0: none), and the signal that ends it:
SIGKILL as `kill -9` does, another as Ctrl-C does. A step changes a file or starts a command.
"""

import importlib.util
import os
import signal
import sys

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "subprocess.Popen"}


def is_step(event, arguments):
    return event in CHANGES or (event == "open" and set(str(arguments[1])) & set("wax+"))


def end_before(step, how):
    steps = 0

    def hook(event, arguments):
        nonlocal steps
        if is_step(event, arguments):
            steps += 1
            if steps == step and how == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            elif steps == step:
                raise KeyboardInterrupt

    sys.addaudithook(hook)


def main(clone, python, step, how):
    spec = importlib.util.spec_from_file_location("setup_env", os.path.join(clone, "setup_env.py"))
    setup_env = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup_env)
    sys.executable = sys._base_executable = python
    end_before(int(step), how)
    setup_env.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
