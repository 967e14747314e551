"""Boots one kernel under qemu with this machine's root as its own, and runs a command in it."""

from __future__ import annotations

import io
import lzma
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.kernels.archives import CACHE, run, unpack
from tests.kernels.guests import Guest

_INIT = Path(__file__).with_name("init.sh")
_MODULES = ("virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "overlay", "ext4")
_HARDWARE_KVM = ("kvm_intel", "kvm_amd")  # the API alone does not say that a stock kernel boots


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """An unpacked kernel: its image, its modules, its release."""

    folder: Path
    image: Path
    release: str
    machine: str = "x86_64"


def fetch(guest: Guest) -> Kernel:
    """The guest's kernel, downloaded unless it is in the cache."""
    folder = CACHE / guest.name.partition("-")[0]
    if not sorted(folder.glob("boot/vmlinuz-*")):
        guest.archive.update()
        images = guest.archive.depends(guest.package, r"linux-image-\S+")
        modules = [name for image in images for name in guest.archive.depends(image, r"linux-modules-\S+")]
        for name in (*images, *modules):
            unpack(guest.archive.download(name, folder / "packages"), folder)
        shutil.rmtree(folder / "packages")
    (image,) = folder.glob("boot/vmlinuz-*")
    release = image.name.removeprefix("vmlinuz-")
    if (folder / "usr/lib/modules").exists() and not (folder / "lib").exists():
        (folder / "lib").symlink_to("usr/lib")
    if not (folder / "lib/modules" / release / "modules.dep").exists():
        run(["/sbin/depmod", "-b", folder, release])
    return Kernel(folder=folder, image=image, release=release, machine=guest.machine)


def boot(
    kernel: Kernel,
    script: str,
    work: Path,
    *,
    limit_s: int,
    parameters: str = "",
    cpus_take_turns: bool = False,
    root: Path = Path("/"),
) -> str:
    """Runs a script in a guest; what its console said. Results are what the script leaves in `work/share`.

    Args:
        cpus_take_turns: emulate all CPUs in one thread, so that none runs code while another one changes it.
    """
    share, disk = work / "share", work / "disk"
    share.mkdir(parents=True, exist_ok=True)
    (share / "run.sh").write_text(_run_script(kernel, script))
    disk.unlink(missing_ok=True)
    with disk.open("wb") as file:
        file.truncate(6 << 30)
    run(["/sbin/mkfs.ext4", "-q", "-E", "lazy_itable_init=1", disk])
    command = [
        *("nice", *_MACHINES[kernel.machine]("single" if cpus_take_turns else "multi"), "-m", "3072", "-smp", "2"),
        *("-nographic", "-no-reboot", "-nodefaults", "-serial", f"file:{work / 'console'}"),
        *("-kernel", kernel.image, "-initrd", _initramfs(kernel, root, work)),
        *_shared("host", root, ",readonly=on"),
        *_shared("share", share),
        *("-drive", f"file={disk},if=virtio,format=raw,cache=unsafe"),
        *("-append", f"console=ttyS0 console=ttyAMA0 panic=-1 quiet mitigations=off no_timer_check {parameters}"),
    ]
    try:
        subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        print(f"kernels: Linux {kernel.release} did not end within {limit_s} s", flush=True)
    disk.unlink()
    return (work / "console").read_text(errors="replace")


def _run_script(kernel: Kernel, script: str) -> str:
    modules = kernel.folder / "lib/modules" / kernel.release
    return f"""
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb INGERO_GUEST={accelerator()}
export HOME={Path.home()} TMPDIR=/disk
mkdir -p /lib/modules && ln -sfn {modules} /lib/modules/
{script}
sync
echo o > /proc/sysrq-trigger # without an init system nothing else turns the machine off
sleep 20
"""


def accelerator() -> str:
    """kvm where the processor's own is used, else tcg."""
    has_kvm = Path("/dev/kvm").exists() and any(Path("/sys/module", name).exists() for name in _HARDWARE_KVM)
    return "kvm" if has_kvm else "tcg"


def _x86_64(threads: str) -> tuple[str, ...]:
    if accelerator() == "kvm":
        return ("qemu-system-x86_64", "-accel", "kvm", "-cpu", "host")
    return ("qemu-system-x86_64", "-accel", f"tcg,thread={threads}", "-cpu", "max")


def _aarch64(threads: str) -> tuple[str, ...]:
    accelerated = ("-accel", f"tcg,thread={threads}", "-cpu", "max,pauth-impdef=on")
    return ("qemu-system-aarch64", "-machine", "virt", *accelerated)


_MACHINES = {"x86_64": _x86_64, "aarch64": _aarch64}


def _shared(tag: str, folder: Path, options: str = "") -> tuple[str, ...]:
    return (
        *("-fsdev", f"local,id={tag},path={folder},security_model=none,multidevs=remap{options}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    )


def _initramfs(kernel: Kernel, root: Path, work: Path) -> Path:
    """busybox, the modules that reach the root, and the init script."""
    tree, archive = work / "initramfs", work / "initramfs.cpio"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "proc", "sys", "dev", "lower", "layer", "new", "mod"):
        (tree / name).mkdir(parents=True)
    busybox = next(path for path in (root / "bin/busybox", root / "usr/bin/busybox") if path.exists())
    shutil.copy(busybox, tree / "bin/busybox")
    shutil.copy(_INIT, tree / "init")
    (tree / "init").chmod(0o755)
    order = []
    for path in _module_files(kernel):
        order.append(path.name.partition(".ko")[0] + ".ko")
        (tree / "mod" / order[-1]).write_bytes(_decompressed(path))
    (tree / "mod/order").write_text("".join(f"{name}\n" for name in order))
    names = "".join(f"{path.relative_to(tree)}\n" for path in sorted(tree.rglob("*")))
    with archive.open("wb") as file:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], input=names.encode(), stdout=file, cwd=tree, check=True)
    return archive


def _module_files(kernel: Kernel) -> list[Path]:
    """In the order in which they can be loaded; those built into the kernel are left out."""
    found: dict[Path, None] = {}
    for name in _MODULES:
        shown = subprocess.run(
            ["/sbin/modprobe", "-d", kernel.folder, "-S", kernel.release, "--show-depends", name],
            capture_output=True,
            text=True,
            check=False,
        )
        found |= dict.fromkeys(Path(path) for path in re.findall(r"^insmod (\S+)", shown.stdout, re.MULTILINE))
    return list(found)


def _decompressed(path: Path) -> bytes:
    if path.suffix == ".xz":
        return lzma.open(io.BytesIO(path.read_bytes())).read()
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dc", path], capture_output=True, check=True).stdout
    return path.read_bytes()
