#!/usr/bin/env python3
"""The manifests of examples/schedulers/ are what Kubernetes, JobSet and Kubeflow's training operator take, and fit train.sh.

    tests/schedulers/manifests_test.py --bin build/release/bin

What a Job and a Pod may have is checked against Kubernetes' own schemas (PyPI's kubernetes-validate has them); what stands around
them against the schemas below, written down from the public definitions of jobset.x-k8s.io/v1alpha2 and kubeflow.org/v1: unknown
fields are refused. Exit status 77: kubernetes-validate is not there, or is too old for 1.34.
"""
import argparse
import copy
import os
import re
import subprocess
import sys
import unittest

try:
    import jsonschema
    import kubernetes_validate
    import yaml
except ImportError as missing:
    print(f"skipped: {sys.executable} cannot import {missing.name} (PyPI's kubernetes-validate brings it)")
    sys.exit(77)

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
FOLDER = os.path.join(ROOT, "examples", "schedulers")
KUBERNETES = "1.34"
bin_folder = None


def lacks_schemas():
    """Why the installed kubernetes-validate will not do; "": it does."""
    latest = kubernetes_validate.latest_version()
    if [int(part) for part in latest.split(".")[:2]] >= [int(part) for part in KUBERNETES.split(".")]:
        return ""
    return f"kubernetes-validate has schemas up to {latest}, and {KUBERNETES} is wanted (pip install 'kubernetes-validate>={KUBERNETES}')"


COUNT = {"type": "integer", "minimum": 0}
NAMES = {"type": "array", "items": {"type": "string"}}


def record(fields, required=()):
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def resource(version, kind, spec):
    return record({"apiVersion": {"const": version}, "kind": {"const": kind},
                   "metadata": record({"name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}, "namespace": {"type": "string"},
                                       "labels": {"type": "object"}, "annotations": {"type": "object"}}, ["name"]),
                   "spec": spec}, ["apiVersion", "kind", "metadata", "spec"])


JOBSET = resource("jobset.x-k8s.io/v1alpha2", "JobSet", record({
    "coordinator": record({"jobIndex": COUNT, "podIndex": COUNT, "replicatedJob": {"type": "string"}}, ["replicatedJob"]),
    "failurePolicy": record({
        "maxRestarts": COUNT,
        "restartStrategy": {"enum": ["Recreate", "BlockingRecreate", "InPlaceRestart"]},
        "rules": {"type": "array", "items": record({
            "name": {"type": "string"},
            "action": {"enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob", "RestartJobAndIgnoreMaxRestarts"]},
            "onJobFailureReasons": NAMES, "onJobFailureMessagePatterns": NAMES, "targetReplicatedJobs": NAMES}, ["action", "name"])}}),
    "managedBy": {"type": "string"},
    "network": record({"enableDNSHostnames": {"type": "boolean"}, "publishNotReadyAddresses": {"type": "boolean"}, "subdomain": {"type": "string"}}),
    "replicatedJobs": {"type": "array", "minItems": 1, "items": record({
        "name": {"type": "string"}, "groupName": {"type": "string"}, "replicas": COUNT,
        "dependsOn": {"type": "array", "maxItems": 5, "items": record({"name": {"type": "string"}, "status": {"enum": ["Ready", "Complete"]}},
                                                                     ["name", "status"])},
        "template": record({"metadata": {"type": "object"}, "spec": {"type": "object"}}, ["spec"])}, ["name", "template"])},
    "startupPolicy": record({"startupPolicyOrder": {"enum": ["AnyOrder", "InOrder"]}}, ["startupPolicyOrder"]),
    "successPolicy": record({"operator": {"enum": ["All", "Any"]}, "targetReplicatedJobs": NAMES}, ["operator"]),
    "suspend": {"type": "boolean"},
    "ttlSecondsAfterFinished": COUNT}, ["replicatedJobs"]))

REPLICAS = record({"replicas": COUNT, "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
                   "template": record({"metadata": {"type": "object"}, "spec": {"type": "object"}}, ["spec"])}, ["template"])
PYTORCHJOB = resource("kubeflow.org/v1", "PyTorchJob", record({
    "elasticPolicy": {"type": "object"},
    "nprocPerNode": {"type": "string"},
    "pytorchReplicaSpecs": record({"Master": REPLICAS, "Worker": REPLICAS}),
    "runPolicy": record({"activeDeadlineSeconds": COUNT, "backoffLimit": COUNT, "cleanPodPolicy": {"enum": ["Running", "All", "None"]},
                         "managedBy": {"type": "string"}, "schedulingPolicy": {"type": "object"}, "suspend": {"type": "boolean"},
                         "ttlSecondsAfterFinished": COUNT})}, ["pytorchReplicaSpecs"]))


def manifest(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as f:
        return yaml.safe_load(f)


def check_kubernetes(kind, version, spec):
    kubernetes_validate.validate({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}, KUBERNETES, strict=True)


def check_jobset(document):
    jsonschema.validate(document, JOBSET)
    for job in document["spec"]["replicatedJobs"]:
        check_kubernetes("Job", "batch/v1", job["template"]["spec"])
        check_kubernetes("Pod", "v1", job["template"]["spec"]["template"]["spec"])


def check_pytorchjob(document):
    jsonschema.validate(document, PYTORCHJOB)
    for replicas in document["spec"]["pytorchReplicaSpecs"].values():
        check_kubernetes("Pod", "v1", replicas["template"]["spec"])


REFUSED = (jsonschema.ValidationError, kubernetes_validate.ValidationError)


def variables(container):
    return {entry["name"]: entry.get("value") for entry in container["env"]}


class Manifests(unittest.TestCase):
    def test_the_jobset_is_one(self):
        check_jobset(manifest("jobset.yaml"))

    def test_the_pytorchjob_is_one(self):
        check_pytorchjob(manifest("pytorchjob.yaml"))

    def test_slips_are_refused(self):
        """Or the two above would show nothing."""
        def job(document):
            return document["spec"]["replicatedJobs"][0]["template"]["spec"]

        slips = [
            lambda d: d["spec"]["failurePolicy"].update(maxRestart=3),
            lambda d: d["spec"]["replicatedJobs"][0].pop("name"),
            lambda d: job(d).update(backoffLimt=1),
            lambda d: job(d)["podFailurePolicy"]["rules"][0].pop("action"),
            lambda d: job(d)["template"]["spec"]["containers"][0].update(livenessprobe={}),
            lambda d: job(d)["template"]["spec"].update(terminationGracePeriodSeconds="a minute"),
        ]
        for number, slip in enumerate(slips):
            document = copy.deepcopy(manifest("jobset.yaml"))
            slip(document)
            with self.assertRaises(REFUSED, msg=f"slip {number}"):
                check_jobset(document)
        for slip in (lambda d: d["spec"]["pytorchReplicaSpecs"]["Master"].update(restartPolicy="ExitCodes"), lambda d: d["spec"].update(nprocPerNode=4)):
            document = copy.deepcopy(manifest("pytorchjob.yaml"))
            slip(document)
            with self.assertRaises(REFUSED):
                check_pytorchjob(document)

    def pods(self):
        jobs = manifest("jobset.yaml")["spec"]["replicatedJobs"]
        yield from (job["template"]["spec"]["template"]["spec"] for job in jobs)
        yield from (replicas["template"]["spec"] for replicas in manifest("pytorchjob.yaml")["spec"]["pytorchReplicaSpecs"].values())

    def test_pods_have_time_to_save_probes_a_secret_file_and_shared_memory(self):
        stop_grace = int(re.search(r"stop_grace\{(\d+)'000\}", self.text("lockstep/launch/launch_options.h")).group(1))
        for pod in self.pods():
            container = pod["containers"][0]
            self.assertGreater(pod["terminationGracePeriodSeconds"], stop_grace)
            self.assertIn("startupProbe", container)
            self.assertIn("livenessProbe", container)
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            secret = volumes[mounts[os.path.dirname(variables(container)["LOCKSTEP_SECRET_FILE"])]]
            self.assertEqual(secret["secret"]["defaultMode"] & 0o077, 0, "Secret::from_env() would refuse it")
            self.assertEqual(volumes[mounts["/dev/shm"]]["emptyDir"]["medium"], "Memory")
            self.assertIn(variables(container)["OUTPUT"], container["startupProbe"]["exec"]["command"][-1])

    def text(self, path):
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            return f.read()

    def test_exit_codes_are_those_of_train_sh(self):
        code = int(re.search(r"REQUEUE_CODE:-(\d+)", self.text("examples/schedulers/train.sh")).group(1))
        rules = manifest("jobset.yaml")["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
        self.assertEqual({rule["action"]: rule["onExitCodes"]["values"] for rule in rules}, {"Ignore": [code], "FailJob": [2]})
        for replicas in manifest("pytorchjob.yaml")["spec"]["pytorchReplicaSpecs"].values():
            self.assertEqual(replicas["restartPolicy"], "ExitCode")
            self.assertGreaterEqual(int(variables(replicas["template"]["spec"]["containers"][0])["REQUEUE_CODE"]), 128, "the operator makes those anew")
        unit = self.text("examples/schedulers/train.service")
        self.assertIn(f"\nRestartForceExitStatus={code}\n", unit)
        self.assertIn(f"\nSuccessExitStatus={code}\n", unit)

    def test_the_words_of_lockstep_run_are_ones(self):
        for pod in self.pods():
            words = variables(pod["containers"][0])["RUN"].replace("$(HOST_INDEX)", "0").split()
            known = subprocess.run([os.path.join(bin_folder, "lockstep"), "run", "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
            for word in words:
                if word.startswith("--"):
                    self.assertRegex(known, rf"(^|\s){re.escape(word)}\b")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    options, rest = parser.parse_known_args()
    bin_folder = os.path.abspath(options.bin)
    if why := lacks_schemas():
        print("skipped:", why)
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
