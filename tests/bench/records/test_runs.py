"""Promises of the store: nothing is lost, nothing foreign is touched, every error is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from badm.bench.engine.options import RunOptions
from badm.bench.engine.run import run
from badm.bench.engine.training import Interrupted
from badm.bench.errors import StoreError
from badm.bench.files import load_tensors, save_tensors
from badm.bench.records.runs import SCHEMA, RunConfig, RunStore, read_run
from tests.helpers import ENGINE_TASKS
from tests.helpers.engine_tasks import MOMENTUM, Line, Noisy, comparable, config_of, train, variant

CONFIG = RunConfig("digits", "1", "cpu", 300, "adam", {"lr": 1e-3}, seed=0)
OTHER: dict[str, Any] = {
    "task": "moons",
    "task_version": "2",
    "scale": "smoke",
    "steps": 301,
    "method": "badm",
    "setting": {"lr": 2e-3},
    "seed": 1,
    "schedule": "linear",
    "test": False,
    "after": CONFIG,
    "method_version": "1",
    "data": "0123456789abcdef",
    "threads": 2,
    "engine": 2,
    "device": "cuda",
    "warmup": 0.05,
    "evaluate_every": 7,
    "clip_norm": 0.5,
}


@pytest.mark.parametrize("field", [field.name for field in fields(RunConfig)])
def test_the_key_changes_with_every_field(field: str) -> None:
    other = replace(CONFIG, **{field: OTHER[field]})
    assert other.key != CONFIG.key
    assert RunConfig.from_dict(json.loads(json.dumps(other.to_dict()))) == other
    later = replace(CONFIG, after=other)
    assert later.key != replace(CONFIG, after=CONFIG).key  # and with those of the stage before
    assert RunConfig.from_dict(json.loads(json.dumps(later.to_dict()))).key == later.key


def test_the_file_of_a_run_on_the_cpu_does_not_state_its_device() -> None:
    """As those of older versions: the same bytes and keys, also of the stages before."""
    later = replace(CONFIG, after=CONFIG, setting={"device": "cpu"})
    assert "device" not in later.to_dict()
    assert "device" not in later.to_dict()["after"]
    assert later.to_dict()["setting"] == {"device": "cpu"}
    on_cuda = replace(CONFIG, device="cuda", after=replace(CONFIG, device="cuda"))
    assert on_cuda.to_dict()["device"] == on_cuda.to_dict()["after"]["device"] == "cuda"


def test_the_file_of_a_run_without_warmup_does_not_state_it() -> None:
    """As those of older versions: the same bytes and keys."""
    assert "warmup" not in replace(CONFIG, after=CONFIG).to_dict()
    assert CONFIG.key == "0c0a2d1b92146674"
    assert replace(CONFIG, warmup=0.05).to_dict()["warmup"] == 0.05


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    done = train(Noisy(), tmp_path)
    (found,), problems = RunStore(tmp_path).read_all()
    assert (found, problems) == (done, [])
    assert done.facts["notes"] == ["noise"]
    assert done.facts["synthetic"] is True


def half_of_the_last_line(raw: bytes) -> bytes:
    return raw[: raw.rstrip(b"\n").rfind(b"\n") + 20]


def edited(**changes: Any) -> Callable[[bytes], bytes]:
    """The first line with other entries, or without those that are ``None``."""

    def damage(raw: bytes) -> bytes:
        first, _, rest = raw.partition(b"\n")
        plain = {k: v for k, v in {**json.loads(first), **changes}.items() if v is not None}
        return json.dumps(plain).encode() + b"\n" + rest

    return damage


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda raw: b"", "the first line is incomplete"),
    "first line cut": (lambda raw: raw[:100], "the first line is incomplete"),
    "a hole": (lambda raw: raw[:-900] + b"\n#?\n" + raw[-600:], "is not JSON"),
    "zeros": (lambda raw: raw[:-300] + bytes(300) + b"\n", "is not JSON"),
    "binary": (lambda raw: bytes(range(256)) * 40, "is not JSON"),
    "utf-16": (lambda raw: raw.decode().encode("utf-16"), "is not JSON"),
    "too deep": (lambda raw: b"[" * 200_000 + b"\n", "is not JSON"),
    "foreign": (lambda raw: b'{"name": "someone else"}\n', "not a run of badm"),
    "a list": (lambda raw: b"[1, 2]\n", "not a run of badm"),
    "newer": (edited(schema=SCHEMA + 1), f"schema {SCHEMA + 1}, this version reads {SCHEMA}"),
    "no schema": (edited(schema=None), "schema None"),
    "no key": (edited(key=None), "does not match its key"),
    "another key": (edited(key="0" * 16), "does not match its key"),
    "no config": (edited(config=None), "not a valid run file"),
    "a number for config": (edited(config=3), "not a valid run file"),
    "another config": (edited(config=CONFIG.to_dict()), "does not match its key"),
    "no facts": (edited(facts=None), "not a valid run file"),
    "a number for a point": (lambda raw: raw + b"3\n", "not a valid run file"),
    "an unknown point": (lambda raw: raw + b'{"x": 3}\n', "not a valid run file"),
    "two results": (lambda raw: raw + raw[raw[:-1].rfind(b"\n") + 1 :], "not a valid run file"),
    "an unknown result": (lambda raw: raw + b'{"result": {"x": 1}}\n', "not a valid run file"),
    "a text for a result": (lambda raw: raw + b'"the result"\n', "not a valid run file"),
}
every_damage = pytest.mark.parametrize(
    ("damage", "words"), DAMAGES.values(), ids=list(DAMAGES.keys())
)


@every_damage
def test_a_damaged_file_is_named_and_left_as_it_is(
    tmp_path: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    good, bad = train(Line(), tmp_path, seed=0), train(Line(), tmp_path, seed=1)
    content = damage(bad.path.read_bytes())
    bad.path.write_bytes(content)
    found, (problem,) = RunStore(tmp_path).read_all()
    assert found == [good]
    assert problem.startswith(f"{bad.path}: ")
    assert words in problem
    assert "\n" not in problem
    assert bad.path.read_bytes() == content


@every_damage
def test_a_damaged_file_is_set_aside_when_its_run_is_done_again(
    tmp_path: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    first = train(Line(), tmp_path)
    content = damage(first.path.read_bytes())
    first.path.write_bytes(content)
    assert comparable(train(Line(), tmp_path)) == comparable(first)
    assert first.path.with_name(first.path.name + ".damaged1").read_bytes() == content
    first.path.write_bytes(content)
    train(Line(), tmp_path)
    assert first.path.with_name(first.path.name + ".damaged2").read_bytes() == content


def test_a_folder_at_the_place_of_a_run_is_named_and_set_aside(tmp_path: Path) -> None:
    path = RunStore(tmp_path).path(config_of(Line()))
    (path / "inside").mkdir(parents=True)
    assert RunStore(tmp_path).read_all() == ([], [f"{path}: is a directory"])
    done = train(Line(), tmp_path)
    assert done.result is not None
    assert (path.with_name(path.name + ".damaged1") / "inside").is_dir()


def test_a_run_under_the_name_of_another_is_named(tmp_path: Path) -> None:
    a, b = train(Line(), tmp_path, seed=0), train(Line(), tmp_path, seed=1)
    b.path.write_bytes(a.path.read_bytes())
    found, problems = RunStore(tmp_path).read_all()
    assert found == [a]
    assert problems == [f"{b.path}: the configuration does not match its key {a.config.key}"]
    assert comparable(train(Line(), tmp_path, seed=1)) == comparable(b)


def test_a_line_that_was_being_written_is_no_damage(tmp_path: Path) -> None:
    done = train(Line(), tmp_path)
    done.path.write_bytes(half_of_the_last_line(done.path.read_bytes()))
    (found,), problems = RunStore(tmp_path).read_all()
    assert not problems
    assert found.result is None
    assert found.points == done.points
    assert comparable(train(Line(), tmp_path)) == comparable(done)


def test_a_run_that_has_just_begun_can_be_read(tmp_path: Path) -> None:
    """A report may be asked for at any time."""
    seen = []

    def evaluate(self: Any, model: Any, split: Any) -> dict[str, float]:
        seen.append(RunStore(tmp_path).read_all())
        return {"error": 1.0}

    train(variant(Line, evaluate=evaluate), tmp_path)
    assert all(len(runs) == 1 and not problems for runs, problems in seen)


def stopped_after(steps: int, folder: Path) -> RunConfig:
    """Half a run, with its checkpoint."""
    count = 0

    def watch(step: int, loss: float) -> None:
        nonlocal count
        count = step

    with pytest.raises(Interrupted):
        train(
            Noisy(), folder, options=RunOptions(on_step=watch, should_stop=lambda: count >= steps)
        )
    return config_of(Noisy())


def flipped(raw: bytes) -> bytes:
    """One bit of one weight is wrong."""
    at = raw.index(b"PK", raw.index(b"/data/0")) - 70
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[: len(raw) // 2],
        lambda raw: bytes(len(raw)),
        lambda raw: b"no checkpoint",
        flipped,
    ],
    ids=["empty", "half", "zeros", "text", "one bit"],
)
def test_a_damaged_checkpoint_is_set_aside_and_the_run_ends_the_same(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    whole = train(Noisy(), tmp_path / "whole")
    config = stopped_after(20, tmp_path)
    path = RunStore(tmp_path).checkpoint(config)
    content = damage(path.read_bytes())
    path.write_bytes(content)
    assert comparable(train(Noisy(), tmp_path)) == comparable(whole)
    assert path.with_name(path.name + ".damaged1").read_bytes() == content


@pytest.mark.parametrize(
    "content",
    [
        {"state": {"step": 20}, "model": {}, "trainers": [], "kept": {}},
        {"state": {"steps": 20}},
        {"weights": torch.ones(3)},
        torch.ones(3),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_set_aside_too(tmp_path: Path, content: Any) -> None:
    whole = train(Noisy(), tmp_path / "whole")
    path = RunStore(tmp_path).checkpoint(stopped_after(20, tmp_path))
    save_tensors(path, content)
    assert comparable(train(Noisy(), tmp_path)) == comparable(whole)
    assert path.with_name(path.name + ".damaged1").exists()


def changed(*names: str, to: Any) -> Callable[[Path], None]:
    """A checkpoint as it was, but for one place."""

    def change(path: Path) -> None:
        saved = load_tensors(path)
        *way, last = names
        inner = saved
        for name in way:
            inner = inner[name]
        inner[last] = to
        save_tensors(path, saved)

    return change


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "change",
    [
        changed("written", to="all"),
        changed("written", to=-1),
        changed("written", to=10**12),
        changed("written", to=7),
        changed("state", "step", to="20"),
        changed("state", "step", to=10**6),
        changed("state", "seconds", to=-1.0),
        changed("state", "loss_sums", to=[]),
        changed("state", "loss_sums", to=["much"]),
        changed("state", "best", to={"accuracy": "good"}),
        changed("kept", to={}),
        changed("kept", to={"0.weight": torch.ones(1)}),
        a_pipe,
    ],
)
def test_a_checkpoint_with_anything_wrong_in_it_is_set_aside(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    whole = train(Noisy(), tmp_path / "whole")
    path = RunStore(tmp_path).checkpoint(stopped_after(20, tmp_path))
    change(path)
    assert comparable(train(Noisy(), tmp_path)) == comparable(whole)
    assert path.with_name(path.name + ".damaged1").exists()


def test_what_was_written_after_the_checkpoint_is_forgotten(tmp_path: Path) -> None:
    whole = train(Noisy(), tmp_path / "whole")
    path = RunStore(tmp_path).path(stopped_after(20, tmp_path))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines + lines[1:] * 9))
    assert comparable(train(Noisy(), tmp_path)) == comparable(whole)


@pytest.mark.parametrize("left", [0, 100, 3000])
def test_a_run_file_shorter_than_at_its_checkpoint_is_begun_anew(tmp_path: Path, left: int) -> None:
    whole = train(Noisy(), tmp_path / "whole")
    config = stopped_after(30, tmp_path)
    path = RunStore(tmp_path).path(config)
    assert path.stat().st_size > 3000
    os.truncate(path, left)
    assert comparable(train(Noisy(), tmp_path)) == comparable(whole)


def test_a_checkpoint_without_its_run_file_is_not_gone_on_from(tmp_path: Path) -> None:
    whole = train(Noisy(), tmp_path / "whole")
    config = stopped_after(30, tmp_path)
    store = RunStore(tmp_path)
    old = store.checkpoint(config).read_bytes()
    store.path(config).unlink()
    with pytest.raises(RuntimeError, match="killed"):
        train(Noisy(), tmp_path, options=RunOptions(on_step=killed_at(35)))
    # The new file is long enough for the old checkpoint, but their lines are not the same.
    assert not store.checkpoint(config).exists() or store.checkpoint(config).read_bytes() != old
    assert comparable(train(Noisy(), tmp_path)) == comparable(whole)


def killed_at(last: int) -> Callable[[int, float], None]:
    def watch(step: int, loss: float) -> None:
        if step == last:
            raise RuntimeError("killed")

    return watch


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    config = stopped_after(20, tmp_path)
    store = RunStore(tmp_path)
    store.artifacts(config).mkdir(exist_ok=True)
    for path in (
        store.checkpoint(config),
        store.weights(config),
        store.artifacts(config) / "1.png",
    ):
        path.with_name(f"{path.name}.part123").write_bytes(b"half")
    train(Noisy(), tmp_path)
    assert not list(tmp_path.rglob("*.part*"))


def test_weights_are_made_if_they_are_wanted_later(tmp_path: Path) -> None:
    first = train(Noisy(), tmp_path)
    path = RunStore(tmp_path).weights(first.config)
    assert not path.exists()
    assert comparable(
        train(Noisy(), tmp_path, options=RunOptions(keep_weights=True))
    ) == comparable(first)
    assert set(load_tensors(path)) == set(Noisy().model(None).state_dict())  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["", "inside"])
def test_a_file_in_the_way_of_the_folder_is_named(tmp_path: Path, where: str) -> None:
    blocked = tmp_path / "runs"
    blocked.write_text("mine")
    with pytest.raises(StoreError, match=f"cannot write to the folder {blocked / where}"):
        RunStore(blocked / where)
    assert blocked.read_text() == "mine"


def test_a_file_in_the_way_of_a_task_is_named(tmp_path: Path) -> None:
    (tmp_path / "line").write_text("mine")
    with pytest.raises(StoreError, match=f"cannot write {tmp_path / 'line'}: file exists"):
        train(Line(), tmp_path)
    assert (tmp_path / "line").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match=f"cannot write to the folder {tmp_path}: permission"):
        RunStore(tmp_path)


def test_a_run_that_another_holds_is_waited_for(tmp_path: Path) -> None:
    config, store = config_of(Line()), RunStore(tmp_path)
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked >= 2

    with (
        store.lock(config, timeout=0) as held,
        store.lock(config, timeout=0) as again,
        store.lock(replace(config, seed=1), timeout=0) as other,
    ):
        assert (held, again, other) == (True, False, True)
        with pytest.raises(Interrupted):
            run(config, Line(), MOMENTUM, store, RunOptions(should_stop=stop))
    assert store.read(config) is None
    assert run(config, Line(), MOMENTUM, store).result is not None


def _in_a_small_disk(disk: Path, source: str) -> None:
    """The other process of the test below: `badm run` on a disk that is full here and there."""
    from badm.cli import main

    def command(seed: int) -> int:
        argv = ["run", source, "--method", "adam", "--seed", str(seed), "--weights"]
        sys.argv = ["badm", *argv, "--checkpoint", "0", "--runs", str(disk / "runs"), "--quiet"]
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    def contents() -> dict[str, str]:
        files = (path for path in (disk / "runs").rglob("*-seed0-*") if path.is_file())
        return {str(path): path.read_bytes().hex() for path in files}

    mount = ["mount", "-t", "tmpfs", "-o"]
    subprocess.run([*mount, "size=600k", "tmpfs", disk], check=True)
    codes, kept = [command(0)], contents()
    ballast = disk / "ballast"
    for free in (0, 8_000, 12_000, 16_000, 4_000):
        space = os.statvfs(disk)
        taken = ballast.stat().st_size if ballast.exists() else 0
        size = max(0, space.f_bavail * space.f_frsize + taken - free)
        ballast.write_bytes(b"x" * size)
        codes.append(command(1))
    assert contents() == kept, "a run that had been done was touched"
    try:  # more than fits into a buffer, of which torch tells in a way of its own
        save_tensors(disk / "large", {"weights": torch.ones(100_000)})
    except StoreError as error:
        print(f"badm: {error}", file=sys.stderr)
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    codes.append(command(1))
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    codes.append(command(1))
    shutil.copytree(disk / "runs", disk.parent / "copy")
    print(json.dumps(codes))


@pytest.mark.slow
def test_a_full_or_read_only_disk_is_reported_and_the_command_resumes_later(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    try_it = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(disk)]
    if shutil.which("unshare") is None or subprocess.run(try_it, capture_output=True).returncode:
        pytest.skip("needs a kernel that lets users mount a disk of their own")
    source = f"{ENGINE_TASKS}:noisy"
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, __file__, str(disk), source],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    told = [text for text in done.stderr.splitlines() if text]
    assert codes[0] == 0
    assert codes[-1] == 0
    assert codes[1:-1] == [4] * 6, done.stderr
    full, read_only = "no space left on device", "read-only file system"
    assert [text.rpartition(": ")[2] for text in told] == [full] * 6 + [read_only], done.stderr
    assert all(text.startswith("badm: cannot write ") and str(disk) in text for text in told)
    runs, problems = RunStore(tmp_path / "copy").read_all()
    assert not problems
    from badm.bench.methods import find

    for broken, seed in zip(sorted(runs, key=lambda run: run.config.seed), (0, 1), strict=True):
        whole = train(Noisy(), tmp_path / "whole", find("adam"), seed=seed)
        same = replace(broken, config=replace(broken.config, task_version="1"))
        assert comparable(same) == comparable(whole)
    assert not list((tmp_path / "copy").rglob("*.part*"))


def test_reading_a_file_that_is_not_there_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        read_run(tmp_path / "nothing.jsonl")


if __name__ == "__main__":
    _in_a_small_disk(Path(sys.argv[1]), sys.argv[2])
