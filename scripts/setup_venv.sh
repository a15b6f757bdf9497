#!/usr/bin/env bash
# Creates .venv with torch, fairseq, this package (editable) and the tools of its tests.
#
# If you start it again, it does nothing unless the pins, this script or the interpreter changed. With --find-python it only
# prints the interpreter that it would use.
#
#   ENGINE=fairseq      PyPI name of the fairseq to install: fairseq-fixed (0.12.3, CPython 3.11 to 3.13) or fairseq (0.12.2,
#                       CPython 3.8 to 3.10) (default: fairseq-fixed)
#   PYTHON=python3.12   interpreter to use (default: the first supported one of python3.11, 3.12, 3.13 and python3; with
#                       ENGINE=fairseq of python3.8, 3.9, 3.10 and python3)
#   VENV=path           environment to fill (default: .venv). An environment of your own keeps its torch and fairseq. One that
#                       this script made is emptied and built again, unless you installed a fork of fairseq into it.
#
# The settings of pip (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, PIP_NO_CACHE_DIR, pip.conf) apply.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
VENV="${VENV:-.venv}"
VENV="${VENV%/}"
ENGINE="${ENGINE:-fairseq-fixed}"
TORCH_CPU_INDEX="https://download.pytorch.org/whl/cpu"
STAMP="$VENV/luna_fairseq.stamp" # fingerprint of the installation, written last, so that a killed one is repeated
OWNER="$VENV/luna_fairseq.made"  # marks a folder that this script created and may empty
LOG="$VENV/luna_fairseq.log"

say() { printf 'setup_venv: %s\n' "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}

case "$ENGINE" in # supported minor versions of Python, and the marker of their pins
fairseq-fixed) MINORS=(11 12 13) MARKER='>= "3.11"' ;;
fairseq) MINORS=(8 9 10) MARKER='< "3.11"' ;;
*) die "ENGINE=$ENGINE is unknown. Give fairseq-fixed (0.12.3) or fairseq (0.12.2)." ;;
esac
CPYTHON="CPython 3.${MINORS[0]}, 3.${MINORS[1]} or 3.${MINORS[2]}"

fits() { # succeeds if $1 is an interpreter of a supported version
  "$1" -c 'import sys; sys.exit(str(sys.version_info[1]) not in sys.argv[1:] or sys.version_info[0] != 3)' "${MINORS[@]}" \
    >/dev/null 2>&1
}

find_python() {
  local candidate
  if [[ -n "${PYTHON:-}" ]]; then
    "$PYTHON" -c '' >/dev/null 2>&1 || die "PYTHON=$PYTHON does not run. Give an installed $CPYTHON."
    fits "$PYTHON" || die "PYTHON=$PYTHON is $("$PYTHON" --version 2>&1). Give $CPYTHON."
    printf '%s\n' "$PYTHON"
    return
  fi
  for candidate in "${MINORS[@]/#/python3.}" python3; do
    if fits "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die "no $CPYTHON found. Install one, or give PYTHON=/path/to/python3.${MINORS[0]}."
}

fingerprint() { # prints a checksum of the pins, the folder and the interpreter $1
  {
    cat constraints.txt setup.py scripts/setup_venv.sh
    echo "$ENGINE"
    pwd -P
    "$1" -c 'import sys; print(sys.version)'
  } | cksum
}

up_to_date() {
  local python="$VENV/bin/python"
  [[ -f "$STAMP" && -x "$python" ]] || return 1
  if [[ -n "${PYTHON:-}" ]]; then python="$(find_python)" || exit 1; fi
  [[ "$(cat "$STAMP")" == "$(fingerprint "$python" 2>/dev/null)" ]]
}

logged() { # runs a command with its output in the log, and shows the end of the log if it fails
  local what="$1"
  shift
  printf '\n$ %s\n' "$*" >>"$LOG"
  if "$@" >>"$LOG" 2>&1; then return; fi
  tail -n 25 "$LOG" >&2
  if grep -q 'No space left on device' "$LOG"; then die "$what failed: no space left on device"; fi
  die "$what failed: the lines above are the end of $LOG"
}

pip_install() {
  local what="$1"
  shift
  logged "$what" "$VENV/bin/python" -m pip install ${PINS[@]+"${PINS[@]}"} "$@"
}

has_module() { "$VENV/bin/python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }

has_gpu() {
  local gpus # not a pipe: grep -q ends early, and pipefail would report the SIGPIPE of nvidia-smi
  gpus="$(nvidia-smi -L 2>/dev/null)" && grep -q '^GPU ' <<<"$gpus"
}

# The alarm also ends a name look-up that hangs, which pip's timeouts do not.
reachable() {
  "$VENV/bin/python" -c 'import signal, sys, urllib.request
signal.alarm(8)
urllib.request.urlopen(sys.argv[1], timeout=5)' "$1" >/dev/null 2>&1
}

require_space() { # fails if there is no space for torch. $1 is the number of KiB that will be freed first
  local free need=3
  if has_gpu; then need=10; fi
  free="$(df -Pk "$VENV" | awk -v freed="$1" 'NR == 2 { print int(($4 + freed) / 1048576) }')"
  ((free >= need)) || die "$VENV needs about $need GiB, and $free GiB are free. Free some space, or give another VENV=path."
}

require_compiler() { # fails if fairseq must be compiled for the interpreter $1, and cannot be
  local compiler="${CXX:-c++}" headers
  # On Linux there are wheels for CPython 3.8 (fairseq) and 3.12 (fairseq-fixed); elsewhere the source is compiled.
  if "$1" -c 'import sys; sys.exit(sys.version_info[1] not in (8, 12))'; then return; fi
  command -v "${compiler%% *}" >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 ||
    die "fairseq must be compiled, but there is no C++ compiler. Install g++ (Debian, Ubuntu: apt install build-essential)."
  headers="$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
  [[ -f "$headers/Python.h" ]] ||
    die "$headers/Python.h is missing. Install the Python headers (Debian, Ubuntu: apt install python3-dev for this version)."
}

# Succeeds if a fork or a checkout of fairseq is installed, which must survive a change of the pins.
foreign_fairseq() {
  [[ -x "$VENV/bin/python" ]] && has_module fairseq 2>/dev/null && "$VENV/bin/python" -c '
import sys
from importlib.metadata import PackageNotFoundError, distribution
try:
    found = distribution(sys.argv[1])
except PackageNotFoundError:
    sys.exit(0)
sys.exit(found.read_text("direct_url.json") is None)' "$ENGINE"
}

create() {
  if [[ -e "$VENV" && ! -f "$VENV/pyvenv.cfg" && ! -f "$OWNER" ]] && [[ -n "$(ls -A "$VENV")" ]]; then
    die "$VENV is not a virtual environment. Remove it, or give another folder with VENV=path."
  fi
  if [[ -f "$VENV/pyvenv.cfg" ]] && { [[ ! -f "$OWNER" ]] || foreign_fairseq; }; then
    "$VENV/bin/python" -c '' 2>/dev/null || die "$VENV/bin/python does not run. Remove $VENV and try again."
    fits "$VENV/bin/python" || die "$VENV holds $("$VENV/bin/python" --version 2>&1), and $ENGINE needs $CPYTHON. Give another VENV=path."
    say "1/4 filling the existing $VENV"
    rm -f "$STAMP"
    : >"$LOG"
    return
  fi
  local python
  python="$(find_python)"
  # If the environment is activated, its own interpreter is found, which would be removed with it.
  python="$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')"
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$python has no venv module (Debian, Ubuntu: apt install python3-venv for that version)"
  require_compiler "$python"
  mkdir -p "$VENV"
  require_space "$(du -sk "$VENV/" | cut -f 1)"
  say "1/4 creating $VENV with $("$python" --version 2>&1)"
  touch "$OWNER" # kept, so that a killed run can be repeated
  rm -f "$STAMP"
  find "$VENV" -mindepth 1 -maxdepth 1 ! -path "$OWNER" -exec rm -rf {} +
  : >"$LOG"
  logged "creating $VENV" "$python" -m venv "$VENV"
}

install_torch() {
  local options=() wanted=torch
  # fairseq 0.12.2 needs omegaconf 2.0.6, whose metadata newer versions of pip refuse.
  if [[ "$ENGINE" == fairseq ]] && ! has_module fairseq; then pip_install "installing pip" 'pip<24.1'; fi
  if has_module torch; then
    say "2/4 using the installed torch; installing build tools"
  else
    require_space 0
    if has_gpu; then
      # A CPU build offered beside the CUDA build would win by its version, 2.13.0+cpu > 2.13.0.
      wanted="$(sed -n "s/^torch==\([^;]*\); python_version $MARKER\$/torch!=\1+cpu/p" constraints.txt)"
      say "2/4 installing torch with CUDA (several GB)"
    elif reachable "$TORCH_CPU_INDEX/torch/"; then
      options=(--extra-index-url "$TORCH_CPU_INDEX")
      say "2/4 installing torch for the CPU"
    else
      say "2/4 installing torch from pip's own index ($TORCH_CPU_INDEX does not answer: it may be a large CUDA build)"
    fi
    pip_install "installing torch" ${options[@]+"${options[@]}"} "$wanted"
  fi
  pip_install "installing build tools" setuptools wheel Cython numpy
}

install_fairseq() {
  if has_module fairseq; then
    say "3/4 using the installed fairseq"
    return
  fi
  require_compiler "$VENV/bin/python"
  say "3/4 installing fairseq (compiles for about three minutes, unless pip has it in its cache)"
  # With build isolation pip would download a second torch. Dependencies are installed below, without torchaudio: it must
  # match the build of torch, and neither text tasks nor this package import it.
  local options=(--no-deps --no-build-isolation)
  # The archive of 0.12.2 lacks the sources of two speech extensions, which it would build if it found torch.
  if [[ "$ENGINE" == fairseq ]]; then options=(--no-deps); fi
  pip_install "installing fairseq" "${options[@]}" "$ENGINE"
  local need needs=()
  while IFS= read -r need; do needs+=("$need"); done < <("$VENV/bin/python" -c '
import sys
from importlib.metadata import requires
for need in requires(sys.argv[1]):
    if "extra ==" not in need and not need.startswith("torch"):
        print(need)' "$ENGINE")
  pip_install "installing what fairseq needs" "${needs[@]}"
}

# fairseq looks for --user-dir luna_fairseq only in the current folder and beside its own package. A fairseq outside of the
# environment is a checkout of the user, in which no link is created.
link_beside_fairseq() {
  local beside
  beside="$("$VENV/bin/python" -c '
import os, sys
from importlib.util import find_spec
beside = os.path.dirname(find_spec("fairseq").submodule_search_locations[0])
if os.path.realpath(beside).startswith(os.path.realpath(sys.prefix) + os.sep):
    print(beside)')"
  if [[ -n "$beside" && (-L "$beside/luna_fairseq" || ! -e "$beside/luna_fairseq") ]]; then
    ln -sfn "$PWD/luna_fairseq" "$beside/luna_fairseq"
  fi
}

install_project() {
  say "4/4 installing luna_fairseq (editable) and the tools of its tests"
  pip_install "installing luna_fairseq" --no-build-isolation --editable '.[dev]'
  link_beside_fairseq
  logged "importing fairseq" "$VENV/bin/python" -c 'import fairseq_cli.train, fairseq_cli.generate'
  if has_gpu && ! "$VENV/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    say "warning: this torch cannot use the GPU. docs/engines.md names the builds for older cards."
  fi
}

if [[ "${1:-}" == --find-python ]]; then
  find_python
  exit
fi
if up_to_date; then exit 0; fi
mkdir -p "$(dirname "$VENV")"
if command -v flock >/dev/null 2>&1; then
  exec 9>"${VENV%/}.lock"
  if ! flock -n 9; then
    say "waiting for another setup of $VENV"
    flock 9
    if up_to_date; then exit 0; fi
  fi
fi
create
# The pins apply only to an environment that this script created.
PINS=()
if [[ -f "$OWNER" ]]; then PINS=(--constraint constraints.txt); fi
install_torch
install_fairseq
install_project
fingerprint "$VENV/bin/python" >"$STAMP.new"
mv "$STAMP.new" "$STAMP"
say "$VENV is ready"
