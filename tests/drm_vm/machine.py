"""A virtual machine with Debian's own kernel and a mock GPU driver on it; its file system is this machine's, read-only.

The kernel comes from Debian's package, the mock driver is built with the kernel headers installed here. The guest runs
one command in a chroot of the host's root and leaves what it has to say in a directory of the host.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
MODULES = ("virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "gpu_sched")
TOOLS = ("qemu-system-x86_64", "busybox", "cpio", "gcc", "make", "modinfo", "apt-get", "dpkg-deb")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
while read module; do insmod /modules/$module.ko || echo "insmod $module failed"; done < /modules/order
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host || echo "no host file system"
mount -t tracefs tracefs /sys/kernel/tracing
for point in proc dev; do mount -o bind /$point /host/$point; done
mount -o rbind /sys /host/sys
mkdir -p /host/dev/shm; mount -t tmpfs scratch /host/dev/shm; mkdir -p /host/dev/shm/out
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 out /host/dev/shm/out || echo "no output directory"
export PATH={path} TMPDIR=/dev/shm HOME=/dev/shm PYTHONDONTWRITEBYTECODE=1
chroot /host {command} > /host/dev/shm/out/log 2>&1; echo $? > /host/dev/shm/out/status
sync; echo o > /proc/sysrq-trigger; sleep 60
"""


class CannotRun(Exception):
    """What this machine lacks, and how to get it."""


def _run(*argv: str, **options: object) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, **options)  # type: ignore[call-overload]  # by name
    if done.returncode:
        raise CannotRun(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return str(done.stdout)


def _offered() -> list[str]:
    return re.findall(r"^linux-image-(\d\S*-amd64) ", _run("apt-cache", "search", "-n", "^linux-image-"), re.M)


def kernel_release() -> str:
    """The newest Debian kernel for which headers are installed and a package is offered. Raises CannotRun."""
    for tool in TOOLS:
        if shutil.which(tool, path=PATH) is None:
            raise CannotRun(f"no {tool} here: scripts/system_packages.sh test installs what tests need")
    with_headers = {path.name[14:] for path in Path("/usr/src").glob("linux-headers-*-amd64")}
    offered = _offered()
    if not offered:  # no package lists here yet
        _run("apt-get", "-qq", "update")
        offered = _offered()
    both = sorted(with_headers.intersection(offered), key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
    if not both:
        raise CannotRun(
            f"kernel headers here: {sorted(with_headers)}, kernels offered by apt: {sorted(offered)}; "
            "apt-get update && apt-get install linux-headers-amd64"
        )
    return both[-1]


def fetch_kernel(release: str, directory: Path) -> Path:
    """Unpacks the kernel and its drivers from Debian's package; returns the root. Raises CannotRun."""
    _run("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", f"linux-image-{release}", cwd=directory)
    (package,) = directory.glob("*.deb")
    root = directory / "kernel"
    root.mkdir()
    drivers = ("drivers/block", "drivers/gpu/drm", "drivers/i2c", "drivers/virtio", "fs", "net/9p")
    wanted = [f"./boot/vmlinuz-{release}", *(f"./lib/modules/{release}/kernel/{part}" for part in drivers)]
    unpack = 'dpkg-deb --fsys-tarfile "$0" | tar -x -C "$1" "${@:2}"'
    _run("bash", "-o", "pipefail", "-c", unpack, str(package), str(root), *wanted)
    package.unlink()
    return root


def build_driver(release: str, directory: Path) -> Path:
    """mockgpu.ko, with the kernel's own build rules."""
    source = directory / "driver"
    source.mkdir()
    shutil.copy(HERE / "mockgpu.c", source)
    (source / "Makefile").write_text("obj-m := mockgpu.o\n")
    _run("make", "-s", "-C", f"/usr/src/linux-headers-{release}", f"M={source}", "modules")
    return source / "mockgpu.ko"


def _with_dependencies(modules: dict[str, Path]) -> list[str]:
    order: list[str] = []

    def add(name: str) -> None:
        if name in order or name not in modules:  # built in
            return
        for needed in _run("/sbin/modinfo", "-F", "depends", str(modules[name])).strip().split(","):
            add(needed.replace("-", "_"))
        order.append(name)

    for name in (*MODULES, "mockgpu"):
        add(name)
    return order


def start_image(root: Path, driver: Path, command: str, directory: Path) -> Path:
    """The first file system of the guest: busybox, the drivers it needs, and what it does."""
    modules = {path.stem.replace("-", "_"): path for path in root.rglob("*.ko")} | {"mockgpu": driver}
    order = _with_dependencies(modules)
    tree = directory / "start"
    for name in ("bin", "dev", "host", "modules", "proc", "sys"):
        (tree / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", tree / "bin")
    for name in order:
        shutil.copy(modules[name], tree / "modules" / f"{name}.ko")
    (tree / "modules" / "order").write_text("".join(f"{name}\n" for name in order))
    (tree / "init").write_text(INIT.format(path=PATH, command=command))
    (tree / "init").chmod(0o755)
    image = directory / "start.cpio"
    _run("bash", "-c", 'cd "$0" && find . | cpio -o -H newc --quiet > "$1"', str(tree), str(image))
    return image


def run(root: Path, image: Path, out: Path, disk_bytes: int) -> str:
    """Boots the guest (emulated: no virtualisation needed) and returns its console's text once it is off."""
    (kernel,) = (root / "boot").glob("vmlinuz-*")
    disk = image.with_name("disk.img")
    with disk.open("wb") as file:
        file.truncate(disk_bytes)
    share = "local,security_model=none,multidevs=remap"
    return _run(
        "qemu-system-x86_64", "-M", "q35", "-cpu", "max", "-accel", "tcg", "-m", "1536", "-smp", "1",
        "-display", "none", "-serial", "stdio", "-no-reboot", "-nic", "none",
        "-kernel", str(kernel), "-initrd", str(image),
        "-append", "console=ttyS0 loglevel=4 mitigations=off nokaslr tsc=reliable panic=-1 rdinit=/init",
        "-virtfs", f"{share},path=/,mount_tag=host,readonly=on",
        "-virtfs", f"{share},path={out},mount_tag=out",
        "-drive", f"file={disk},format=raw,if=virtio",
        stdin=subprocess.DEVNULL,
        timeout=240,
    )  # fmt: skip
