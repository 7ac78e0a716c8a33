"""The report of `steelyard verify-gpu`: what is printed and written, and what must not be."""

import json
from pathlib import Path

import pytest

from steelyard.tools.gpu import report as gpu_report
from steelyard.tools.gpu.checks import COMPLETE, UNFINISHED, Check, Result
from steelyard.tools.gpu.report import Report, without_folders

FACTS = {
    "steelyard": {"version": "0.1.0"},
    "software": {"torch": "2.13.0", "torch_cuda": "13.0", "driver": None},
    "gpu": {"name": "A GPU", "target": "sm_90a"},
}
CHECKS = [Check("kernels", "amax", lambda: ""), Check("models", "mlp mxfp8", lambda: "")]
RESULTS = [
    Result("amax", True, "", group="kernels", seconds=0.25),
    Result("mlp mxfp8", False, "OSError: cannot read '/home/somebody/cache/a.bin'", group="models", seconds=1.0),
]


def test_the_table_lines_up(capsys):
    report = Report(FACTS, {}, None, CHECKS)
    report.begin()
    for result in RESULTS:
        report.add(result)
    assert report.end(COMPLETE) == 1
    assert capsys.readouterr().out.splitlines() == [
        "A GPU (sm_90a), torch 2.13.0 for CUDA 13.0, driver unknown, steelyard 0.1.0",
        "kernels  amax       ok",
        "models   mlp mxfp8  FAILED  OSError: cannot read '/home/somebody/cache/a.bin'",
        "2 results: 1 passed, 1 failed, 0 not run",
        "To send us these results, run the command with --json report.json and attach the file to your report.",
    ]


def test_the_file_is_whole_after_each_result(tmp_path):
    path = tmp_path / "report.json"
    report = Report(FACTS, {"quick": True}, path, CHECKS)
    report.begin()
    assert json.loads(path.read_text())["results"] == []
    report.add(RESULTS[0])
    written = json.loads(path.read_text())
    assert written == {
        "schema": 1,
        **FACTS,
        "options": {"quick": True},
        "ended": UNFINISHED,
        "seconds": 0.25,
        "summary": {"passed": 1, "failed": 0, "not run": 0},
        "results": [
            {"group": "kernels", "name": "amax", "status": "passed", "seconds": 0.25, "detail": "", "values": {}}
        ],
    }
    report.add(RESULTS[1])
    report.end(COMPLETE)
    written = json.loads(path.read_text())
    assert (written["ended"], written["seconds"]) == (COMPLETE, 1.25)
    assert written["results"][1]["detail"] == "OSError: cannot read '.../a.bin'"


def test_what_cannot_be_replaced_is_written_once(monkeypatch):
    written = []
    monkeypatch.setattr(gpu_report, "write_file", lambda path, data: written.append(json.loads(data)))
    report = Report(FACTS, {}, Path("/dev/null"), CHECKS)
    report.begin()
    report.add(RESULTS[0])
    report.end(COMPLETE)
    assert [contents["ended"] for contents in written] == [COMPLETE]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open /root/x.so: no such file", "cannot open .../x.so: no such file"),
        ('File "/usr/lib/python3/site-packages/torch/x.py", line 3', 'File ".../x.py", line 3'),
        (r"cannot open C:\Users\somebody\x.dll", "cannot open .../x.dll"),
        ("the product is off by 1.0e-02 of sum|a||b|", "the product is off by 1.0e-02 of sum|a||b|"),
        ("3015 GB/s, 100% of a copy's", "3015 GB/s, 100% of a copy's"),
    ],
)
def test_folders_are_cut_from_errors(text, expected):
    assert without_folders(text) == expected


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82  Release Build (user@host)\n", "580.82"),
        ("something else\n", None),
    ],
)
def test_the_driver_is_read_from_its_kernel_module(monkeypatch, tmp_path, text, version):
    monkeypatch.setattr(gpu_report, "_KERNEL_MODULE", tmp_path / "version")
    assert gpu_report._driver_version() is None
    (tmp_path / "version").write_text(text)
    assert gpu_report._driver_version() == version
