"""Examples for machines that are not here: at least they are what they claim to be."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = "examples/torchrun/train.py"


def test_the_slurm_script_is_bash_and_starts_the_example() -> None:
    script = ROOT / "examples/slurm/train.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=30)
    text = script.read_text()
    assert SCRIPT in text
    assert text.index("#SBATCH --nodes=") < text.index("set -euo pipefail")  # or Slurm ignores it


def test_the_kubernetes_manifest_is_a_jobset_that_starts_the_example() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    manifest: Any = yaml.safe_load((ROOT / "examples/kubernetes/jobset.yaml").read_text())
    assert manifest["kind"] == "JobSet"
    (job,) = manifest["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    command = container["command"]
    assert SCRIPT in command
    assert f"--nnodes={spec['completions']}" in command
    assert spec["parallelism"] == spec["completions"]
    name = f"{manifest['metadata']['name']}-{job['name']}-0-0.{manifest['metadata']['name']}"
    assert f"--rdzv-endpoint={name}:29400" in command


@pytest.mark.parametrize("name", ["torchrun", "slurm", "kubernetes", "ray", "custom_codec"])
def test_every_example_has_a_readme_whose_links_lead_somewhere(name: str) -> None:
    folder = ROOT / "examples" / name
    text = (folder / "README.md").read_text()
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert links
    for link in links:
        if not link.startswith("https://"):
            assert (folder / link).exists(), link
