"""The files for contributors agree with the tree: YAML and JSON that parse, scripts that exist, one version."""
import json
import os
import re
import subprocess
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
WORKFLOW = ".github/workflows/ci.yml"
YAML_FILES = [WORKFLOW, ".gitlab-ci.yml", ".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/wish.yml",
              ".github/ISSUE_TEMPLATE/config.yml"]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def parser_of_yaml():
    """A function from a file's path to what is in it, or nothing: PyYAML of this Python or of .venv."""
    try:
        import yaml
        return lambda path: yaml.safe_load(read(path))
    except ImportError:
        pass
    python = os.path.join(ROOT, ".venv", "bin", "python3")
    code = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1], encoding='utf-8')), sys.stdout, default=str)"
    if subprocess.run([python, "-c", "import yaml"], capture_output=True).returncode if os.path.exists(python) else 1:
        return None
    return lambda path: json.loads(subprocess.run([python, "-c", code, os.path.join(ROOT, path)], check=True,
                                                  capture_output=True, text=True).stdout)


def commands_of(node):
    """The command lines of a workflow: all that stands under 'run' or 'script', wherever that is."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("run", "script"):
                yield from ([value] if isinstance(value, str) else value)
            else:
                yield from commands_of(value)
    elif isinstance(node, list):
        for each in node:
            yield from commands_of(each)


def scripts_in(text):
    return re.findall(r"(?<![\w/.-])scripts/[\w/.-]+", text)


class Project(unittest.TestCase):
    def yaml(self, path):
        parse = parser_of_yaml()
        if parse is None:
            self.skipTest("PyYAML is in neither this Python nor .venv")
        return parse(path)

    def test_yaml_parses(self):
        for path in YAML_FILES:
            with self.subTest(path):
                self.assertIsInstance(self.yaml(path), dict)
        self.assertEqual(sorted(YAML_FILES[2:]), sorted(f".github/ISSUE_TEMPLATE/{name}" for name in
                                                        os.listdir(os.path.join(ROOT, ".github/ISSUE_TEMPLATE"))))

    def test_workflows_run_scripts_that_exist(self):
        for path in (WORKFLOW, ".gitlab-ci.yml"):
            lines = list(commands_of(self.yaml(path)))
            called = [script for line in lines for script in scripts_in(line)]
            self.assertGreater(len(called), 4, path)
            for script in called:
                self.assertTrue(os.access(os.path.join(ROOT, script), os.X_OK), f"{path} calls {script}")

    def test_a_workflow_has_every_part_of_the_full_test(self):
        parts = re.search(r"^ +([a-z |]+)\)\n +parts\+=", read("scripts/test"), re.M).group(1).split(" | ")
        self.assertEqual(self.yaml(WORKFLOW)["jobs"]["full"]["strategy"]["matrix"]["part"], parts)
        self.assertEqual(self.yaml(".gitlab-ci.yml")["full"]["parallel"]["matrix"][0]["PART"], parts)

    def test_steps_that_pages_name_exist(self):
        for path in ("SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/versioning.md",
                     ".github/PULL_REQUEST_TEMPLATE.md", ".devcontainer/devcontainer.json", ".devcontainer/Dockerfile"):
            for script in scripts_in(read(path)):
                self.assertTrue(os.path.exists(os.path.join(ROOT, script)), f"{path} names {script}")

    def test_one_version(self):
        version = re.search(r"^project\(Lockstep VERSION ([0-9.]+)", read("CMakeLists.txt"), re.M).group(1)
        top = re.search(r"^## \[([0-9.]+)\] - (unreleased|\d{4}-\d\d-\d\d)$", read("CHANGELOG.md"), re.M)
        self.assertIsNotNone(top, "the topmost entry of CHANGELOG.md is '## [N.N.N] - unreleased', or a date")
        self.assertEqual(top.group(1), version)
        minor = ".".join(version.split(".")[:2])
        self.assertIn(f"This is version {minor}", read("README.md"))

    def test_one_range_of_libtorch(self):
        script = read("scripts/lib/dependencies.sh")
        oldest, newest = (re.search(rf"^LOCKSTEP_TORCH_{which}=([0-9.]+)", script, re.M).group(1)
                          for which in ("OLDEST", "NEWEST"))
        self.assertIn(f"{oldest} to {newest}", read("docs/versioning.md"))
        self.assertIn(f"libtorch {oldest} to {newest}", read("CHANGELOG.md"))
        self.assertIn(f"{oldest} 到 {newest}", read("docs/zh/versioning.md"))

    def test_binary_interface(self):
        space = re.search(r"namespace lockstep::inline (v\d+)", read("lockstep/core/errors.h")).group(1)
        self.assertIn(f"namespace lockstep::inline {space}`", read("docs/versioning.md"))

    def test_the_container(self):
        json.loads(read(".devcontainer/devcontainer.json"))
        docker = read(".devcontainer/Dockerfile")
        for source in re.findall(r"scripts/[\w/.-]+\.sh", docker.split("RUN bash")[0]):
            self.assertTrue(os.path.exists(os.path.join(ROOT, source)), source)
        for function in ("install_packages", "lockstep_packages", "missing_packages"):
            self.assertIn(function, docker)
            self.assertIn(f"{function}()", read("scripts/lib/dependencies.sh"))

    def test_editors_wrap_where_the_formatter_does(self):
        limit = re.search(r"^ColumnLimit: (\d+)", read(".clang-format"), re.M).group(1)
        self.assertIn(f"[*.{{h,cpp}}]\nmax_line_length = {limit}\n", read(".editorconfig"))


if __name__ == "__main__":
    unittest.main()
