#!/usr/bin/env bash
# Simulates two hosts on one machine: network namespaces joined by a virtual cable with a bandwidth
# and, if the kernel supports it, a delay.
#
#   two_hosts.sh PROGRAM [ARGUMENT...]
# runs PROGRAM on RANKS ranks of Open MPI (2; the first half on one host), which communicate over
# TCP. It counts the bytes that each host sends over the cable. For each line
#   rank R to rank S: N bytes
# that PROGRAM prints, N bytes are planned. A packet of at most 1,514 bytes has 66 bytes of headers
# (Ethernet, IP, TCP); an acknowledgement has no more than headers. The status is 0 if PROGRAM's
# status is 0 and the bytes sent are the planned bytes plus an allowance. The allowance covers
# packets that TCP sent twice, 100,000 bytes to start processes, and a thousandth for the headers of
# messages.
#
# RATE (1gbit) and DELAY (1ms) are those of tc. Without root and iproute2 the status is 77.
set -euo pipefail

skip() {
  echo "two_hosts.sh: $*" >&2
  exit 77
}

rate=${RATE:-1gbit} delay=${DELAY:-1ms} ranks=${RANKS:-2}
((EUID == 0)) || skip "needs root, to make network namespaces"
for tool in ip tc nstat unshare mpirun; do
  command -v $tool >/dev/null || skip "needs $tool"
done
first=mhla$$a second=mhla$$b
net=10.177.23
work=$(mktemp -d)
cleanup() {
  ip netns del "$first" 2>/dev/null || true
  ip netns del "$second" 2>/dev/null || true
  rm -r "$work"
}
trap cleanup EXIT
{ ip netns add "$first" && ip netns add "$second" &&
  ip link add cable netns "$first" type veth peer name cable netns "$second"; } 2>"$work/errors" ||
  skip "cannot make network namespaces: $(<"$work/errors")"

on() { ip netns exec "$@"; }
host=1
for space in "$first" "$second"; do
  on "$space" ip addr add $net.$host/24 dev cable
  on "$space" ip link set lo up
  on "$space" ip link set cable up
  # Queues that drop no packet.
  if ! on "$space" tc qdisc add dev cable root netem rate "$rate" delay "$delay" limit 1000000 \
    2>/dev/null; then
    ((host == 2)) || echo "this kernel has no netem: no delay"
    on "$space" tc qdisc add dev cable root tbf rate "$rate" burst 256kb limit 1gb
  fi
  host=$((host + 1))
done

# A replacement of ssh for Open MPI: agent HOST COMMAND...
cat >"$work/agent" <<END
#!/bin/sh
shift
exec ip netns exec $second unshare --uts sh -c "hostname $second; \$*"
END
chmod +x "$work/agent"

each=$((ranks / 2))
unset OMPI_MCA_plm  # of tests on one host
on "$first" unshare --uts sh -c "hostname $first; exec \"\$@\"" sh \
  mpirun --allow-run-as-root --oversubscribe --bind-to none --host $net.1:$each,$net.2:$each \
  -n "$ranks" --mca plm rsh --mca plm_rsh_agent "$work/agent" --mca pml ob1 --mca btl tcp,self \
  --mca btl_tcp_if_include $net.0/24 --mca oob_tcp_if_include $net.0/24 \
  --mca mpi_yield_when_idle 1 "$@" | tee "$work/output"

status=0
check() {  # NAME NAMESPACE CONDITION: CONDITION of awk picks the lines of PROGRAM
  local planned bytes packets again data
  planned=$(awk -v each=$each -F '[ :]+' '/^rank [0-9]+ to rank [0-9]+: [0-9]+ bytes$/ && '"$3"' \
    { sum += $6 } END { printf "%.0f", sum }' "$work/output")
  read -r bytes packets < <(on "$2" tc -s qdisc show dev cable | awk '/Sent/ { print $2, $4 }')
  again=$(on "$2" nstat -asz TcpRetransSegs | awk '/Tcp/ { print $2 }')
  data=$((bytes - 66 * packets))
  echo "$1 host: $bytes bytes in $packets packets ($again sent twice), $data without headers;" \
    "planned: $planned"
  if ((data < planned || data > planned + planned / 1000 + 1448 * again + 100000)); then
    echo "$1 host: that is not what was planned"
    status=1
  fi
}
check first "$first" '$2 < each && $5 >= each'
check second "$second" '$2 >= each && $5 < each'
exit $status
