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


def map_ids(process, user, group):
    """As they are outside: all of them for root, and for others their own."""
    count = 4294967295 if user == 0 else 1
    if user != 0:
        with open(f"/proc/{process}/setgroups", "w", encoding="ascii") as f:
            f.write("deny")
    for kind, own in (("uid_map", user), ("gid_map", group)):
        first = 0 if user == 0 else own
        with open(f"/proc/{process}/{kind}", "w", encoding="ascii") as f:
            f.write(f"{first} {first} {count}")


def teach(qemu, already):
    libc = ctypes.CDLL(None, use_errno=True)
    user, group, here = os.getuid(), os.getgid(), os.getpid()
    ready, tell = os.pipe()
    helper = os.fork()  # outside of the new namespace, as who may write the maps
    if helper == 0:
        os.close(tell)
        try:
            if os.read(ready, 1):
                map_ids(here, user, group)
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
    with tempfile.NamedTemporaryFile("w", encoding="ascii") as info:
        info.write("".join(CPUINFO.format(number=i) for i in range(os.cpu_count())))
        info.flush()
        check(libc.mount(info.name.encode(), b"/proc/cpuinfo", None, MS_BIND, None), "an ARM processor's /proc/cpuinfo")
    if already:
        return
    check(libc.mount(b"none", FOLDER.encode(), b"binfmt_misc", 0, None), "mount of binfmt_misc")
    with open(f"{FOLDER}/register", "w", encoding="ascii") as f:
        f.write(f":{QEMU}:M::{MAGIC}:{MASK}:{qemu}:OF")


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
