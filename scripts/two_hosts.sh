#!/usr/bin/env bash
# Run a torchrun job on two "hosts": two network namespaces of this machine, joined by a bridge. Needs root and iproute2.
#
#   scripts/two_hosts.sh PROCESSES_PER_HOST LOG_FOLDER MODULE [ARGUMENTS...]      e.g.
#   scripts/two_hosts.sh 4 /tmp/logs tokpipe.cli.main train recipes/tiny-3d-cpu.toml --out /tmp/run
#
# Each host sees only its own loopback and an address of its own; they find each other as real hosts do, by the address of the first.
# Whatever happens, the namespaces and the processes in them are gone at the end. When one host fails the other is ended too.
set -euo pipefail
PROCESSES=${1:?processes per host} LOGS=${2:?folder for logs}; shift 2
PYTHON=${PYTHON:-python}
# Interface names may have 15 characters; the shell's number keeps two runs apart.
ID=$(( $$ % 10000 )) BRIDGE=tpb$(( $$ % 10000 )) NET=10.231.$(( $$ % 200 + 7 ))
HOSTS=(1 2) PIDS=()

down() {
    trap - EXIT INT TERM
    for pid in "${PIDS[@]}"; do kill "$pid" 2>/dev/null || true; done
    for host in "${HOSTS[@]}"; do
        # Only what runs inside our own namespaces.
        ip netns pids "tph$host-$ID" 2>/dev/null | xargs -r kill 2>/dev/null || true
    done
    for _ in $(seq 50); do
        left=$(for host in "${HOSTS[@]}"; do ip netns pids "tph$host-$ID" 2>/dev/null || true; done)
        [ -z "$left" ] && break
        sleep 0.1
    done
    [ -n "${left:-}" ] && kill -9 $left 2>/dev/null || true
    for host in "${HOSTS[@]}"; do
        ip link del "tpv$host-$ID" 2>/dev/null || true
        ip netns del "tph$host-$ID" 2>/dev/null || true
    done
    ip link del "$BRIDGE" 2>/dev/null || true
}
trap down EXIT
trap 'exit 130' INT TERM

mkdir -p "$LOGS"
ip link add "$BRIDGE" type bridge
ip link set "$BRIDGE" up
for host in "${HOSTS[@]}"; do
    ip netns add "tph$host-$ID"
    ip link add "tpv$host-$ID" type veth peer name eth0 netns "tph$host-$ID"
    ip link set "tpv$host-$ID" master "$BRIDGE" up
    ip -n "tph$host-$ID" addr add "$NET.$host/24" dev eth0
    ip -n "tph$host-$ID" link set eth0 up
    ip -n "tph$host-$ID" link set lo up
done

for host in "${HOSTS[@]}"; do
    # gloo takes the interface that the host's name resolves to, which here is the loopback: say which one instead.
    GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} ip netns exec "tph$host-$ID" \
        "$PYTHON" -m torch.distributed.run --nnodes 2 --node-rank $((host - 1)) --nproc-per-node "$PROCESSES" \
        --master-addr "$NET.1" --master-port 29571 --no-python -- "$PYTHON" -m "$@" >"$LOGS/host$host.log" 2>&1 &
    PIDS+=($!)
done
STATUS=0
for _ in "${PIDS[@]}"; do
    wait -n || { STATUS=$?; break; }
done
exit "$STATUS"
