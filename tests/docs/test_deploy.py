# SPDX-License-Identifier: Apache-2.0
"""Are the deployment examples well formed, and do they fit the program that they start?"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from penstock.cli import main
from penstock.clock import SystemClock
from penstock.config.load import load_settings
from penstock.config.settings import Settings
from penstock.errors import ConfigError, UsageError
from penstock.supervisor.health_server import HUNG_SECONDS, Health, HealthServer
from penstock.supervisor.supervisor import AFTER_GRACE_SECONDS
from penstock.supervisor.worker_handle import EXIT_OVER_BUDGET

REPOSITORY = Path(__file__).resolve().parents[2]
UNIT = REPOSITORY / "deploy/penstock.service"
MANIFEST = REPOSITORY / "deploy/kubernetes.yaml"
DAEMON_UNIT = REPOSITORY / "deploy/penstock-daemon.service"
DAEMON_MANIFEST = REPOSITORY / "deploy/kubernetes-daemon.yaml"
FLEET_PAGE = REPOSITORY / "docs/operations/fleet.md"

STOP_SECONDS = Settings().runtime.grace_seconds + AFTER_GRACE_SECONDS
SINCE_254 = {"RestartSteps", "RestartMaxDelaySec"}  # older managers ignore them, and say so


# The command line of both


def accepted(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The command that the arguments reach and its parameters; raises what a user would see."""
    command = typer.main.get_command(main.app)
    context, name, rest = None, "penstock", main._globals_first(arguments)
    while True:
        context = command.make_context(name, rest, parent=context)
        command = context.command  # itself: the one of its group may not be imported yet
        if not hasattr(command, "resolve_command"):
            return context.command_path, context.params
        found, command, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        name = str(found)


def check_command(program: str, *arguments: str) -> None:
    assert Path(program).name == "penstock"
    path, parameters = accepted(list(arguments))
    assert path in ("penstock queue run", "penstock run")
    assert not parameters["drain"], "a service works on; it does not end when nothing is left"
    assert parameters["store"] is None, "everybody on the machine can read arguments"


def test_a_wrong_command_line_would_be_noticed() -> None:
    for wrong in (["queue", "walk"], ["queue", "run", "--procs", "2"], ["queue", "run", "a", "b"]):
        with pytest.raises((main._TYPER_USAGE_ERROR, UsageError)):
            accepted(wrong)


# systemd

SECTIONS = {"Unit", "Service", "Install"}


def unit_lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Section, key and value of every line; whatever systemd would pass over is an error."""
    section = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line[0] in "#;":
            continue
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section = header[1]
            assert section in SECTIONS, f"line {number}: the section {section}"
            continue
        entry = re.fullmatch(r"([A-Z]\w+)=(|[^\s\\](?:.*[^\s\\])?)", line)
        assert entry, f"line {number} is neither a section nor a setting: {line!r}"
        assert section is not None, f"line {number} stands before the first section"
        yield section, entry[1], entry[2]


def unit(text: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for section, key, value in unit_lines(text):
        settings = found.setdefault(section, {})
        assert key not in settings, f"{section}.{key} is set twice"
        settings[key] = value
    assert found.keys() == SECTIONS
    return found


@pytest.fixture(params=[UNIT, DAEMON_UNIT], ids=["workers", "daemon"])
def unit_file(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def service(unit_file: Path) -> dict[str, str]:
    return unit(unit_file.read_text())["Service"]


@pytest.mark.parametrize(
    "wrong",
    [
        "[Servce]\n",
        "[Unit]\nAfter a.target\n",
        "A=b\n",
        "[Unit]\nAfter=a \\\n",
        "[Unit]\n[Service]\n",
    ],
)
def test_a_unit_that_is_not_well_formed_would_be_noticed(wrong: str) -> None:
    with pytest.raises(AssertionError):
        unit(wrong)


def test_the_unit_starts_a_command_that_exists(service: dict[str, str]) -> None:
    program, *arguments = shlex.split(service["ExecStart"])

    check_command(program, *arguments)
    assert Path(program).is_absolute()
    assert Path(program).is_relative_to(service["WorkingDirectory"])
    assert service["User"] not in {"root", "0"}


def test_the_unit_stops_as_the_supervisor_wants_to_be_stopped(service: dict[str, str]) -> None:
    assert service["KillSignal"] == "SIGTERM"
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > STOP_SECONDS
    assert service["OOMPolicy"] == "continue"


def test_only_a_daemon_tells_when_it_is_ready_and_that_it_lives() -> None:
    workers, daemon = (unit(path.read_text())["Service"] for path in (UNIT, DAEMON_UNIT))

    assert workers["Type"] == "exec"
    assert "penstock queue run" in workers["ExecStart"]
    assert (daemon["Type"], daemon["NotifyAccess"]) == ("notify", "main")
    assert "penstock run" in daemon["ExecStart"]
    assert float(daemon["TimeoutStartSec"]) > 2 * Settings().runtime.preflight_timeout
    assert float(daemon["WatchdogSec"]) > 2 * HUNG_SECONDS


def test_the_two_units_differ_only_in_what_a_daemon_has_more() -> None:
    workers, daemon = (unit(path.read_text())["Service"] for path in (UNIT, DAEMON_UNIT))

    differ = {key for key in daemon if daemon[key] != workers.get(key)}

    assert workers.keys() <= daemon.keys()
    assert differ == {"Type", "NotifyAccess", "TimeoutStartSec", "WatchdogSec", "ExecStart"}


def test_the_unit_tries_again_but_not_what_cannot_get_better(
    unit_file: Path, service: dict[str, str]
) -> None:
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == f"{main.EXIT_USAGE} {EXIT_OVER_BUDGET}"
    assert float(service["RestartMaxDelaySec"]) > float(service["RestartSec"]) > 0
    assert unit(unit_file.read_text())["Unit"]["StartLimitIntervalSec"] == "0"


def test_the_unit_keeps_the_store_out_of_its_text(unit_file: Path, service: dict[str, str]) -> None:
    assert not {"Environment", "PassEnvironment"} & service.keys()
    assert "://" not in re.sub(r"^#.*$", "", unit_file.read_text(), flags=re.MULTILINE)
    install = f"install -m 0600 penstock.env {service['EnvironmentFile']}"
    assert install in FLEET_PAGE.read_text()


def test_the_unit_hides_nothing_that_a_worker_needs(service: dict[str, str]) -> None:
    assert service.get("ProcSubset", "all") == "all"  # the boot id lies in /proc/sys
    assert not service.keys() & {"PrivateNetwork", "PrivateUsers", "MemoryDenyWriteExecute"}
    assert {"AF_UNIX", "AF_INET", "AF_INET6"} == set(service["RestrictAddressFamilies"].split())


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_itself_takes_the_unit(
    unit_file: Path, service: dict[str, str], tmp_path: Path
) -> None:
    program = service["ExecStart"].split()[0]
    here = str(Path(sys.executable).parent / "penstock")
    copy = tmp_path / unit_file.name
    copy.write_text(unit_file.read_text().replace(program, here))

    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=240,
    )

    told = [
        line
        for line in verified.stderr.splitlines()
        if unit_file.name in line and not any(f"'{key}'" in line for key in SINCE_254)
    ]
    assert told == []
    assert verified.returncode == 0, verified.stderr


# Kubernetes


class StrictLoader(yaml.SafeLoader):
    """YAML in which a key may stand only once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) != len(node.value):
            raise yaml.constructor.ConstructorError(
                None, None, "a key stands twice", node.start_mark
            )
        return mapping


PROBES = ("startupProbe", "readinessProbe", "livenessProbe")

#: Of each kind of table: what must be in it, and what else we use. Everything else is an error.
FIELDS: dict[str, tuple[str, str]] = {
    "": ("apiVersion kind metadata spec", ""),
    "metadata": ("name labels", ""),
    "spec": (
        "replicas selector template strategy",
        "minReadySeconds progressDeadlineSeconds revisionHistoryLimit",
    ),
    "spec.strategy": ("type", ""),
    "spec.selector": ("matchLabels", ""),
    "spec.template": ("metadata spec", ""),
    "spec.template.metadata": ("labels", ""),
    "spec.template.spec": (
        "containers securityContext terminationGracePeriodSeconds",
        "automountServiceAccountToken enableServiceLinks shareProcessNamespace volumes",
    ),
    "spec.template.spec.securityContext": (
        "runAsNonRoot runAsUser seccompProfile",
        "runAsGroup",
    ),
    "spec.template.spec.securityContext.seccompProfile": ("type", ""),
    "spec.template.spec.containers": (
        "name image command resources securityContext",
        f"args env imagePullPolicy volumeMounts workingDir {' '.join(PROBES)}",
    ),
    **{
        f"spec.template.spec.containers.{name}": (
            "exec periodSeconds timeoutSeconds",
            "failureThreshold",
        )
        for name in PROBES
    },
    **{f"spec.template.spec.containers.{name}.exec": ("command", "") for name in PROBES},
    "spec.template.spec.containers.env": ("name valueFrom", ""),
    "spec.template.spec.containers.env.valueFrom": ("secretKeyRef", ""),
    "spec.template.spec.containers.env.valueFrom.secretKeyRef": ("name key", ""),
    "spec.template.spec.containers.resources": ("requests limits", ""),
    "spec.template.spec.containers.resources.requests": ("cpu memory", ""),
    "spec.template.spec.containers.resources.limits": ("memory", ""),
    "spec.template.spec.containers.securityContext": (
        "allowPrivilegeEscalation capabilities readOnlyRootFilesystem",
        "",
    ),
    "spec.template.spec.containers.securityContext.capabilities": ("drop", ""),
    "spec.template.spec.containers.volumeMounts": ("name mountPath", ""),
    "spec.template.spec.volumes": ("name emptyDir", ""),
    "spec.template.spec.volumes.emptyDir": ("sizeLimit", ""),
}
FREE = re.compile(r"(^|\.)(labels|matchLabels)$")


def mistakes(table: object, path: str = "") -> Iterator[str]:
    """Fields of a Deployment that are missing or not known, wherever they stand."""
    if isinstance(table, list):
        for entry in table:
            yield from mistakes(entry, path)
    elif isinstance(table, dict) and not FREE.search(path):
        required, optional = (set(names.split()) for names in FIELDS.get(path, ("", "")))
        yield from (f"{path} lacks {name}" for name in sorted(required - table.keys()))
        yield from (
            f"{path}.{name} is not known" for name in sorted(table.keys() - required - optional)
        )
        for name, value in table.items():
            yield from mistakes(value, f"{path}.{name}".lstrip("."))


@pytest.fixture(params=[MANIFEST, DAEMON_MANIFEST], ids=["workers", "daemon"])
def manifest(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def deployment(manifest: Path) -> dict[str, Any]:
    return read_manifest(manifest)


def read_manifest(manifest: Path) -> dict[str, Any]:
    (document,) = yaml.load_all(manifest.read_text(), StrictLoader)
    assert isinstance(document, dict)
    return document


@pytest.fixture
def pod(deployment: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    assert isinstance(only, dict)
    return only


def test_the_deployment_has_the_fields_it_needs_and_no_others(deployment: dict[str, Any]) -> None:
    assert list(mistakes(deployment)) == []
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    assert type(deployment["spec"]["replicas"]) is int


def test_a_slip_of_the_pen_in_the_deployment_would_be_noticed(deployment: dict[str, Any]) -> None:
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["imagePullPolcy"] = container.pop("imagePullPolicy")
    del container["image"]

    found = list(mistakes(deployment))

    assert [text.rpartition("containers")[2] for text in found] == [
        " lacks image",
        ".imagePullPolcy is not known",
    ]


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(yaml.YAMLError, match="twice"):
        yaml.load("a: 1\na: 2\n", StrictLoader)


def test_the_selector_finds_the_pods(deployment: dict[str, Any]) -> None:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    wanted = deployment["spec"]["selector"]["matchLabels"]

    assert wanted
    assert wanted.items() <= labels.items()


def test_the_container_starts_a_command_that_exists(container: dict[str, Any]) -> None:
    words: list[object] = container["command"] + container["args"]

    assert all(isinstance(word, str) for word in words)
    check_command(*map(str, words))


def test_the_probes_of_a_daemon_ask_the_port_that_it_serves() -> None:
    """Each is run as it stands, against the health of a daemon that is not ready."""
    (container,) = read_manifest(DAEMON_MANIFEST)["spec"]["template"]["spec"]["containers"]
    _, parameters = accepted([*container["command"][1:], *container["args"]])
    health = Health(SystemClock())
    server = HealthServer(health, 0)
    try:
        for is_ready in (False, True):
            if is_ready:
                health.ready()
            health.turned()
            codes = {name: probed(container[name], parameters["health"], server) for name in PROBES}
            expected = 0 if is_ready else 1
            assert codes == {
                "startupProbe": expected,
                "readinessProbe": expected,
                "livenessProbe": 0,
            }
    finally:
        server.close()

    startup = container["startupProbe"]
    seconds = startup["periodSeconds"] * startup["failureThreshold"]
    assert seconds > 2 * Settings().runtime.preflight_timeout


def probed(probe: dict[str, Any], port: int, server: HealthServer) -> int:
    """The exit code of a probe, if the daemon served on another port."""
    program, *words = probe["exec"]["command"]
    assert program == "python"
    assert f", {port}," in words[1]
    told = [words[0], words[1].replace(f", {port},", f", {server.port},")]
    done = subprocess.run([sys.executable, *told], capture_output=True, timeout=240)
    assert done.stderr == b""
    return done.returncode


def test_workers_without_health_have_no_probes() -> None:
    (container,) = read_manifest(MANIFEST)["spec"]["template"]["spec"]["containers"]

    assert not set(PROBES) & container.keys()


def test_the_pod_has_time_to_stop(pod: dict[str, Any]) -> None:
    assert pod["terminationGracePeriodSeconds"] > STOP_SECONDS


def test_the_old_workers_stop_before_the_new_ones_start(deployment: dict[str, Any]) -> None:
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    seconds = deployment["spec"]["progressDeadlineSeconds"]
    assert seconds > deployment["spec"]["minReadySeconds"] + STOP_SECONDS


def test_the_store_comes_from_a_secret_under_a_name_that_is_a_setting(
    container: dict[str, Any], tmp_path: Path
) -> None:
    (variable,) = container["env"]
    secret = variable["valueFrom"]["secretKeyRef"]

    url = "postgresql://somebody:secret@somewhere/shop"
    loaded = load_settings({}, {variable["name"]: url}, tmp_path, {})
    assert loaded.settings.store is not None
    assert loaded.settings.store.reveal() == url
    command = f"create secret generic {secret['name']} --from-env-file=penstock.env"
    assert command in FLEET_PAGE.read_text()
    assert f"{secret['key']}=postgresql://" in FLEET_PAGE.read_text()


def test_variables_of_a_service_called_penstock_stay_outside(
    pod: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_SERVICE_HOST"):
        load_settings({}, {"PENSTOCK_SERVICE_HOST": "10.0.0.1"}, tmp_path, {})

    assert pod["enableServiceLinks"] is False


def test_the_pod_has_few_rights(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }


def test_the_image_has_a_version(container: dict[str, Any]) -> None:
    assert re.fullmatch(r"[a-z0-9./-]+(:v?\d[\w.-]*|@sha256:[0-9a-f]{64})", container["image"])


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kubectl_knows_every_field(
    manifest: Path, deployment: dict[str, Any], tmp_path: Path
) -> None:
    """`--local` asks no server; a field that the types of kubectl lack is lost on the way."""
    done = subprocess.run(
        ["kubectl", "set", "env", "--local", "-f", str(manifest), "ADDED=x", "-o", "json"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": os.devnull},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr

    assert list(lost(deployment, json.loads(done.stdout))) == []


def lost(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """What we wrote and the typed form has not, or has otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            if name not in theirs:
                yield f"{path}.{name}"
            else:
                yield from lost(value, theirs[name], f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) <= len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            yield from lost(one, other, f"{path}[{number}]")
    elif ours != theirs:
        yield f"{path}: {theirs!r}"
