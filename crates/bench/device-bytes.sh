#!/usr/bin/env bash
# Bytes that a device writes per create, update and delete of a pod (in equal parts), for Headwater's embedded store
# and for etcd under the same server, each on an ext4 in a file of its own. Needs root, mkfs.ext4 and loop devices.
# Three rounds: the embedded store keeps little history, so that it writes new files in the first round, and in the
# last one files that the cleaner has freed.
#
#   crates/bench/device-bytes.sh HEADWATER ETCD [CLIENTS] [OBJECTS]
#
# The counter of the device is used because that of the process counts overwritten pages of prefilled files as a whole.
set -euo pipefail
headwater=$(realpath "$1") etcd=$(realpath "$2") clients=${3:-16} objects=${4:-10000}
# The bench gives one client a tenth of the objects.
writes=$((3 * (clients == 1 ? objects / 10 : objects)))
work=$(mktemp -d)
pids=()
clean_up() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; done
  pids=()
  # A file may still be closing.
  for _ in 1 2 3 4 5; do
    mountpoint -q "$work/mount" || break
    umount "$work/mount" || sleep 1
  done
}
trap 'clean_up; rm -rf "$work"' EXIT
mkdir "$work/mount"

written() {
  sync
  awk '{print $7 * 512}' "/sys/dev/block/$(mountpoint -d "$work/mount")/stat"
}

wait_for() { # FILE PID
  until [ -s "$1" ]; do kill -0 "$2"; sleep 0.1; done
}

for store in embedded etcd; do
  truncate -s 4G "$work/device"
  mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$work/device"
  mount -o loop "$work/device" "$work/mount"
  flags=(--data-dir "$work/mount/data" --history-bytes 16MiB)
  if [ "$store" = etcd ]; then
    "$etcd" --data-dir "$work/mount/etcd" --log-level error --listen-peer-urls http://127.0.0.1:0 \
      --listen-client-urls http://127.0.0.1:23799 --advertise-client-urls http://127.0.0.1:23799 &
    pids+=($!)
    until (exec 3<>/dev/tcp/127.0.0.1/23799) 2>/dev/null; do kill -0 "${pids[0]}"; sleep 0.1; done
    flags=(--store etcd --etcd-endpoints http://127.0.0.1:23799 --data-dir "$work/server")
  fi
  rm -rf "$work/kubeconfig" "$work/server"
  "$headwater" serve "${flags[@]}" --bind 127.0.0.1:0 --kubeconfig-out "$work/kubeconfig" >"$work/log" 2>&1 &
  pids+=($!)
  wait_for "$work/kubeconfig" $!
  for round in 1 2 3; do
    before=$(written)
    "$headwater" bench write --kubeconfig "$work/kubeconfig" --clients "$clients" --objects "$objects" \
      --verb create-pod --verb update-pod --verb delete-pod >"$work/rates" || { cat "$work/log"; exit 1; }
    after=$(written)
    echo "$store, $clients clients, round $round: $(((after - before) / writes)) bytes per write"
  done
  clean_up
  rm "$work/device"
done
