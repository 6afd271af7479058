# A recipe for Spack: put this folder into a repository as packages/lockstep/, then `spack install lockstep`.
from spack.package import *


class Lockstep(CMakePackage):
    """Distributed training for C++ on libtorch: communicators, DistributedDataParallel, ZeRO, tensor and pipeline parallelism,
    checkpoints, a trainer, a launcher."""

    license("Apache-2.0", checked_by="lockstep")

    # From a clone: spack dev-build lockstep@0.1.0. There is no public archive yet.
    version("0.1.0")

    variant("shared", default=True, description="Build one shared library instead of static ones")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("openssl@3:")
    depends_on("zlib-api")
    depends_on("xxhash", type="build")
    depends_on("nlohmann-json@3.10:", type=("build", "link"))
    depends_on("cli11@2.1:", type="build")
    # C++ interfaces change between releases of libtorch: what is built keeps to the one it was built with.
    depends_on("py-torch@2.11:2.15", type=("build", "link", "run"))
    depends_on("python@3.9:", type=("build", "run"))

    conflicts("%gcc@:10", msg="Lockstep is C++20 and needs g++ 11 or newer")
    conflicts("%clang@:15", msg="Lockstep is C++20 and needs clang 16 or newer")

    generator("ninja")

    @property
    def libtorch(self):
        return join_path(self["py-torch"].prefix, self.spec["python"].package.platlib, "torch")

    def cmake_args(self):
        return [
            self.define("LOCKSTEP_LIBTORCH", self.libtorch),
            self.define("LOCKSTEP_BUILD_TESTS", False),
            self.define("LOCKSTEP_BUILD_EXAMPLES", False),
            self.define("LOCKSTEP_WERROR", False),
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
        ]

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(join_path(self.prefix.bin, "lockstep"))("doctor")
