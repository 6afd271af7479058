"""Each check of scripts/ must fail on a small tree made to be wrong, and pass on one that is right."""
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))

# A tree that every check accepts: low <- high (libtorch), two neighbours in parallel/, comm with two backends.
GOOD = {
    "CMakeLists.txt": """
        add_subdirectory(lockstep/low)
        add_subdirectory(lockstep/comm)  # add_subdirectory(lockstep/none)
        add_subdirectory(lockstep/high)
        add_subdirectory(lockstep/parallel/left)
        add_subdirectory(lockstep/parallel/right)
        """,
    "lockstep/low/CMakeLists.txt": "lockstep_room(NAME low SOURCES a.cpp TESTS a_test.cpp MP_TESTS a_mp_test.cpp "
                                   "TEST_DEPENDS high)",
    "lockstep/low/a.h": "#include <string>\n",
    "lockstep/low/a.cpp": '#include "lockstep/low/a.h"\n',
    "lockstep/low/a_test.cpp": '#include "lockstep/low/a.h"\n#include "lockstep/high/b.h"\n',
    "lockstep/low/a_mp_test.cpp": "",
    "lockstep/comm/CMakeLists.txt": "lockstep_room(NAME comm SOURCES c.cpp shm/s.cpp gloo/g.cpp DEPENDS low TORCH)",
    "lockstep/comm/c.h": "#include <ATen/core/Tensor.h>\n",
    "lockstep/comm/c.cpp": '#include "lockstep/comm/shm/s.h"\n#include "lockstep/comm/gloo/g.h"\n',
    "lockstep/comm/shm/s.h": '#include "lockstep/comm/c.h"\n',
    "lockstep/comm/shm/s.cpp": '#include "lockstep/comm/shm/s.h"\n#include "lockstep/low/a.h"\n',
    "lockstep/comm/gloo/g.h": "",
    "lockstep/comm/gloo/g.cpp": "#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>\n",
    "lockstep/high/CMakeLists.txt": "lockstep_room(NAME high SOURCES b.cpp DEPENDS low TORCH)",
    "lockstep/high/b.h": "#include <torch/torch.h>\n",
    "lockstep/high/b.cpp": '#include "lockstep/low/a.h"\n',
    "lockstep/parallel/left/CMakeLists.txt": "lockstep_room(NAME left SOURCES l.cpp DEPENDS high TORCH)",
    "lockstep/parallel/left/l.h": "",
    "lockstep/parallel/left/l.cpp": '#include "lockstep/high/b.h"\n',
    "lockstep/parallel/right/CMakeLists.txt": "lockstep_room(NAME right SOURCES r.cpp DEPENDS high TORCH)",
    "lockstep/parallel/right/r.cpp": "",
    "lockstep/lockstep.h": '#include "lockstep/high/b.h"\n',
    "README.md": "[guide](docs/guide.md#the-first-step) ![p](docs/p.png) [web](https://example.org/none)\n`[x](no.md)`\n",
    "README.zh.md": "[guide](docs/zh/guide.md)\n",
    "docs/guide.md": "# The first step\n```cpp\n// from lockstep/high/b.h\n#include <torch/torch.h>\n```\n",
    "docs/zh/guide.md": "# 第一步\n```cpp\n// from lockstep/high/b.h\n#include <torch/torch.h>\n```\n",
    "docs/p.png": "",
}


class Checks(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="lockstep-checks-")
        self.addCleanup(shutil.rmtree, self.root)

    def write(self, **changes):
        """The good tree with some files replaced; a name is the path with '__' for '/' and '_dot_' for '.'."""
        files = dict(GOOD)
        for name, text in changes.items():
            files[name.replace("__", "/").replace("_dot_", ".")] = text
        for path, text in files.items():
            full = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as f:
                f.write(text)

    def run_check(self, name, *args):
        done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", name), "--root", self.root, *args],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def assert_refused(self, check, *expected):
        code, output = self.run_check(check)
        self.assertEqual(code, 1, output)
        for text in expected:
            self.assertIn(text, output)
        self.assertEqual(output.count("\n"), 2, f"one problem and the closing line were expected:\n{output}")

    def test_good_tree_passes(self):
        self.write()
        for check in ("check-arrows", "check-registration", "check-docs"):
            with self.subTest(check):
                self.assertEqual(self.run_check(check)[0], 0, self.run_check(check)[1])

    def test_table_of_variables(self):
        pair = {"docs__zh__environment_dot_md": "# 变量\n"}
        row = "# Variables\n| `LOCKSTEP_LOG` | x |\n"
        reads = 'auto x = env("LOCKSTEP_LOG");\n// LOCKSTEP_NOT_READ\n'
        self.write(lockstep__low__a_dot_cpp='#include "lockstep/low/a.h"\n' + reads, docs__environment_dot_md=row, **pair)
        self.assertEqual(self.run_check("check-docs")[0], 0, self.run_check("check-docs")[1])
        self.write(lockstep__low__a_dot_cpp='#include "lockstep/low/a.h"\n' + reads, docs__environment_dot_md="# Variables\n", **pair)
        self.assert_refused("check-docs", "lockstep/low/a.cpp:2: docs/environment.md does not list LOCKSTEP_LOG")
        self.write(docs__environment_dot_md=row, **pair)
        self.assert_refused("check-docs", "docs/environment.md: nothing reads LOCKSTEP_LOG")
        # The shell reads by ${NAME:-...}; tests' own variables are not listed.
        self.write(docs__environment_dot_md=row, scripts__lib__x_dot_sh="echo ${LOCKSTEP_LOG:-info} $LOCKSTEP_OTHER\n",
                   lockstep__low__a_test_dot_cpp='getenv("LOCKSTEP_UNLISTED");\n', **pair)
        self.assertEqual(self.run_check("check-docs")[0], 0, self.run_check("check-docs")[1])

    def test_exports(self):
        shutil.copytree(os.path.join(ROOT, "cmake"), os.path.join(self.root, "cmake"))
        marked = """
            namespace lockstep::inline v0 {
            LOCKSTEP_API int f(int a = g());  // int h();
            [[nodiscard]] LOCKSTEP_API const std::string& name();
            inline int g() { return 1; }
            template <typename T>
            T twice(T one);
            struct Options {
              std::function<void(int)> hook = nullptr;
              bool plain() const { return true; }
            };
            class [[nodiscard]] LOCKSTEP_API Work {
             public:
              void wait();
            };
            }  // namespace lockstep::inline v0
            """
        self.write(lockstep__high__b_dot_h=marked)
        self.assertEqual(self.run_check("check-exports")[0], 0, self.run_check("check-exports")[1])
        for wrong, problem in (("LOCKSTEP_API int f", "lockstep/high/b.h:3: int f() has no LOCKSTEP_API"),
                               ("LOCKSTEP_API const", "lockstep/high/b.h:4: [[nodiscard]] const std::string& name() has no LOCKSTEP_API"),
                               ("LOCKSTEP_API Work", "lockstep/high/b.h:12: class Work has no LOCKSTEP_API")):
            self.write(lockstep__high__b_dot_h=marked.replace(wrong, wrong.removeprefix("LOCKSTEP_API ")))
            self.assert_refused("check-exports", problem)

    def test_picture_of_the_rooms(self):
        self.write()
        self.assertEqual(self.run_check("draw-rooms"), (0, ""))
        with open(os.path.join(self.root, "docs/figures/rooms.svg"), encoding="utf-8") as f:
            picture = f.read()
        for room in ("low", "comm", "high", "left", "right"):
            self.assertIn(f">{room}</text>", picture)
        self.assertEqual(picture.count("<path "), 4, "comm and high to low, left and right to high")
        self.assertEqual(self.run_check("draw-rooms", "--check")[0], 0)
        self.write(lockstep__high__CMakeLists_dot_txt="lockstep_room(NAME high SOURCES b.cpp DEPENDS comm low TORCH)")
        code, output = self.run_check("draw-rooms", "--check")
        self.assertEqual(code, 1)
        self.assertIn("run scripts/draw-rooms", output)

    def test_picture_of_layers(self):
        self.write(lockstep__mesh__CMakeLists_dot_txt="lockstep_room(NAME mesh SOURCES m.cpp DEPENDS comm low TORCH)")
        self.assertEqual(self.run_check("draw-rooms"), (0, ""))
        with open(os.path.join(self.root, "docs/figures/rooms.svg"), encoding="utf-8") as f:
            picture = f.read()
        self.assertIn(">communication</text>", picture)
        self.assertEqual(picture.count("<path "), 5, "mesh to comm inside its layer")
        self.assertIn('font-size="10" fill="#56606f">low</text>', picture, "what another layer has is named")

    def test_layers_that_include_each_other(self):
        self.write(lockstep__launch__CMakeLists_dot_txt="lockstep_room(NAME launch SOURCES l.cpp DEPENDS comm)",
                   lockstep__mesh__CMakeLists_dot_txt="lockstep_room(NAME mesh SOURCES m.cpp DEPENDS launch TORCH)")
        code, output = self.run_check("draw-rooms")
        self.assertEqual(code, 1)
        self.assertIn("communication -> launching -> communication", output)

    # -- arrows

    def test_include_of_a_room_not_listed(self):
        self.write(lockstep__parallel__left__l_dot_cpp='#include "lockstep/high/b.h"\n#include "lockstep/low/a.h"\n')
        self.assert_refused("check-arrows", "lockstep/parallel/left/l.cpp:2: room left does not list low. Add it to DEPENDS "
                                            "in lockstep/parallel/left/CMakeLists.txt")

    def test_test_dependencies_are_for_tests_only(self):
        self.write(lockstep__low__a_dot_cpp='#include "lockstep/high/b.h"\n')
        self.assert_refused("check-arrows", "lockstep/low/a.cpp:1: room low does not list high")

    def test_upward_arrow(self):
        self.write(lockstep__comm__CMakeLists_dot_txt=GOOD["lockstep/comm/CMakeLists.txt"].replace("DEPENDS low",
                                                                                             "DEPENDS low high"))
        self.assert_refused("check-arrows", "room comm depends on high, which the top CMakeLists.txt adds later")

    def test_public_header_of_internal_one(self):
        self.write(lockstep__low__a_dot_h='#include "lockstep/low/internal/x.h"\n', lockstep__low__internal__x_dot_h="")
        self.assert_refused("check-arrows", "lockstep/low/a.h:1: a public header includes lockstep/low/internal/x.h, "
                            "which is not installed")

    def test_neighbours_in_parallel(self):
        self.write(lockstep__parallel__right__CMakeLists_dot_txt="lockstep_room(NAME right SOURCES r.cpp DEPENDS left TORCH)")
        self.assert_refused("check-arrows", "room right depends on its neighbour left")

    def test_unknown_room(self):
        self.write(lockstep__high__CMakeLists_dot_txt="lockstep_room(NAME high SOURCES b.cpp DEPENDS low atlantis TORCH)")
        self.assert_refused("check-arrows", "lockstep/high/CMakeLists.txt:1: room high names 'atlantis', which is no room")

    def test_a_test_belongs_to_the_room_that_lists_it(self):
        self.write(lockstep__low__deep_test_dot_cpp='#include "lockstep/high/b.h"\n')
        listed = GOOD["lockstep/high/CMakeLists.txt"].replace("SOURCES b.cpp", "SOURCES b.cpp TESTS ../low/deep_test.cpp")
        self.write(lockstep__high__CMakeLists_dot_txt=listed)
        self.assertEqual(self.run_check("check-arrows")[0], 0)
        self.assertEqual(self.run_check("check-registration")[0], 0)

    def test_torch_in_a_room_without_it(self):
        self.write(lockstep__low__a_dot_h="\n#include <ATen/core/Tensor.h>\n")
        self.assert_refused("check-arrows", "lockstep/low/a.h:2: room low is without libtorch")

    def test_torch_by_way_of_a_dependency(self):
        self.write(lockstep__high__CMakeLists_dot_txt="lockstep_room(NAME high SOURCES b.cpp DEPENDS low comm)",
                   lockstep__high__b_dot_h="", docs__guide_dot_md="# The first step\n",
                   lockstep__parallel__left__l_dot_cpp="", lockstep__parallel__right__r_dot_cpp="")
        self.assert_refused("check-arrows", "room high has no TORCH but depends on comm, which uses libtorch")

    def test_c10d_outside_comm(self):
        self.write(lockstep__high__b_dot_cpp="#include <torch/csrc/distributed/c10d/Store.hpp>\n")
        self.assert_refused("check-arrows", "lockstep/high/b.cpp:1: c10d is unversioned and stays inside lockstep/comm/")

    def test_relative_include(self):
        self.write(lockstep__low__a_dot_cpp='#include "a.h"\n')
        self.assert_refused("check-arrows", "lockstep/low/a.cpp:1: include own headers from the root of the tree")

    def test_umbrella_header_inside(self):
        self.write(lockstep__high__b_dot_cpp='#include "lockstep/lockstep.h"\n')
        self.assert_refused("check-arrows", "lockstep/high/b.cpp:1: the umbrella header is for users")

    def test_missing_header(self):
        self.write(lockstep__high__b_dot_cpp='#include "lockstep/low/gone.h"\n')
        self.assert_refused("check-arrows", "lockstep/high/b.cpp:1: there is no lockstep/low/gone.h")

    # -- registration

    def test_test_that_never_runs(self):
        self.write(lockstep__high__b_test_dot_cpp="")
        self.assert_refused("check-registration", "lockstep/high/b_test.cpp: list it under TESTS in lockstep/high/CMakeLists.txt")

    def test_rank_test_listed_as_a_plain_one(self):
        self.write(lockstep__high__b_mp_test_dot_cpp="",
                   lockstep__high__CMakeLists_dot_txt="lockstep_room(NAME high SOURCES b.cpp TESTS b_mp_test.cpp DEPENDS low TORCH)")
        self.assert_refused("check-registration", "lockstep/high/b_mp_test.cpp: list it under MP_TESTS")

    def test_commented_out_is_not_listed(self):
        self.write(lockstep__high__CMakeLists_dot_txt="lockstep_room(NAME high DEPENDS low TORCH SOURCES # b.cpp\n)")
        self.assert_refused("check-registration", "lockstep/high/b.cpp: lockstep/high/CMakeLists.txt does not name it")

    def test_folder_without_a_room(self):
        self.write(lockstep__attic__x_dot_cpp="")
        self.assert_refused("check-registration", "lockstep/attic/x.cpp: no room's CMakeLists.txt stands above it")

    # -- documents

    def test_dead_link(self):
        self.write(docs__zh__guide_dot_md=GOOD["docs/zh/guide.md"] + "[x](../gone.md)\n")
        self.assert_refused("check-docs", "docs/zh/guide.md:6: the link ../gone.md leads nowhere")

    def test_dead_anchor(self):
        self.write(README_dot_md="[x](docs/guide.md#the-second-step)\n")
        self.assert_refused("check-docs", "README.md:1: docs/guide.md has no heading #the-second-step")

    def test_page_without_translation(self):
        self.write(docs__new_dot_md="")
        self.assert_refused("check-docs", "docs/new.md: its counterpart docs/zh/new.md is missing")

    def test_quotation_out_of_date(self):
        self.write(lockstep__high__b_dot_h="#pragma once\n", docs__guide_dot_md="# One\n", docs__zh__guide_dot_md="# 一\n",
                   README_dot_md="", README_zh_dot_md="",
                   CONTRIBUTING_dot_md="```cpp\n// from lockstep/high/b.h\n#include <torch/torch.h>\n```\n")
        self.assert_refused("check-docs", "CONTRIBUTING.md:1: the passage differs from lockstep/high/b.h")

    def test_translation_with_other_headings(self):
        self.write(docs__zh__guide_dot_md="#" + GOOD["docs/zh/guide.md"])
        self.assert_refused("check-docs", "docs/guide.md:1: 'The first step' stands where docs/zh/guide.md:1 has the heading "
                                          "'第一步'")

    def test_translation_without_a_heading(self):
        self.write(docs__guide_dot_md=GOOD["docs/guide.md"] + "## The second step\n")
        self.assert_refused("check-docs", "docs/guide.md:6: 'The second step' stands where docs/zh/guide.md:end has the heading "
                                          "'nothing'")

    def test_translation_that_quotes_something_else(self):
        self.write(docs__zh__guide_dot_md="# 第一步\n")
        self.assert_refused("check-docs", "docs/guide.md: docs/zh/guide.md does not quote the same passage of "
                                          "lockstep/high/b.h")

    def test_comment_that_names_no_one(self):
        self.write(lockstep__low__a_dot_cpp="// Nobody waits.\n", lockstep__low__a_test_dot_cpp="// Nobody waits.\n")
        self.assert_refused("check-docs", "lockstep/low/a.cpp:1: 'Nobody': name the rank, the process or the caller that is "
                                          "meant")

    def test_page_that_names_no_one(self):
        self.write(README_dot_md="`nobody` may stand in code.\nThen nobody waits.\n", README_zh_dot_md="")
        self.assert_refused("check-docs", "README.md:2: 'nobody': name the rank, the process or the caller that is meant")

    # -- headers

    def test_header_that_leans_on_another(self):
        build = os.path.join(self.root, "build")
        os.makedirs(build)
        self.write(lockstep__low__a_dot_h="inline std::string name;\n")
        compiler = shutil.which(os.environ.get("CXX", "c++"))
        with open(os.path.join(build, "compile_commands.json"), "w", encoding="utf-8") as f:
            f.write(f'[{{"directory": "{build}", "command": "{compiler} -I{self.root} -std=c++20 -O3 '
                    f'-o lockstep/low/CMakeFiles/lockstep_low.dir/a.o -c {self.root}/lockstep/low/a.cpp", "file": "a.cpp"}}]')
        code, output = self.run_check("check-headers", "--build", build)
        self.assertEqual(code, 1, output)
        self.assertIn("lockstep/low/a.h does not compile alone", output)
        self.write()
        code, output = self.run_check("check-headers", "--build", build)
        self.assertEqual((code, output), (0, "ok: 1 headers\n"))

    # -- the interface for C

    def c_interface(self, change=lambda name, text: text):
        """The tree's own interface, with each file changed."""
        for name in ("c/base.h", "c/communicator.h", "c/model.h", "c/lockstep.h", "insitu/lockstep_insitu.h", "c/lockstep_c.symbols",
                     "c/lockstep_c.abi"):
            with open(os.path.join(ROOT, "lockstep", name), encoding="utf-8") as f:
                text = f.read()
            copy = os.path.join(self.root, "lockstep", name)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            with open(copy, "w", encoding="utf-8") as f:
                f.write(change(name, text))
        done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts/c-abi"), "--root", self.root], capture_output=True, text=True,
                              check=False)
        return done.returncode, done.stdout + done.stderr

    def test_interface_for_c(self):
        status, output = self.c_interface()
        self.assertIn(status, (0, 77), output)

    def test_constant_with_another_number(self):
        status, output = self.c_interface(lambda _, text: text.replace("LOCKSTEP_MAX = 4", "LOCKSTEP_MAX = 5"))
        self.assertEqual(status, 1)
        self.assertIn("LOCKSTEP_MAX=5 is declared, and not in lockstep_c.symbols", output)

    def test_type_of_the_interface_in_situ(self):
        status, output = self.c_interface(lambda _, text: text.replace("LOCKSTEP_INSITU_BOOL = 10", "LOCKSTEP_INSITU_BOOL = 11"))
        self.assertEqual(status, 1)
        self.assertIn("LOCKSTEP_INSITU_BOOL=11 is declared, and not in lockstep_c.symbols", output)

    def test_function_that_has_gone(self):
        status, output = self.c_interface(lambda name, text: text + ("lockstep_frobnicate 0.1.0\n" if name.endswith("symbols") else ""))
        self.assertEqual(status, 1)
        self.assertIn("lockstep_frobnicate is in lockstep_c.symbols, and no header declares it", output)

    @unittest.skipUnless(shutil.which("abidiff"), "abidiff is not here")
    def test_field_of_another_type(self):
        status, output = self.c_interface(lambda _, text: text.replace("int64_t* shape", "int32_t* shape"))
        self.assertEqual(status, 1)
        self.assertIn("the types of functions are not those of lockstep_c.abi", output)

    # -- formatting

    def test_formatting(self):
        bin_dir = os.path.join(self.root, "bin")
        os.makedirs(bin_dir)
        self.write()
        # Stands for clang-format 19, which says of a file with two spaces in a row what that one says.
        with open(os.path.join(bin_dir, "clang-format-19"), "w", encoding="utf-8") as f:
            f.write("""#!/bin/sh
if [ "$1" = --version ]; then echo "clang-format version 19.1.0"; exit; fi
[ "$1 $2" = "--dry-run --Werror" ] || exit 3
shift 2
status=0
for file; do
  if grep -q '[^ ]  ' "$file"; then
    echo "$file:1:1: error: code should be clang-formatted [-Wclang-format-violations]" >&2
    status=1
  fi
done
exit $status
""")
        os.chmod(f.name, os.stat(f.name).st_mode | stat.S_IXUSR)
        env = {**os.environ, "LOCKSTEP_CHECK_ROOT": self.root, "PATH": bin_dir + ":" + os.environ["PATH"]}
        check = [os.path.join(ROOT, "scripts", "check-format")]
        done = subprocess.run(check, env=env, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(self.root, "lockstep/low/a.h"), "a", encoding="utf-8") as f:
            f.write("int  x;\n")
        done = subprocess.run(check, env=env, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("lockstep/low/a.h is not formatted\n1 of", done.stdout)


class Quickstart(unittest.TestCase):
    """A compiler or libtorch that is too old is one line, and exit code 2, before anything is compiled."""

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="lockstep-checks-")
        self.addCleanup(shutil.rmtree, self.root)

    def ask(self, function, **env):
        script = f'set -euo pipefail; source "{ROOT}/scripts/lib/common.sh"; source "{ROOT}/scripts/lib/dependencies.sh"; {function}'
        done = subprocess.run(["bash", "-c", script, "quickstart"], env={**os.environ, **env}, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_compilers(self):
        compiler = os.path.join(self.root, "c++")
        for says, version, code in (("Debian clang version 14.0.6", "14.0.6", 2), ("clang version 16.0.0", "16.0.0", 0),
                                    ("g++ (Debian 10.2.1-6) 10.2.1", "10", 2), ("g++ (Debian 12.2.0-14) 12.2.0", "12", 0)):
            with open(compiler, "w", encoding="utf-8") as f:
                f.write(f'#!/bin/sh\nif [ "$1" = -dumpversion ]; then echo "{version}"; else echo "{says}"; fi\n')
            os.chmod(compiler, 0o755)
            got, output = self.ask("check_versions", CXX=compiler)
            self.assertEqual(got, code, output)
            if code:
                self.assertIn(f"needs g++ 11 or clang 16, or newer; {compiler} is version {version}.", output)

    def test_a_fresh_clone_is_built(self):
        """The first command on a machine that has the dependencies and nothing of a former build."""
        for name in ("scripts", "CMakePresets.json"):
            (shutil.copytree if os.path.isdir(os.path.join(ROOT, name)) else shutil.copy)(os.path.join(ROOT, name), os.path.join(self.root, name))
        programs = os.path.join(self.root, "programs")
        os.mkdir(programs)
        for name, does in (("cmake", 'if [ "$1" = --version ]; then echo "cmake version 3.25.1"; else touch build/release/build.ninja; fi'),
                           ("ninja", 'echo "@1/1@ c++"')):
            with open(os.path.join(programs, name), "w", encoding="utf-8") as f:
                f.write(f"#!/bin/sh\n{does}\n")
            os.chmod(os.path.join(programs, name), 0o755)
        torch = os.path.join(ROOT, ".venv/lib")
        torch = [os.path.join(folder, "torch") for folder, names, _ in os.walk(torch) if os.path.basename(folder) == "site-packages" and
                 "torch" in names]
        libtorch = os.environ.get("LOCKSTEP_LIBTORCH") or (torch[0] if torch else "")
        if not libtorch:
            self.skipTest("no libtorch in .venv and no LOCKSTEP_LIBTORCH")
        done = subprocess.run(["bash", os.path.join(self.root, "scripts/quickstart"), "--build-only"], capture_output=True, text=True, check=False,
                              env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "LOCKSTEP_LIBTORCH": libtorch})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("Configuring build/release\n", done.stdout)
        self.assertIn("build/release/bin/lockstep is there", done.stdout)

    def test_no_script_ends_without_a_word(self):
        got, output = self.ask("inner() { false; }; inner; echo not reached")
        self.assertEqual(got, 1)
        self.assertIn("this failed with exit code 1: false", output)
        self.assertNotIn("not reached", output)

    def test_how_long_it_will_take(self):
        for asked, said in (("4 111 60", ""), ("30 60 9", ""), ("10 100 20", ", about 3 min left"), ("50 100 180", ", about 3 min left"),
                            ("90 100 180", ", less than a minute left")):
            self.assertEqual(self.ask(f"time_left {asked}"), (0, said))

    def test_python_programs_find_numpy(self):
        """Into a .venv that lacks it, and into no other Python."""
        python = os.path.join(self.root, ".venv/bin/python")
        os.makedirs(os.path.dirname(python))
        asked = os.path.join(self.root, "asked")

        def ask(folder, has_it, pip=0):
            with open(python, "w", encoding="utf-8") as f:
                f.write(f'#!/bin/sh\nif [ "$1" = -c ]; then exit {0 if has_it else 1}; fi\necho "$*" >>"{asked}"\nexit {pip}\n')
            os.chmod(python, 0o755)
            open(asked, "w", encoding="utf-8").close()
            code, output = self.ask(f'ROOT="{self.root}"; TORCH_FOLDER="{folder}"; ensure_python_packages')
            self.assertEqual(code, 0, output)
            with open(asked, encoding="utf-8") as f:
                return f.read(), output

        ours = os.path.join(self.root, ".venv/lib/python3.11/site-packages/torch")
        self.assertRegex(ask(ours, False)[0], r"^-m pip install .*\bnumpy\b")
        self.assertEqual(ask(ours, True), ("", ""))
        self.assertEqual(ask("/usr/lib/python3/dist-packages/torch", False), ("", ""))
        self.assertIn("pip could not install numpy", ask(ours, False, pip=1)[1])

    # -- libtorch: folders that look like one, whose headers say a version

    def libtorch(self, version, header="headeronly/version.h", libraries=("torch_cpu", "c10")):
        torch = os.path.join(self.root, f"libtorch-{version}-{header.split('/')[0]}")
        numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
        for path, text in ((f"include/torch/{header}", "".join(f"#define TORCH_VERSION_{name} {number}\n" for name, number in numbers)),
                           ("include/torch/csrc/api/include/torch/torch.h", ""),
                           *((f"lib/lib{name}.so", "") for name in libraries)):
            os.makedirs(os.path.dirname(os.path.join(torch, path)), exist_ok=True)
            with open(os.path.join(torch, path), "w", encoding="utf-8") as f:
                f.write(text)
        return torch

    def cmake(self, *arguments):
        """What CMake prints, with its line breaks taken out."""
        done = subprocess.run(["cmake", *arguments], capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def find_torch(self, torch, *arguments):
        return self.cmake(f"-DLOCKSTEP_LIBTORCH={torch}", *arguments, "-P", os.path.join(ROOT, "cmake", "LockstepTorch.cmake"))[1]

    def test_versions_of_libtorch(self):
        """The script and CMake take the same ones, and say what they found and what they take."""
        for version, header in (("2.5.1", "csrc/api/include/torch/version.h"), ("2.10.2", "headeronly/version.h"),
                                ("2.16.0", "headeronly/version.h"), ("3.12.0", "headeronly/version.h")):
            torch = self.libtorch(version, header)
            code, output = self.ask("ensure_libtorch", LOCKSTEP_LIBTORCH=torch)
            self.assertEqual(code, 2, output)
            self.assertIn(f"LOCKSTEP_LIBTORCH={torch} is libtorch {version}; Lockstep needs 2.11 to 2.15.", output)
            self.assertIn(f"Lockstep needs libtorch 2.11 to 2.15 (C++ interfaces change between releases); {torch} is '{version}'",
                          self.find_torch(torch))
        for version in ("2.11.0", "2.12.3", "2.13.0", "2.14.1", "2.15.0"):
            torch = self.libtorch(version)
            self.assertEqual(self.ask('ensure_libtorch; echo "$TORCH_FOLDER"', LOCKSTEP_LIBTORCH=torch), (0, torch + "\n"))
            self.assertIn(f"-- libtorch {version}: {torch} (CUDA: OFF)", self.find_torch(torch))

    def test_package_takes_the_releases_it_is_installed_for(self):
        package = os.path.join(self.root, "lib", "cmake", "lockstep")
        for minor in ("2.13", "2.14"):
            os.makedirs(os.path.join(package, f"torch-{minor}"))
            with open(os.path.join(package, f"torch-{minor}", "lockstepBuild.cmake"), "w", encoding="utf-8"):
                pass
        with open(os.path.join(self.root, "find.cmake"), "w", encoding="utf-8") as f:
            f.write(f"""cmake_minimum_required(VERSION 3.22)
include(CMakePackageConfigHelpers)
configure_package_config_file("{ROOT}/cmake/lockstepConfig.cmake.in" "{package}/lockstepConfig.cmake"
                              INSTALL_DESTINATION lib/cmake/lockstep INSTALL_PREFIX "{self.root}" NO_SET_AND_CHECK_MACRO)
configure_file("{ROOT}/cmake/LockstepTorch.cmake" "{package}/LockstepTorch.cmake" COPYONLY)
find_package(lockstep REQUIRED PATHS "{self.root}" NO_DEFAULT_PATH)
""")
        for version in ("2.12.3", "2.15.0"):
            torch = self.libtorch(version)
            code, output = self.cmake(f"-DLOCKSTEP_LIBTORCH={torch}", "-P", f.name)
            self.assertEqual(code, 1, output)
            self.assertIn("Lockstep needs libtorch 2.13 or 2.14, for which it is installed here (C++ interfaces change between releases); "
                          f"{torch} is '{version}'", output)
        torch = self.libtorch("2.14.1")
        self.assertIn(f"-- libtorch 2.14.1: {torch} (CUDA: OFF)", self.cmake(f"-DLOCKSTEP_LIBTORCH={torch}", "-P", f.name)[1])
        # The one of an earlier find_package(Torch) comes before the one that was installed with it.
        torch = self.libtorch("2.13.1")
        os.makedirs(os.path.join(self.root, "libexec", "lockstep", "torch-2.14"))
        os.symlink(self.libtorch("2.14.0"), os.path.join(self.root, "libexec", "lockstep", "torch-2.14", "libtorch"))
        self.assertIn(f"-- libtorch 2.13.1: {torch} (CUDA: OFF)", self.cmake(f"-DTORCH_INSTALL_PREFIX={torch}", "-P", f.name)[1])
        self.assertIn("-- libtorch 2.14.0:", self.cmake("-P", f.name)[1])

    def test_cuda_half_without_its_libraries(self):
        """LOCKSTEP_CUDA=LINK makes a program that names libtorch_cuda.so, though nothing here could load it."""
        compiler = shutil.which(os.environ.get("CXX", "c++"))
        torch = self.libtorch("2.13.0", libraries=("torch_cpu", "c10", "torch_cuda", "c10_cuda"))
        source = os.path.join(self.root, "library.cpp")

        def library(name, *needs):
            subprocess.run([compiler, "-shared", "-fPIC", "-o", f"{torch}/lib/lib{name}.so", source, f"-Wl,-soname,lib{name}.so,--no-as-needed",
                            *(f"{torch}/lib/lib{need}.so" for need in needs)], check=True)

        with open(source, "w", encoding="utf-8") as f:
            f.write("void elsewhere(); void here() { elsewhere(); }\n")
        for name, *needs in (("gone",), ("c10",), ("torch_cpu",), ("c10_cuda", "gone"), ("torch_cuda", "gone")):
            library(name, *needs)
        os.remove(f"{torch}/lib/libgone.so")

        self.assertIn("-- libtorch's CUDA half is left out: it lacks", self.find_torch(torch))
        self.assertIn("LOCKSTEP_CUDA is ON, but libtorch_cuda.so lacks", self.find_torch(torch, "-DLOCKSTEP_CUDA=ON"))
        self.assertIn("LOCKSTEP_CUDA is 'YES'; it takes AUTO, ON, OFF or LINK", self.find_torch(torch, "-DLOCKSTEP_CUDA=YES"))
        self.assertIn("(CUDA: OFF)", self.find_torch(torch, "-DLOCKSTEP_CUDA=OFF"))
        self.assertIn("LOCKSTEP_CUDA is LINK, but", self.find_torch(self.libtorch("2.14.0"), "-DLOCKSTEP_CUDA=LINK"))

        library("gone")
        library("torch_cpu", "gone")
        os.remove(f"{torch}/lib/libgone.so")
        self.assertIn("cannot be loaded, for it lacks", self.find_torch(torch))
        project = os.path.join(self.root, "program")
        os.makedirs(project)
        with open(os.path.join(project, "CMakeLists.txt"), "w", encoding="utf-8") as f:
            f.write(f"""cmake_minimum_required(VERSION 3.22)
project(program LANGUAGES CXX)
include("{ROOT}/cmake/LockstepTorch.cmake")
file(WRITE main.cpp "int main() {{}}")
add_executable(program main.cpp)
target_link_libraries(program PRIVATE Lockstep::torch)
""")
        build = os.path.join(project, "build")
        for arguments in (("-S", project, "-B", build, f"-DCMAKE_CXX_COMPILER={compiler}", f"-DLOCKSTEP_LIBTORCH={torch}",
                           "-DLOCKSTEP_CUDA=LINK"), ("--build", build)):
            code, output = self.cmake(*arguments)
            self.assertEqual(code, 0, output)
        needs = subprocess.run(["ldd", os.path.join(build, "program")], capture_output=True, text=True, check=False).stdout
        self.assertIn(f"libtorch_cuda.so => {torch}", needs)
        self.assertIn("libgone.so => not found", needs)


if __name__ == "__main__":
    unittest.main(verbosity=2)
