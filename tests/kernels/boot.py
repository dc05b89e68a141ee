"""One guest: boots under software emulation, without any network device, and powers off."""

from __future__ import annotations

import subprocess
from pathlib import Path

QEMU = (
    *("qemu-system-x86_64", "-accel", "tcg", "-M", "q35", "-cpu", "max,la57=off", "-smp", "1"),
    *("-nic", "none", "-display", "none", "-monitor", "none", "-no-reboot"),
)
SHARED_ROOT = (
    "-virtfs",
    "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
)


class NotBooted(Exception):
    """The guest did not come to the end of its job; the message has its last lines."""


def boot(
    image: Path,
    initramfs: Path,
    log: Path,
    *,
    memory: int = 768,
    arguments: str = "",
    devices: tuple[str, ...] = (),
    timeout: float = 300,
) -> list[str]:
    """The result lines of the guest, without the "@ " that marks them.

    ``memory`` is in MiB, ``timeout`` in seconds.

    Raises:
        NotBooted: it hung, panicked or ended early.
    """
    # Expedited: each launch takes namespaces down, and waits of RCU would be most of the time.
    append = f"console=ttyS0 quiet panic=-1 rcupdate.rcu_expedited=1 {arguments}"
    command = [
        *QEMU,
        *("-m", str(memory), "-serial", f"file:{log}", "-kernel", image, "-initrd", initramfs),
        *("-append", append.strip(), *devices),
    ]
    log.unlink(missing_ok=True)
    why = "it ended early"
    try:
        subprocess.run(command, timeout=timeout, check=True, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        why = f"it did not end within {timeout:.0f} s"
    except subprocess.CalledProcessError as error:
        why = f"qemu: exit status {error.returncode}"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    results = [line[2:].strip() for line in lines if line.startswith("@ ")]
    if not results or results[-1] != "end":
        raise NotBooted(f"{why}: {' | '.join(lines[-3:])}")
    return results[:-1]
