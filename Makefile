# Needs python3 (3.11 or newer) and make, on Linux or macOS; on Windows see environment.yml.
# All paths are relative: make splits an absolute one at its spaces.

python := .venv/bin/python
course := $(python) -m d2lpar course
# One more than the cores of a small machine: tests also wait, for kernels, ranks and downloads.
workers := 3
places := notebooks notebooks/deeper notebooks/museum
all-notebooks := $(sort $(foreach place,$(places),$(wildcard $(place)/[0-9]*.ipynb)))
# `make test` leaves out the deeper halves that take 30 s and more on two quiet cores.
long := $(foreach number,01 04 05 06 07 08,$(wildcard notebooks/deeper/$(number)_*.ipynb))
notebooks := $(filter-out $(long),$(all-notebooks))

# By another name, as `make -n` carries out lines that say $(MAKE), and all tests with them.
again = $(MAKE) --no-print-directory
# With `exec` SIGTERM reaches it: make tells its child of it, and a shell tells nobody.
# Of these four, $(1) is the Python that runs them: $(call unit-tests,python).
attempt = exec $(1) tests/helpers/attempts.py
# A file's tests go to one worker: what they share is made once. The files' order is conftest.py's.
pytest = $(1) -m pytest -n $(workers) --dist loadfile --no-loadscope-reorder
# Importing what nbval needs takes seconds.
unit-tests = $(pytest) -p no:nbval
notebook-tests = $(pytest) --nbval --nbval-current-env

translations = PYTHONPATH=tools $(python) -m translations
languages = $(notdir $(patsubst %/course.po,%,$(wildcard notebooks/*/course.po)))

.DEFAULT_GOAL := help
.PHONY: help help-all setup lab update test test-all test-active test-browser test-compat opinfo torch-tests validate notebooks record lint lint-types lint-imports lint-style format docs dist bench gpu lock clean site site-figures site-plans present slides addresses translations

# The verbs that match $(1), each with what it does.
list = @sed -nE 's/^($(1)):[^\#]*\#\# (.*)/  make \1	\2/p' Makefile | expand -t 22

help:  ## The verbs that most people need
	$(call list,lab|test|notebooks|lint)
	@echo "  make help-all       All other verbs"

help-all:  ## This list
	$(call list,[a-z-]+)
	@echo "TORCH=cpu or TORCH=default chooses the build of torch; PYTHON=... which python3 to use."

setup:
	@$(or $(PYTHON),python3) setup_env.py

lab: setup  ## Open your copy of the course in JupyterLab; LESSON=04 opens that lesson, COURSE_LANG=zh in Chinese
	@$(course) $(if $(COURSE_LANG),lang $(COURSE_LANG),update) --quiet
	@for notebook in my/$(or $(LESSON),00)_*.ipynb my/0$(LESSON)_*.ipynb; do \
		[ ! -e "$$notebook" ] || break; \
	done; \
	if [ ! -e "$$notebook" ]; then \
		echo "No lesson $(LESSON) among:" $(notebooks); exit 1; \
	fi; \
	[ "$$(id -u)" != 0 ] || set -- "$$@" --allow-root; \
	[ -n "$$DISPLAY$$WAYLAND_DISPLAY" ] || [ "$$(uname)" = Darwin ] || set -- "$$@" --no-browser; \
	export JUPYTER_CONFIG_PATH="$$PWD/.jupyter:$$JUPYTER_CONFIG_PATH"; \
	exec $(python) -m jupyter lab --log-level=ERROR --ServerApp.root_dir=. \
		--LabApp.default_url="/lab/tree/$$notebook" "$$@"

present: setup  ## Open your copy of a lesson as slides whose cells run; LESSON=04
	@rm -rf build/present && mkdir -p build && cp -R .jupyter/present build/present
	@$(course) update --quiet
	@$(course) notes "$(or $(LESSON),00)"
	@JUPYTERLAB_SETTINGS_DIR="$$PWD/build/present/settings" \
		JUPYTERLAB_WORKSPACES_DIR="$$PWD/build/present/workspaces" \
		$(MAKE) --no-print-directory lab

update: setup  ## Bring new lessons into my/, and keep what you changed
	@if git rev-parse --quiet --verify '@{upstream}' >/dev/null 2>&1; then \
		git pull --ff-only && $(MAKE) --no-print-directory setup; \
	else \
		echo "This copy follows no repository: new lessons come only from notebooks/ here."; \
	fi
	@$(course) update

test: setup  ## Rules, unit tests, then every notebook against its stored outputs
	@$(call attempt,$(python)) --beside lint "$(again) lint" \
		"unit tests" "$(call unit-tests,$(python))" \
		notebooks "$(call notebook-tests,$(python)) $(notebooks)"

test-all: setup  ## The same with all that takes long: browser, PyTorch's operators, other torches
	@$(call attempt,$(python)) --beside lint "$(again) lint" \
		"unit tests" "$(call unit-tests,$(python)) -m ''" \
		notebooks "$(call notebook-tests,$(python)) $(all-notebooks)" \
		$(foreach language,$(languages),"notebooks in $(language)" "$(translations) record $(language) --check") \
		operators "$(again) opinfo" \
		"other torches" "$(again) test-compat"

test-active:  ## Unit tests and notebooks in the Python that is active, such as that of conda
	@$(call attempt,python) "unit tests" "$(call unit-tests,python)" \
		notebooks "$(call notebook-tests,python) $(notebooks)"

test-browser: setup  ## Lessons and site in headless Chromium; LESSON=04 only that lesson
	@$(python) -m pytest -m "" tests/lessons/test_browser.py \
		$(if $(LESSON),-k "$(LESSON)_",tests/timeline/test_timeline_page.py tests/course/test_site_*.py)

test-compat: test-torch-2.10 test-torch-2.13  ## Unit tests with older builds of torch, on Python 3.11

test-torch-%: build/torch-%/ready
	$(call unit-tests,build/torch-$*/bin/python)

.PRECIOUS: build/torch-%/ready
# pip, not uv: where an administrator offers a CPU-only wheel, it is pip that was told.
build/torch-%/ready: pyproject.toml | setup
	$(python) -m uv venv --quiet --clear --seed --python 3.11 build/torch-$*
	build/torch-$*/bin/python -m pip install --quiet "torch==$*.*" --editable ".[test]"
	@touch $@

opinfo: setup  ## PyTorch's operator database against the virtual GPU: rate, and what fails
	@$(python) tests/judges/opinfo.py

torch-tests: setup  ## PyTorch's own tests on virtual GPUs: rate, and what fails; PYTORCH=checkout for more
	@PYTHONPATH=tests/judges $(python) -m torch_judge $(if $(PYTORCH),--pytorch "$(PYTORCH)") \
		$(if $(ONLY),"$(ONLY)") $(if $(REPORT),--report "$(REPORT)")

validate: setup  ## Predictions beside published figures, which lessons quote; ONLY=train for some
	@$(python) -m d2lpar.validation $(if $(ONLY),--only "$(ONLY)",--record)

notebooks: setup  ## Record all notebooks anew, and list what changed
	@$(python) tools/build.py
	@$(again) translations

translations: setup  ## Notebooks in other languages, from the catalogues beside them
	@for language in $(languages); do $(translations) write $$language || exit 1; done

%-todo: setup  ## zh-todo: what of the course has no translation into Chinese, or an old one
	@$(translations) todo $*

%-record: setup  ## zh-record: run the notebooks in Chinese, and store what they show; LESSON=04 for one
	@$(translations) record $* $(LESSON)

record: setup  ## Learning curves anew, at full size; DATA=folder with Fashion-MNIST for real ones
	@$(python) tools/lenet_curves.py $(if $(DATA),--data "$(DATA)")

lint: setup  ## Check style, format, types, and that imports point down
	@$(MAKE) --no-print-directory --jobs 2 --keep-going lint-types lint-imports lint-style

lint-types:
	@$(python) -m mypy

lint-imports:
	@.venv/bin/lint-imports --no-cache --no-logo

lint-style:
	@$(python) -m ruff check
	@$(python) -m ruff format --check

format: setup  ## Correct what lint can correct
	@$(python) -m ruff check --fix-only
	@$(python) -m ruff format

slides: setup  ## Every lesson as slides in one HTML file each, in build/slides; LESSON=04, COURSE_LANG=zh
	@$(python) tools/slides.py $(if $(COURSE_LANG),--language $(COURSE_LANG)) $(LESSON)

addresses: setup  ## Write the repository's address of pyproject.toml into README, docs and notebooks
	@$(python) tools/addresses.py

docs: setup  ## The API reference alone, from the docstrings, in build/docs; the site has it, too
	@PYTHONPATH=tools $(python) -m book.reference

site: setup  ## The course as a site, from the stored outputs, in build/site
	@PYTHONPATH=tools $(python) -m book

site-figures: setup  ## Draw the states of figures with sliders that the site shows (runs lessons)
	@PYTHONPATH=tools $(python) -m book.states

site-plans: setup  ## Compute what the site's page of plans shows (a quarter of an hour)
	@PYTHONPATH=tools $(python) -m book.plans $(MODEL)

dist: setup  ## The wheel and the source distribution, in build/dist
	@$(python) -m uv build --quiet --clear --out-dir build/dist .
	@ls build/dist

bench: setup  ## Measure this machine; prints tables with ratios
	@missed=0; \
	for benchmark in benchmarks/bench_*.py; do $(python) "$$benchmark" || missed=1; done; \
	exit $$missed

# No set-up: on rented machines a Python that has torch is there, and it is found with PYTHON=...
gpu:  ## Predictions beside what one real GPU takes, in build/gpu.csv, in 8 minutes; no set-up
	@$(or $(PYTHON),python3) benchmarks/gpu $(if $(MACHINE),--machine "$(MACHINE)") \
		$(if $(EMULATE),--emulate "$(EMULATE)") $(if $(ONLY),--tables "$(ONLY)")

lock: setup  ## Upgrade requirements.lock to the newest releases
	@UV_CUSTOM_COMPILE_COMMAND="make lock" $(python) -m uv pip compile --quiet --upgrade --universal \
		--python-version 3.11 --generate-hashes --no-emit-index-url \
		--override requirements-overrides.txt --output-file requirements.lock requirements.in

clean:  ## Remove all that make made: .venv, build, caches
	@# First another name: half of a .venv could be taken for one of the user's own.
	[ ! -d .venv ] || mv .venv .venv.old-d2lpar-$$$$
	rm -rf .venv.old-d2lpar-* .venv.unfinished .venv.lock
	rm -rf build .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
