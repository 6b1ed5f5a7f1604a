"""Manifests of `tfring manifest`: they match their schemas, and they form jobs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import jsonschema
import pytest
from cluster_programs import WHO_IS_THERE
from fake_cluster import SECRET, cluster
from launcher_tools import LIMIT_SECONDS, ROOT, environment, start_command, write_script
from two_hosts import inside, two_hosts

pytest.importorskip("tfring.runtime._native")

from tfring.launch.cli import main

yaml = pytest.importorskip("yaml")
FOLDER = ROOT / "examples" / "kubernetes"
SHAPES = {
    "plain": ["--nnodes", "4"],
    "wide": [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "4",
        "--pod-gpus",
        "4",
        "--pod-cpus",
        "32",
        "--pod-memory",
        "64Gi",
        "--claim",
        "checkpoints:/checkpoints",
        "-x",
        "EPOCHS=3",
        "--namespace",
        "team",
    ],
    "elastic": ["--nnodes", "2:4", "--nproc-per-node", "2", "--max-restarts", "7"],
}


def record(required, **properties):
    """The schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


WHOLE = {"type": "integer", "minimum": 0}
POSITIVE = {"type": "integer", "minimum": 1}


def replica(**count):
    restart = {"enum": ["Never", "OnFailure"]}
    return record(
        ["template"],
        replicas={**POSITIVE, **count},
        restartPolicy=restart,
        template={"type": "object"},  # a pod's: checked by the schema of Kubernetes
    )


# No package has the schema of MPIJob v2beta1: this is the operator's CustomResourceDefinition.
MPIJOB = record(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "kubeflow.org/v2beta1"},
    kind={"const": "MPIJob"},
    metadata={"type": "object"},
    spec=record(
        ["mpiReplicaSpecs"],
        slotsPerWorker=POSITIVE,
        runLauncherAsWorker={"type": "boolean"},
        sshAuthMountPath={"type": "string"},
        launcherCreationPolicy={"enum": ["AtStartup", "WaitForWorkersReady"]},
        mpiImplementation={"enum": ["OpenMPI", "Intel", "MPICH"]},
        mpiReplicaSpecs=record(["Launcher"], Launcher=replica(maximum=1), Worker=replica()),
        runPolicy=record(
            [],
            cleanPodPolicy={"enum": ["None", "Running", "All"]},
            ttlSecondsAfterFinished=WHOLE,
            activeDeadlineSeconds=WHOLE,
            backoffLimit=WHOLE,
            suspend={"type": "boolean"},
            managedBy={"type": "string"},
            schedulingPolicy={"type": "object"},
        ),
    ),
)


def printed(capsys, kind, *words):
    """The objects of a manifest, by kind."""
    given = ["manifest", "--kind", kind, "--image", "registry.example.com/train:1", *words]
    assert main([*given, "python", "train.py"]) == 0, capsys.readouterr().err
    return {one["kind"]: one for one in yaml.safe_load_all(capsys.readouterr().out)}


def pod_of(job):
    return job["spec"]["template"]["spec"]


def check(model, value):
    """The models are made from the published OpenAPI documents of Kubernetes and the Trainer.

    Values of a wrong type are an error, and unknown fields get lost.
    """
    read = getattr(pytest.importorskip("kubeflow_trainer_api.models"), model).from_dict(value)
    assert json.loads(read.to_json()) == value


@pytest.mark.parametrize("shape", SHAPES)
def test_objects_are_right_by_their_schemas(capsys, shape):
    made = printed(capsys, "indexed", *SHAPES[shape])
    assert sorted(made) == ["Job", "Service"]
    check("IoK8sApiCoreV1Service", made["Service"])
    check("IoK8sApiBatchV1Job", made["Job"])
    made = printed(capsys, "trainer", *SHAPES[shape])
    assert sorted(made) == ["ClusterTrainingRuntime", "TrainJob"]
    check("TrainerV1alpha1ClusterTrainingRuntime", made["ClusterTrainingRuntime"])
    check("TrainerV1alpha1TrainJob", made["TrainJob"])
    [job] = printed(capsys, "mpijob", *SHAPES[shape]).values()
    jsonschema.validate(job, MPIJOB)
    for one in job["spec"]["mpiReplicaSpecs"].values():
        check("IoK8sApiCoreV1PodTemplateSpec", one["template"])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_parts_of_an_indexed_job_fit(capsys, shape):
    """Rules that Kubernetes checks, or takes silently, and that no schema has."""
    made = printed(capsys, "indexed", *SHAPES[shape])
    service, job, pod = made["Service"], made["Job"], pod_of(made["Job"])
    spec, name = job["spec"], job["metadata"]["name"]
    assert job["metadata"] == service["metadata"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert pod["subdomain"] == name
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    assert pod["restartPolicy"] == "Never"  # or there may be no podFailurePolicy
    [container] = pod["containers"]
    for rule in spec["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            assert rule["onExitCodes"]["containerName"] == container["name"]
            assert 0 not in rule["onExitCodes"]["values"]
    rules = {
        tuple(r.get("onExitCodes", {}).get("values", ["lost"])): r["action"]
        for r in spec["podFailurePolicy"]["rules"]
    }
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["TFRING_STOPPED_EXIT_CODE"] == "75"
    assert rules[75, 76, 77] == rules["lost",] == "Ignore"
    elastic = shape == "elastic"  # a pod that comes too late ends with 2 there, and may start again
    assert rules.get((2,)) == (None if elastic else "FailJob")
    assert spec.get("successPolicy") == (
        {"rules": [{"succeededIndexes": "0"}]} if elastic else None
    )
    assert {v["name"] for v in pod["volumes"]} == {m["name"] for m in container["volumeMounts"]}
    stop = container["command"][container["command"].index("--stop-timeout") + 1]
    assert 0 < int(stop) < pod["terminationGracePeriodSeconds"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0


# Arguments that YAML or Kubernetes would change.
ODD_WORDS = (
    "1e-3",
    "+.5e3",
    "0o17",
    "09",
    "0x1F",
    "-0b11",
    "1_0.5",
    "1e5_0",
    "2024-1-2",
    ".inf",
    "12",
    "y",
    "N",
    "no",
    "~",
    "",
    " a ",
    "it's",
    'say "so"',
    "a\nb: [",
    "# no",
    "- x",
    "{}",
    "a\\nb",
    "$(TFRING_SECRET)",
    "$$5",
    "$HOME",
    "$$(A)",
    "\ttab",
    "\x07",
    "\u2028",
    "Zo\u00eb",
)


@pytest.mark.parametrize("kind", ["indexed", "trainer", "mpijob"])
def test_odd_words_reach_the_program_as_they_are(capsys, kind):
    """As Kubernetes reads the manifest; it takes more words for numbers than PyYAML."""
    values = [word for number, odd in enumerate(ODD_WORDS) for word in ("-x", f"V{number}={odd}")]
    given = ["manifest", "--kind", kind, "--image", "a/b@sha256:0", "--nnodes", "2", *values]
    assert main([*given, "python", "train.py", *ODD_WORDS]) == 0
    text = capsys.readouterr().out
    comment = text.splitlines()[0].removeprefix("# ")
    words = run_bash(f"printf '%s\\0' {comment}").split("\0")[:-1]
    assert words == ["tfring", *given, "python", "train.py", *ODD_WORDS]
    found = 0
    for value in dictionaries(list(yaml.load_all(text, Loader=YamlOfKubernetes))):
        if "command" in value and "train.py" in value["command"]:
            after = value["command"].index("train.py") + 1
            assert tuple(map(expanded, value["command"][after:])) == ODD_WORDS
            found += 1
        if "env" in value and any(one["name"] == "V0" for one in value["env"]):
            said = {one["name"]: one.get("value") for one in value["env"]}
            odd = tuple(expanded(said[f"V{number}"]) for number in range(len(ODD_WORDS)))
            assert odd == ODD_WORDS
            found += 1
    assert found >= 2


class YamlOfKubernetes(yaml.SafeLoader):
    """Reads numbers and truth values as the YAML of Go does, besides PyYAML's."""


YamlOfKubernetes.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"(?:[-+]?0o?[0-7_]+|[0-9_]+)\Z"), [*"-+0123456789"]
)
YamlOfKubernetes.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9_]+|[0-9_]+(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?\Z"),
    [*"-+.0123456789"],
)
YamlOfKubernetes.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]\Z"), [*"yYnN"])


def run_bash(command):
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, text=True)
    return done.stdout


def dictionaries(value):
    """All dictionaries in an object."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from dictionaries(inner)


def expanded(text):
    """Expands $(NAME) in a word of a command or a variable, as Kubernetes does."""
    assert isinstance(text, str), text
    return re.sub(r"\$\$|\$\(\w+\)", lambda m: "$" if m[0] == "$$" else "replaced", text)


EXAMPLES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_what_their_first_line_prints(capsys, path):
    words = shlex.split(path.read_text().splitlines()[0].removeprefix("# tfring "))
    assert main(words) == 0
    assert capsys.readouterr().out == path.read_text()


def test_the_command_in_the_readme_prints_a_job(capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", "")
    [line] = [line for line in text.splitlines() if line.startswith("tfring manifest")]
    words, arrow, file = line.removeprefix("tfring ").partition(" > ")
    assert arrow and f"kubectl apply -f {file}\n" in text
    assert main(shlex.split(words)) == 0
    made = {one["kind"]: one for one in yaml.safe_load_all(capsys.readouterr().out)}
    check("IoK8sApiBatchV1Job", made["Job"])
    check("IoK8sApiCoreV1Service", made["Service"])
    [container] = pod_of(made["Job"])["containers"]
    assert container["command"][-2:] == ["python", "train.py"]
    secret = container["env"][-1]["valueFrom"]["secretKeyRef"]
    made_by = f"kubectl create secret generic {secret['name']} --from-literal={secret['key']}="
    assert made_by in text


def what_runs(container, variables):
    """The command and variables of a container; the cluster provides some of the variables."""
    found = dict(variables)
    for one in container.get("env", ()):
        found[one["name"]] = SECRET if "valueFrom" in one else one["value"]
    return container["command"], found


def who_is_there(processes):
    lines = []
    for process in processes:
        out, errors = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0, errors
        lines += out.splitlines()
    return sorted(json.loads(line[line.rindex("[") :]) for line in lines if "[" in line)


TWO_PODS = ("--nnodes", "2", "--nproc-per-node", "2", "--no-merge-lines")


def test_the_pods_of_an_indexed_job_form_a_job(capsys, tmp_path):
    job = printed(capsys, "indexed", *TWO_PODS, "--job-name", "train")["Job"]
    write_script(tmp_path, WHO_IS_THERE, name="train.py")
    with cluster(2, tmp_path) as made:
        [container] = pod_of(job)["containers"]
        pods = []
        for index in range(job["spec"]["completions"]):
            command, variables = what_runs(container, {})
            pods.append(made.start(index, command, **variables))
            made.publish(index)
        said = who_is_there(pods)
    assert said == [[rank, 4, rank % 2, 2, 10, f"train-{rank // 2}"] for rank in range(4)]


def test_the_pods_of_the_trainer_form_a_job(capsys, tmp_path):
    made = printed(capsys, "trainer", *TWO_PODS)
    run, runtime = made["TrainJob"]["spec"]["trainer"], made["ClusterTrainingRuntime"]["spec"]
    [step] = runtime["template"]["spec"]["replicatedJobs"]
    [container] = pod_of(step["template"])["containers"]
    write_script(tmp_path, WHO_IS_THERE, name="train.py")
    with cluster(2, tmp_path, job="train-node-0") as machines:
        pods = []
        for index in range(run["numNodes"]):
            given = {
                "PET_NNODES": str(run["numNodes"]),
                "PET_NPROC_PER_NODE": str(run["numProcPerNode"]),
                "PET_NODE_RANK": str(index),
                "PET_MASTER_ADDR": "train-node-0-0.train",
                "PET_MASTER_PORT": "29500",
            }
            _, variables = what_runs(container, given)
            pods.append(machines.start(index, run["command"], **variables))
            machines.publish(index)
        said = who_is_there(pods)
    assert said == [[rank, 4, rank % 2, 2, 10, f"train-node-0-{rank // 2}"] for rank in range(4)]


@pytest.mark.parametrize("words", [TWO_PODS, ["--nnodes", "1:2", "--no-merge-lines"]])
def test_the_launcher_of_an_mpijob_reaches_its_workers(capsys, tmp_path, words):
    """With the files that the operator mounts, and a fake ssh."""
    [job] = printed(capsys, "mpijob", *words, "-x", "EPOCHS=3").values()
    slots = job["spec"]["slotsPerWorker"]
    [container] = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    script = WHO_IS_THERE.replace("world.init()", 'world.init(); assert os.environ["EPOCHS"]')
    write_script(tmp_path, script, name="train.py")
    with two_hosts(tmp_path) as (made, path):
        names = [made.address(0), made.address(1)]
        (tmp_path / "hostfile").write_text("".join(f"{one} slots={slots}\n" for one in names))
        discover = tmp_path / "discover_hosts.sh"
        discover.write_text("#!/bin/sh\n" + "".join(f"echo {one}\n" for one in names))
        discover.chmod(0o755)
        command, variables = what_runs(container, {"PATH": path})
        command = [word.replace("/etc/mpi", str(tmp_path)) for word in command]
        command[:1] = [sys.executable, "-m", "tfring"]
        launcher = start_command(
            [*inside(made, 0), "env", f"--chdir={tmp_path}", *command],
            **environment(**variables),
        )
        said = who_is_there([launcher])
    if "1:2" not in words:
        assert [one[:4] for one in said] == [[rank, 4, rank % 2, 2] for rank in range(4)]
    else:
        assert said[0][0] == 0 and said[0][1] in (1, 2)
