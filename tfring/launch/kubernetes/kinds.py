"""The objects of a job, for each kind of manifest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfring.launch.kubernetes.options import MPI_FOLDER, SSH_FOLDER, Request
from tfring.launch.kubernetes.pods import (
    PORT,
    closed,
    container,
    elastic_nodes,
    job,
    metadata,
    pod,
    resources,
    secret_variable,
    stopped_variable,
    tfring_run,
    variables,
)

Json = dict[str, Any]

_TRAINER = "trainer.kubeflow.org"
# The Trainer finds by these which container it sets the variables of.
_TRAINER_CONTAINER = "node"
_TRAINER_LABEL = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
# sshd of the workers; a user that is not root cannot have a port below 1024.
_SSH_PORT = 2222
_SSHD_CONFIG = "/etc/ssh/sshd_tfring"


def indexed(request: Request) -> list[Json]:
    """Returns an indexed Job and a headless Service: no operator is needed."""
    name, shape = request.name, request.shape
    first_pod = f"{name}-0.{name}"
    own = dict(request.variables)
    options: list[str] = []
    if shape.elastic:
        options = elastic_nodes(request, first_pod)
    else:
        own = {
            "TFRING_PODS": str(shape.pods),
            "TFRING_POD_SLOTS": str(shape.slots),
            "TFRING_RENDEZVOUS_ADDR": first_pod,
            "TFRING_RENDEZVOUS_PORT": str(PORT),
            **own,
        }
    env = [*variables(own), stopped_variable(), secret_variable(request)]
    only = container(request, "ranks", tfring_run(request, *options), env)
    template = {"spec": pod(request, only, subdomain=name)}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(request),
        "spec": {
            "clusterIP": "None",  # one address for each pod, and not one for all
            "selector": {"batch.kubernetes.io/job-name": name},
            # Pods have to find the first one before it is ready.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "rendezvous", "port": PORT, "protocol": "TCP"}],
        },
    }
    whole = job(request, template, "ranks")
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(request), "spec": whole}
    return [service, made]


def trainer(request: Request) -> list[Json]:
    """Returns a ClusterTrainingRuntime and a TrainJob of the Kubeflow Trainer.

    Its torch policy gives the pods the variables that say who they are; nothing of PyTorch is used.
    """
    name, shape = request.name, request.shape
    # A runtime has no namespace: those of two teams would be one.
    runtime = "-".join(filter(None, (request.namespace, name, "runtime")))
    options: list[str] = []
    if shape.elastic:
        options = elastic_nodes(request, f"{name}-node-0-0.{name}")
    command = tfring_run(request, *options)
    env = [stopped_variable(), secret_variable(request)]
    only = container(request, _TRAINER_CONTAINER, command, env)
    spec = job(request, {"spec": pod(request, only)}, _TRAINER_CONTAINER)
    for field in ("completionMode", "completions", "parallelism"):
        del spec[field]  # the Trainer says these
    step = {
        "name": _TRAINER_CONTAINER,
        "template": {"metadata": {"labels": dict(_TRAINER_LABEL)}, "spec": spec},
    }
    network = {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    run: Json = {
        "image": request.image,
        "command": command,
        "numNodes": shape.pods,
        "numProcPerNode": shape.slots,
    }
    if request.variables:
        run["env"] = variables(request.variables)
    if found := resources(request):
        run["resourcesPerNode"] = found
    return [
        {
            "apiVersion": f"{_TRAINER}/v1alpha1",
            "kind": "ClusterTrainingRuntime",
            "metadata": {"name": runtime, "labels": {f"{_TRAINER}/framework": "tfring"}},
            "spec": {
                "mlPolicy": {"numNodes": shape.pods, "torch": {}},
                "template": {"spec": {"network": network, "replicatedJobs": [step]}},
            },
        },
        {
            "apiVersion": f"{_TRAINER}/v1alpha1",
            "kind": "TrainJob",
            "metadata": metadata(request),
            "spec": {
                "runtimeRef": {
                    "apiGroup": _TRAINER,
                    "kind": "ClusterTrainingRuntime",
                    "name": runtime,
                },
                "trainer": run,
            },
        },
    ]


def mpijob(request: Request) -> list[Json]:
    """Returns an MPIJob of the MPI operator; its launcher runs `tfring run` in place of mpirun."""
    shape = request.shape
    hosts = ["--hostfile", f"{MPI_FOLDER}/hostfile"]
    if shape.elastic:  # the operator writes which workers there are
        hosts = [
            "--host-discovery-script",
            f"{MPI_FOLDER}/discover_hosts.sh",
            "--slots",
            str(shape.slots),
            "--min-np",
            str(shape.least * shape.slots),
            "--max-np",
            str(shape.pods * shape.slots),
        ]
    given = [word for name in request.variables for word in ("-x", name)]
    command = tfring_run(request, *hosts, "--ssh-port", str(_SSH_PORT), *given)
    launcher = {
        "name": "launcher",
        "image": request.image,
        "command": command,
        "env": [*variables(request.variables), stopped_variable()],
        "securityContext": closed(),
    }
    sshd = ["/usr/sbin/sshd", "-De", "-p", str(_SSH_PORT), "-f", _SSHD_CONFIG]
    # The ranks get their variables by ssh; the probes beside them need this one.
    heartbeat = {k: v for k, v in request.variables.items() if k == "TFRING_HEARTBEAT_SECONDS"}
    worker = container(request, "worker", sshd, variables(heartbeat))
    # The launcher is made when all workers are ready, and then needs sshd.
    worker["readinessProbe"] = {"tcpSocket": {"port": _SSH_PORT}, "periodSeconds": 5}
    without_volumes = pod(request, launcher, restart=None)
    del without_volumes["volumes"]
    return [
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": metadata(request),
            "spec": {
                "slotsPerWorker": shape.slots,
                "mpiImplementation": "OpenMPI",  # the form of the host file
                "launcherCreationPolicy": "WaitForWorkersReady",
                "sshAuthMountPath": SSH_FOLDER,
                "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": request.restarts},
                "mpiReplicaSpecs": {
                    "Launcher": {
                        "replicas": 1,
                        "restartPolicy": "Never",
                        "template": {"spec": without_volumes},
                    },
                    "Worker": {
                        "replicas": shape.pods,
                        "restartPolicy": "OnFailure",
                        "template": {"spec": pod(request, worker, restart=None)},
                    },
                },
            },
        }
    ]


MAKERS: dict[str, Callable[[Request], list[Json]]] = {
    "indexed": indexed,
    "trainer": trainer,
    "mpijob": mpijob,
}
