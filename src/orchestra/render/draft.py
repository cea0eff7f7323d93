"""A job on its way into manifests: what all targets share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestra.api.job import TorchrunJob
from orchestra.api.queue import TorchrunQueue
from orchestra.plan.model import Plan
from orchestra.render.agent_form import agent_config_maps, agent_process, uploader
from orchestra.render.labels import metadata, workload_metadata
from orchestra.render.launch import Launching
from orchestra.render.model import Manifest, Options
from orchestra.render.plain_form import plain_config_map, plain_process
from orchestra.render.pod import pod_template
from orchestra.render.site import Site
from orchestra.render.volumes import Volumes, agent_source, pod_volumes, script_source


@dataclass(frozen=True)
class Draft:
    """The plan, and how the target's pods see themselves."""

    queue: TorchrunQueue
    job: TorchrunJob
    plan: Plan
    site: Site
    launch: Launching
    options: Options

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.plan.job

    def metadata(self, name: str | None = None) -> dict[str, Any]:
        """Name and labels of one object."""
        return metadata(self.plan, self.site, name)

    def workload_metadata(self) -> dict[str, Any]:
        """The same for the object that stands for the job."""
        return workload_metadata(self.plan, self.site, self.job)

    def volumes(self) -> Volumes:
        """Volumes of the pods, and their claims."""
        if self.options.plain:
            source = script_source(str(self.script["metadata"]["name"]))
        else:
            agent, launch = agent_config_maps(self.plan, self.launch, self.site)
            source = agent_source(str(agent["metadata"]["name"]), str(launch["metadata"]["name"]))
        return pod_volumes(self.plan, self.site, source)

    @property
    def script(self) -> Manifest:
        """The ConfigMap of the plain form."""
        return plain_config_map(self.plan, self.launch, self.site)

    def programs(self) -> list[Manifest]:
        """What process 1 is made from."""
        if self.options.plain:
            return [self.script]
        return list(agent_config_maps(self.plan, self.launch, self.site))

    def pod(self, **spec: Any) -> dict[str, Any]:
        """The pod template; `spec` are fields that only this target has."""
        volumes = self.volumes()
        if self.options.plain:
            process, sidecars = plain_process(self.site), list[dict[str, Any]]()
        else:
            process, sidecars = agent_process(self.site), uploader(self.plan, self.site, self.options, volumes)
        template = pod_template(self.plan, self.launch, self.site, volumes, process, sidecars)
        return {**template, "spec": {**template["spec"], **spec}}
