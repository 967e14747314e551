#!/bin/busybox sh
# First process of a guest: this machine's root, read-only over 9p, under a writable layer in memory; a disk at /disk.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/mod/$module"; done </mod/order
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=524288 host /lower || echo "no root: $(dmesg | tail -5)"
mount -t tmpfs tmpfs /layer
mkdir -p /layer/upper /layer/work
mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work overlay /new
for place in proc sys dev; do mount --move /$place /new/$place; done
mkdir -p /new/disk /new/share /new/dev/shm /new/dev/pts /new/lib/modules
mount -t ext4 /new/dev/vda /new/disk || echo "no disk: $(dmesg | tail -5)"
mount -t tmpfs shm /new/dev/shm
mount -t devpts pts /new/dev/pts
mount -t tmpfs run /new/run
mount -t 9p -o trans=virtio,version=9p2000.L,rw,msize=524288 share /new/share
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
mount -t tracefs tracefs /new/sys/kernel/tracing
mount -t securityfs securityfs /new/sys/kernel/security
mount -t bpf bpf /new/sys/fs/bpf
ip link set lo up
echo "booted $(uname -r)"
exec chroot /new /bin/bash /share/run.sh
