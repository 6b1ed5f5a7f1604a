"""What the pods of all kinds of jobs have in common: user, resources, volumes, probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfring.launch.exit_codes import DISMISSED, LOST_PEER, STOPPED
from tfring.launch.kubernetes.options import Request

Json = dict[str, Any]

PORT = 29400
_PROBE = ["python", "-m", "tfring.observe.live.probe"]


def tfring_run(request: Request, *options: str) -> list[str]:
    """Returns the command of a container that starts ranks, with more options of `tfring run`."""
    stop = ["--stop-timeout", str(request.stop_seconds)]
    return ["tfring", "run", *options, *request.flags, *stop, *map(_literal, request.command)]


def elastic_nodes(request: Request, first_pod: str) -> list[str]:
    """Returns the options of `tfring run` in each pod of an elastic job; they meet in the first."""
    shape = request.shape
    return [
        "--nnodes",
        f"{shape.least}:{shape.pods}",
        "--nproc-per-node",
        str(shape.slots),
        "--rdzv-endpoint",
        f"{first_pod}:{PORT}",
        "--rdzv-id",
        request.name,
        "--max-restarts",
        str(request.restarts),
    ]


def variables(values: Mapping[str, str]) -> list[Json]:
    """Returns variables of a container."""
    return [{"name": name, "value": _literal(value)} for name, value in values.items()]


def _literal(text: str) -> str:
    """Returns a text as it is written where Kubernetes replaces $(NAME) by a variable's value."""
    return text.replace("$", "$$")


def secret_variable(request: Request) -> Json:
    """Returns the variable with the job's secret."""
    reference = {"name": request.secret_name, "key": "secret"}
    return {"name": "TFRING_SECRET", "valueFrom": {"secretKeyRef": reference}}


def stopped_variable() -> Json:
    """Returns the variable with the exit code of an orderly end after SIGTERM."""
    return {"name": "TFRING_STOPPED_EXIT_CODE", "value": str(STOPPED)}


def container(request: Request, name: str, command: Sequence[str], env: list[Json]) -> Json:
    """Returns a container that runs ranks."""
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    for number, (_, path) in enumerate(request.claims):
        mounts.append({"name": _volume(number), "mountPath": path})
    made: Json = {"name": name, "image": request.image, "command": list(command)}
    if env:
        made["env"] = env
    if found := resources(request):
        made["resources"] = found
    return {
        **made,
        "livenessProbe": {
            "exec": {"command": [*_PROBE, "live"]},
            "initialDelaySeconds": 60,
            "periodSeconds": 60,
            "timeoutSeconds": 30,
            "failureThreshold": 3,
        },
        "readinessProbe": {
            "exec": {"command": [*_PROBE, "ready", "--ranks", str(request.shape.slots)]},
            "periodSeconds": 30,
            "timeoutSeconds": 30,
        },
        "securityContext": closed(),
        "volumeMounts": mounts,
    }


def closed() -> Json:
    """Returns what keeps a container from getting more rights."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def resources(request: Request) -> Json:
    """Returns the resources of a pod; memory has a limit, CPUs have none."""
    requests: Json = {}
    limits: Json = {}
    if request.cpus is not None:
        requests["cpu"] = request.cpus
    if request.memory is not None:
        requests["memory"] = limits["memory"] = request.memory
    if request.gpus:
        # Kubernetes needs the limit alone; the Kubeflow Trainer counts what is requested.
        requests["nvidia.com/gpu"] = limits["nvidia.com/gpu"] = request.gpus
    found = {"requests": requests, "limits": limits}
    return {name: values for name, values in found.items() if values}


def pod(request: Request, only: Json, *, restart: str | None = "Never", **more: Any) -> Json:
    """Returns what a pod with this one container is made of, and with more fields.

    The restart policy is None where another object has it.
    """
    memory = {"medium": "Memory", "sizeLimit": request.shared_size}
    volumes: list[Json] = [{"name": "shared-memory", "emptyDir": memory}]
    for number, (claim, _) in enumerate(request.claims):
        volumes.append({"name": _volume(number), "persistentVolumeClaim": {"claimName": claim}})
    return {
        **more,
        **({} if restart is None else {"restartPolicy": restart}),
        "terminationGracePeriodSeconds": request.grace_seconds,
        # Nothing in the pod talks to Kubernetes.
        "automountServiceAccountToken": False,
        # Variables of other services, which nobody here reads.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": request.user,
            "runAsGroup": request.user,
            "fsGroup": request.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [only],
        "volumes": volumes,
    }


def _volume(number: int) -> str:
    """Returns the name of a claim's volume: one claim may be mounted twice, its name be longer."""
    return f"claim-{number}"


def job(request: Request, template: Json, container_name: str) -> Json:
    """Returns how an indexed Job starts its pods anew."""
    rules: list[Json] = []
    if not request.shape.elastic:  # there it may be that a node came too late to meet the others
        rules.append(_at_exit("FailJob", container_name, 2))  # options that are wrong stay wrong
    # Of a pod that fails because another is gone only that other one counts.
    rules.append(_at_exit("Ignore", container_name, STOPPED, DISMISSED, LOST_PEER))
    rules.append({"action": "Ignore", "onPodConditions": [_DISRUPTED]})
    spec: Json = {
        "completionMode": "Indexed",
        "completions": request.shape.pods,
        "parallelism": request.shape.pods,
        # The program may fail in all pods at once, and each of them counts.
        "backoffLimit": request.restarts * request.shape.pods,
        # No two pods of one number at a time.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": rules},
        "template": template,
    }
    if request.shape.elastic:  # the job ends with the pod where the others meet
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    return spec


_DISRUPTED = {"type": "DisruptionTarget", "status": "True"}


def _at_exit(action: str, container_name: str, *codes: int) -> Json:
    wanted = {"containerName": container_name, "operator": "In", "values": list(codes)}
    return {"action": action, "onExitCodes": wanted}


def metadata(request: Request) -> Json:
    """Returns the name of an object of the job, and its namespace if one is given."""
    where = {} if request.namespace is None else {"namespace": request.namespace}
    return {"name": request.name, **where}
