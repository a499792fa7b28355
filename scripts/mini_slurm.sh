#!/usr/bin/env bash
# mini_slurm.sh up|down|status|env [STATE_DIR]   - one slurmctld + N virtual slurmd on this host, as root, no systemd.
#   Needs: apt-get install -y --no-install-recommends slurm-wlm munge   (Debian 12: 22.05.8)
#   NODES=2 CPUS=2 MEM=2000 MAX_ARRAY=1001 BASE_PORT=17000 bash mini_slurm.sh up /tmp/mslurm
#   export SLURM_CONF=/tmp/mslurm/slurm.conf
# Everything (conf, key, spool, logs, pids) is in STATE_DIR. Teardown kills only the pids recorded there.
set -euo pipefail
CMD=${1:?up|down|status|env}; D=${2:-${MINI_SLURM_DIR:-/tmp/mslurm}}
NODES=${NODES:-2}; CPUS=${CPUS:-2}; MEM=${MEM:-2000}; BASE=${BASE_PORT:-17000}; MAX_ARRAY=${MAX_ARRAY:-1001}
H=$(hostname -s)
wait_for() { local t=$1; shift; for ((i=0;i<t*10;i++)); do "$@" >/dev/null 2>&1 && return 0; sleep 0.1; done; echo "timeout: $*" >&2; return 1; }
case $CMD in
up)
  mkdir -p "$D"/{log,state,run,spool,munge}; chmod 755 "$D"; chmod 700 "$D/munge"
  # --- munge: private key + private socket (does not touch /etc/munge)
  [ -s "$D/munge/munge.key" ] || { dd if=/dev/urandom of="$D/munge/munge.key" bs=1024 count=1 status=none; chmod 400 "$D/munge/munge.key"; }
  mkdir -p "$D/run/munge"; chmod 755 "$D/run" "$D/run/munge"
  munged --force --key-file="$D/munge/munge.key" --socket="$D/run/munge/m.sock" --pid-file="$D/run/munged.pid" \
         --log-file="$D/log/munged.log" --seed-file="$D/munge/seed"
  wait_for 10 test -S "$D/run/munge/m.sock"
  # --- slurm.conf
  { cat <<C
ClusterName=mini
SlurmctldHost=$H(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$D/run/munge/m.sock,cred_expire=5   # a requeued job waits cred_expire+1 s (default 120!)
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$D/log/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1,bf_continue
SlurmctldPort=$BASE
SlurmctldPidFile=$D/run/slurmctld.pid
SlurmdPidFile=$D/run/slurmd.%n.pid
SlurmdSpoolDir=$D/spool/%n
StateSaveLocation=$D/state
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
SlurmdTimeout=5
SlurmctldTimeout=10
InactiveLimit=0
KillWait=2
MinJobAge=300
ReturnToService=2
JobRequeue=1
RequeueExit=75
MaxArraySize=$MAX_ARRAY
SwitchType=switch/none
SlurmdParameters=config_overrides
C
    for ((n=1;n<=NODES;n++)); do
      echo "NodeName=n$n NodeHostname=$H NodeAddr=127.0.0.1 Port=$((BASE+n)) CPUs=$CPUS RealMemory=$MEM State=UNKNOWN"
    done
    echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO"
  } > "$D/slurm.conf"
  export SLURM_CONF="$D/slurm.conf"
  slurmctld -c -f "$D/slurm.conf"           # -c: clean start
  wait_for 15 scontrol ping
  for ((n=1;n<=NODES;n++)); do mkdir -p "$D/spool/n$n"; slurmd -N n$n -f "$D/slurm.conf"; done
  for ((n=1;n<=NODES;n++)); do wait_for 20 sh -c "sinfo -h -N -n n$n -o %t | grep -qx idle"; done
  sinfo -N -l ;;
status) SLURM_CONF="$D/slurm.conf" sinfo -N -l; SLURM_CONF="$D/slurm.conf" squeue ;;
env) echo "export SLURM_CONF=$D/slurm.conf" ;;
down)
  export SLURM_CONF="$D/slurm.conf"
  timeout 5 scancel -u root 2>/dev/null || true; sleep 0.5
  # munged last: the others speak through it. A pid counts only while its process is still ours.
  ours() { tr '\0' ' ' < "/proc/$1/cmdline" 2>/dev/null | grep -qF "$D"; }
  for group in "slurm*" munged; do
    pids=$(cat "$D"/run/$group.pid "$D"/run/$group.*.pid 2>/dev/null || true)
    for p in $pids; do ours "$p" && kill "$p" 2>/dev/null || true; done
    for p in $pids; do
      for ((i=0;i<80;i++)); do ours "$p" || break; sleep 0.1; done
      ours "$p" && kill -9 "$p" || true
    done
  done; echo down ;;
esac
