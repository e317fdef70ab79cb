# Sourced by the scripts beside it: one virtual environment, made once and kept in .venv/.
# PYTHON chooses the interpreter (3.10 or newer).

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
# Nothing from the caller's own packages or settings. Without files of bytecode each of some thousand processes would
# compile the package anew.
unset PYTHONPATH PYTEST_ADDOPTS PYTEST_PLUGINS PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "--- $*"; }

# install NAME REQUIREMENT...: once per content of pyproject.toml, into .venv
install() {
  local mark=.venv/installed-$1
  shift
  if [ ! -x .venv/bin/python ]; then
    say "making .venv with ${PYTHON:-python3}"
    "${PYTHON:-python3}" -m venv .venv
  fi
  if [ ! -f "$mark" ] || ! cmp -s "$mark" pyproject.toml; then
    say "installing $* (the first time downloads)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"
    cp pyproject.toml "$mark"
  fi
}
