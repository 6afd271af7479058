#!/usr/bin/env python3
"""Runs a command where the kernel starts programs for 64-bit ARM by QEMU's user-mode emulation, those that tests start included.

usage: emulated.py COMMAND...

The kernel learns it (binfmt_misc) in a user namespace of the command's own, so that nothing changes for the rest of the machine and
nobody needs to be root: Linux 6.7 or newer, or older where qemu-user-binfmt has told the whole machine. Exit status 77, and a line, where
neither is so. /proc/cpuinfo is an ARM processor's there: libtorch reads it, and reads past the end of what x86's makes of it.
"""
import ctypes
import os
import shutil
import sys
import tempfile

QEMU = "qemu-aarch64"
FOLDER = "/proc/sys/fs/binfmt_misc"
PREFIX = "/usr/aarch64-linux-gnu"  # where the cross compiler's C library lies
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
# The head of an ELF file for it, and the bits of it that count.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
# Vectors of 128 bits, as most such processors have; pointer authentication by its own algorithm would cost a third of the time.
PROCESSOR = "max,pauth-impdef=on,sve-default-vector-length=16"


# Of each processor, as the kernel shows a Neoverse N1.
CPUINFO = """processor\t: {number}
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
MS_BIND = 0x1000


def known():
    return any(os.path.exists(f"{FOLDER}/{name}") for name in (QEMU, "qemu-aarch64-static"))


def check(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def write(path, text):
    with open(path, "w", encoding="ascii") as f:
        f.write(text)


def enter_as_root(libc):
    """A namespace with all users and groups as they are outside: only who stays outside may say so."""
    ready, tell = os.pipe()
    here, helper = os.getpid(), os.fork()
    if helper == 0:
        os.close(tell)
        try:
            if os.read(ready, 1):
                for kind in ("uid_map", "gid_map"):
                    write(f"/proc/{here}/{kind}", "0 0 4294967295")
            os._exit(0)
        except OSError as error:
            print(f"emulated: {error}", file=sys.stderr)
            os._exit(1)
    os.close(ready)
    check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
    os.write(tell, b".")
    os.close(tell)
    if os.waitpid(helper, 0)[1] != 0:
        raise OSError("the users could not be mapped")


def map_own(inside, outside):
    write("/proc/self/setgroups", "deny")
    for kind, to, own in (("uid_map", inside[0], outside[0]), ("gid_map", inside[1], outside[1])):
        write(f"/proc/self/{kind}", f"{to} {own} 1")


def teach(qemu, already):
    libc = ctypes.CDLL(None, use_errno=True)
    own = (os.getuid(), os.getgid())
    if own[0] == 0:
        enter_as_root(libc)
    else:
        check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
        map_own((0, 0), own)
    with tempfile.NamedTemporaryFile("w", encoding="ascii") as info:
        info.write("".join(CPUINFO.format(number=i) for i in range(os.cpu_count())))
        info.flush()
        check(libc.mount(info.name.encode(), b"/proc/cpuinfo", None, MS_BIND, None), "an ARM processor's /proc/cpuinfo")
    if not already:
        check(libc.mount(b"none", FOLDER.encode(), b"binfmt_misc", 0, None), "mount of binfmt_misc")
        write(f"{FOLDER}/register", f":{QEMU}:M::{MAGIC}:{MASK}:{qemu}:OF")
    if own[0] != 0:  # and back: a namespace within it, in which the user is nobody else than outside
        check(libc.unshare(CLONE_NEWUSER), "unshare")
        map_own(own, (0, 0))


def main():
    qemu = shutil.which(QEMU)
    if not qemu:
        print(f"emulated: {QEMU} is not here (apt-get install qemu-user)")
        return 77
    try:
        teach(qemu, known())
    except OSError as error:
        print(f"emulated: the kernel does not start programs for ARM, and cannot learn it here ({error})")
        return 77
    os.environ.setdefault("QEMU_LD_PREFIX", PREFIX)
    os.environ.setdefault("QEMU_CPU", PROCESSOR)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
