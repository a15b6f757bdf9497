#!/usr/bin/env bash
# Trains a recipe with torch's launcher, on one node or several. See --help.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

usage() {
  cat <<'HELP'
usage: scripts/train_torchrun.sh [--gpus N] [--nodes N --node-rank K --master HOST[:PORT]] [--dry-run]
                                 RECIPE DATA [fairseq-train options]

Train a recipe with a process for each GPU, started by torch's launcher (torchrun), on one node or several.

On several nodes, start the script on each node with its own --node-rank (0, 1, ...) and the name of node 0 as --master.
  --gpus N           number of processes on this node (default: its number of GPUs)
  --nodes N          number of nodes (default: 1)
  --node-rank K      rank of this node, from 0
  --master HOST      name of node 0, with its port (default: 29500)
  --dry-run          check RECIPE and DATA, print the command and stop
After SIGTERM or SIGHUP the training saves and ends with status 143. Start it again to continue.

example:
  scripts/train_torchrun.sh --gpus 4 wmt14_en_de/luna_16_softplus_tied wmt14/moses --max-epoch 10
HELP
}

die() {
  printf 'train_torchrun: error: %s\n' "$*" >&2
  exit 1
}

gpus='' nodes=1 rank='' master='' dry_run=''
while (($#)); do
  case "$1" in
    -h | --help) usage && exit 0 ;;
    --dry-run) dry_run=1 && shift ;;
    --gpus | --nodes | --node-rank | --master)
      (($# > 1)) || die "$1 needs a value"
      case "$1" in --gpus) gpus="$2" ;; --nodes) nodes="$2" ;; --node-rank) rank="$2" ;; --master) master="$2" ;; esac
      shift 2
      ;;
    -*) die "unknown option $1 before RECIPE. Give options of fairseq-train after DATA; see --help" ;;
    *) break ;;
  esac
done
(($# > 1)) || die "RECIPE and DATA are missing: see --help"
[[ "$nodes" =~ ^[1-9][0-9]*$ ]] || die "--nodes must be a positive number, got $nodes"
if [[ -z "$gpus" ]]; then
  gpus="$(python -c 'import torch; print(torch.cuda.device_count())')"
  ((gpus > 0)) || die "this node has no GPU. Give --gpus N to train with N processes on its CPU."
fi
[[ "$gpus" =~ ^[1-9][0-9]*$ ]] || die "--gpus must be a positive number, got $gpus"

export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
launch=(python -m luna_fairseq.commands.torchrun --nproc_per_node "$gpus")
if ((nodes == 1)); then
  launch+=(--standalone)
else
  [[ "$rank" =~ ^[0-9]+$ ]] && ((rank < nodes)) || die "--nodes $nodes needs --node-rank 0 to $((nodes - 1))"
  [[ -n "$master" ]] || die "--nodes $nodes needs --master HOST, the name of the node of rank 0"
  port=29500
  if [[ "$master" == *:* ]]; then port="${master##*:}" master="${master%:*}"; fi
  launch+=(--nnodes "$nodes" --node_rank "$rank" --master_addr "$master" --master_port "$port")
fi
train=(luna_fairseq.commands.train "$@" --distributed-world-size "$((nodes * gpus))")
launch+=(-m "${train[@]}")
# Checked once here, so that an error is printed once and not once per process.
python -m "${train[0]}" --dry-run "${train[@]:1}" >/dev/null || exit 1
if [[ -n "$dry_run" ]]; then
  printf '%q ' "${launch[@]}" && echo
  exit 0
fi

# After a signal torch's launcher kills its processes within 30 seconds (newer versions: within this time). The signal is sent
# to the processes directly, so that they have the time to finish the update and to save. The launcher gets the signal only
# while it has no processes.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-600}"
"${launch[@]}" &
launcher=$!
stop() {
  local processes
  signalled=yes
  processes="$(cat /proc/"$launcher"/task/*/children)" || true
  kill -TERM ${processes:-"$launcher"} || true
}
trap stop TERM HUP
trap 'signalled=yes; kill -INT "$launcher" || true' INT
signalled=yes
while [[ $signalled ]]; do # a signal ends the wait, also if the launcher has ended in the meantime
  signalled='' status=0
  wait "$launcher" || status=$?
done
exit "$status"
