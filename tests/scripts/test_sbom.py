"""`make sbom`: which images it reads, and how it names Debian's packages."""

import json
from pathlib import Path

import pytest

from scripts import sbom


def test_it_reads_every_image_that_a_compose_file_builds() -> None:
    assert {"ownlm-train:0.1.0", "ownlm-inference:0.1.0", "ownlm-tokenizer:0.1.0"} <= set(sbom.our_images())
    assert not any("grafana" in image or "prometheus" in image for image in sbom.our_images())


def test_a_bill_has_the_packages_of_python_and_debian(monkeypatch: pytest.MonkeyPatch) -> None:
    def output_of(image: str, *command: str, options: object = ()) -> str:
        if command[0] == "dpkg-query":
            return "libc6 2.36-9+deb12u13 amd64\nadduser 3.134 all\n"
        return json.dumps({"bomFormat": "CycloneDX", "components": [{"name": "numpy"}]})

    monkeypatch.setattr(sbom, "output_of", output_of)
    bill = sbom.bill_of("ownlm-tokenizer:0.1.0", Path("tools"))
    assert bill["metadata"]["component"] == {"type": "container", "name": "ownlm-tokenizer:0.1.0"}
    assert [part["name"] for part in bill["components"]] == ["numpy", "libc6", "adduser"]
    # As https://github.com/package-url/purl-spec encodes a version.
    assert bill["components"][1]["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64"


def test_without_an_image_it_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sbom.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(sbom, "is_there", lambda image: False)
    assert sbom.main() == 1
    assert "docker compose build" in capsys.readouterr().err
