# Sourced by the other scripts in this folder. Creates one virtual environment, .venv/, and reuses it.
# PYTHON chooses the interpreter (3.11 or newer).

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
# Ignore the caller's own packages and settings. Without bytecode files, each of about a thousand processes would
# compile the package again.
unset PYTHONPATH PYTEST_ADDOPTS PYTEST_PLUGINS PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "--- $*"; }

# install NAME REQUIREMENT...: install into .venv, unless that was done with the same pyproject.toml
install() {
  local mark=.venv/installed-$1
  shift
  if [ ! -x .venv/bin/python ]; then
    say "making .venv with ${PYTHON:-python3}"
    "${PYTHON:-python3}" -m venv .venv
  fi
  if [ ! -f "$mark" ] || ! cmp -s "$mark" pyproject.toml; then
    say "installing $* (the first time downloads)"
    # Older ones do not know --group.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"
    cp pyproject.toml "$mark"
  fi
}

# What every test needs: the extra `test`, and the oldest supported pytest in an environment of its own.
install_for_tests() {
  install test --editable '.[test]'
  install_oldest
}

install_oldest() {
  install_beside oldest pytest==8.4.0 pytest-subtests==0.15.0 --editable .
}

# install_beside NAME REQUIREMENT...: an environment of its own, .venv/NAME, unless it has been made with these
install_beside() {
  local folder=.venv/$1 python=.venv/bin/python wanted
  shift
  wanted="$* $(cksum <pyproject.toml)"
  if [ "$(cat "$folder/installed" 2>/dev/null)" != "$wanted" ]; then
    say "making $folder with $*"
    [ -x "$python" ] || python=${PYTHON:-python3}
    "$python" -m venv --clear "$folder"
    # Older ones do not know --group.
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    printf '%s' "$wanted" >"$folder/installed"
  fi
}
