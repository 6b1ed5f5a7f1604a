"""The manifests in examples/kubernetes: right by their schemas, and what they say forms jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from cluster_programs import PATIENT, WHO_IS_THERE
from launcher_tools import LIMIT_SECONDS, ROOT, environment, write_script
from network_namespaces import hosts

pytest.importorskip("tfring._native")
yaml = pytest.importorskip("yaml")

FOLDER = ROOT / "examples" / "kubernetes"
SECRET = "0123456789abcdef" * 4


def manifests():
    """All objects of the manifests, by kind."""
    files = [yaml.safe_load_all(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))]
    return {one["kind"]: one for objects in files for one in objects}


def container_of(job):
    (only,) = job["spec"]["template"]["spec"]["containers"]
    return only


def what_runs(job, index, addresses):
    """Arguments and variables of the container of one pod, as Kubernetes makes them."""
    container, variables = container_of(job), {}
    for one in container["env"]:
        source = one.get("valueFrom", {})
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == (
                "metadata.annotations['batch.kubernetes.io/job-completion-index']"
            )
            variables[one["name"]] = str(index)
        elif "secretKeyRef" in source:
            variables[one["name"]] = SECRET
        else:
            variables[one["name"]] = addresses.get(one["value"], one["value"])
    return container["command"], variables


def started(made, host, command, variables):
    return subprocess.Popen(
        [*made.inside(host), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables, **PATIENT),
    )


def finished(processes):
    """What was printed by the ranks, in their order; all have to end well."""
    said = []
    for process in processes:
        out, errors = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0, errors
        said += [json.loads(line[line.rindex("[") :]) for line in out.splitlines()]
    return sorted(said)


@pytest.fixture
def programs(tmp_path):
    """A folder with `train.py`, and `python` and `tfring` for the path."""
    write_script(tmp_path, WHO_IS_THERE, name="train.py")
    for name, command in (("python", sys.executable), ("tfring", f"{sys.executable} -m tfring")):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("Service", "IoK8sApiCoreV1Service"),
        ("Job", "IoK8sApiBatchV1Job"),
        ("TrainJob", "TrainerV1alpha1TrainJob"),
    ],
)
def test_manifests_are_right_by_their_schema(kind, model):
    """The models are made from the published OpenAPI documents of Kubernetes and the Trainer."""
    models = pytest.importorskip("kubeflow_trainer_api.models")
    manifest = manifests()[kind]
    # Values of a wrong type are an error, and fields that are not known get lost.
    read = getattr(models, model).from_dict(manifest)
    assert json.loads(read.to_json()) == manifest
    wrong = json.loads(json.dumps(manifest))
    wrong["spec"]["noSuchField"] = 1
    assert json.loads(getattr(models, model).from_dict(wrong).to_json()) == manifest


def test_the_parts_of_the_indexed_job_fit():
    service, job = manifests()["Service"], manifests()["Job"]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    assert service["spec"]["clusterIP"] == "None"  # one address per pod, not one for all
    name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    values = {one["name"]: one.get("value") for one in container_of(job)["env"]}
    assert values["WORLD_SIZE"] == str(spec["completions"])
    assert values["MASTER_ADDR"] == f"{name}-0.{pod['subdomain']}"
    volumes = {one["name"] for one in pod["volumes"]}
    assert volumes == {one["name"] for one in container_of(job)["volumeMounts"]}


def test_the_pods_of_the_indexed_job_form_a_job(programs):
    job = manifests()["Job"]
    ranks = job["spec"]["completions"]
    search = f"{programs}{os.pathsep}{os.environ['PATH']}"
    with hosts(ranks) as made:
        made.name_all(programs)
        processes = []
        for rank in range(ranks):
            command, variables = what_runs(job, rank, {"train-0.train": "h0"})
            command = ["env", f"--chdir={programs}", *command]
            processes.append(started(made, rank, command, {**variables, "PATH": search}))
        said = finished(processes)
    assert said == [[rank, ranks, 0, 1, 10, f"h{rank}"] for rank in range(ranks)]


def test_the_pods_of_the_trainer_form_a_job(programs):
    trainer = manifests()["TrainJob"]["spec"]["trainer"]
    nodes, ranks = 2, trainer["numProcPerNode"]
    assert '--nnodes "2:' in trainer["args"][0]
    variables = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(ranks),
        "PET_MASTER_ADDR": "h0",
        "PET_MASTER_PORT": "29500",
        "TFRING_SECRET": SECRET,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    command = ["env", f"--chdir={programs}", *trainer["command"], *trainer["args"]]
    with hosts(nodes) as made:
        made.name_all(programs)
        said = finished([started(made, node, command, variables) for node in range(nodes)])
    assert [one[:2] for one in said] == [[rank, 4] for rank in range(4)]
    assert [one[5] for one in said] in (["h0", "h0", "h1", "h1"], ["h1", "h1", "h0", "h0"])
