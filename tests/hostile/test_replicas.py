"""Replicas among which one is stopped, killed, late, or means something else: real processes."""

from __future__ import annotations

import os
import pickle
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from badm.distributed.consensus import Consensus
from badm.distributed.ranks import RankGroup, RankLostError
from tests.helpers.ranks import on_ranks
from tests.helpers.waiting import wait_for

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

TIMEOUT = 4.0  # beyond what ranks on a busy machine are apart


def rank() -> int:
    return int(os.environ["RANK"])


def consensus(**options: Any) -> tuple[Consensus, Callable[[], None]]:
    """A meeting of one number, and a step of its inner optimizer."""
    p = nn.Parameter(torch.ones(1))
    inner = torch.optim.SGD([p], lr=0.1)

    def step() -> None:
        p.grad = torch.full_like(p, float(rank()))
        inner.step()

    return Consensus([p], inner, **{"every": 1, "timeout": TIMEOUT, **options}), step


def lost(work: Callable[[], Any]) -> str:
    with pytest.raises(RankLostError) as error:
        work()
    return str(error.value)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def stop_at(meeting: int, mode: str, overlap: int) -> str:
    """The victim, rank 1, is stopped after as many meetings; the others go on until they know."""
    every = overlap + 1
    dist.barrier()  # all have started
    if rank() == 1 and meeting == 0:
        os.kill(os.getpid(), signal.SIGSTOP)

    def train() -> None:
        meetings, step = consensus(mode=mode, overlap=overlap, every=every)
        for _ in range(100 * every):
            if rank() == 1 and meetings.meetings == meeting:
                os.kill(os.getpid(), signal.SIGSTOP)
            step()

    return lost(train)


@pytest.mark.parametrize(
    ("meeting", "mode", "overlap"), [(0, "outer", 0), (2, "dual", 0), (2, "outer", 2)]
)
def test_a_stopped_rank_is_named_at_any_meeting(meeting: int, mode: str, overlap: int) -> None:
    results = on_ranks(3, stop_at, meeting, mode, overlap, stopped=[1])
    for other in (0, 2):
        assert f"of rank {other} of 3 failed: rank 1 sent no heartbeat" in results[other]
        assert ("(rank 1 never sent one)" in results[other]) == (meeting == 0)


def stop_the_host() -> str:
    dist.barrier()
    if rank() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    return lost(consensus)


def test_a_stopped_rank_that_hosts_the_store_is_named() -> None:
    results = on_ranks(3, stop_the_host, stopped=[0], port=free_port())
    for other in (1, 2):
        assert "the process that hosts it, torchrun or else rank 0" in results[other]


def kill_before_the_first_meeting() -> str:
    dist.barrier()
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return lost(consensus)


def test_a_rank_killed_before_the_first_meeting_is_named() -> None:
    results = on_ranks(3, kill_before_the_first_meeting)
    for other in (0, 2):
        assert "meeting 1 of rank" in results[other]
        assert "rank 1 sent no heartbeat" in results[other]


def come_late_and_consult() -> str:
    """Rank 1 comes when the others have given up."""
    dist.barrier()
    rank_group = RankGroup(timeout=TIMEOUT)
    assert rank_group.all_gather(rank(), "a consultation") == [0, 1, 2]
    if rank() == 1:
        wait_for(rank_group._heartbeat.alarm_raised)
    return lost(lambda: rank_group.all_gather(rank(), "the second consultation"))


def test_a_rank_that_lives_and_is_late_for_an_object_is_named() -> None:
    results = on_ranks(3, come_late_and_consult)
    for other in (0, 2):
        assert results[other] == (
            f"the second consultation of rank {other} of 3 failed, though every rank is alive: "
            f"rank 1 was late by more than {TIMEOUT:g} seconds"
        )


OBJECTS: list[Any] = [None, [], "é" * 3, b"\0" * 100_000, {"a": torch.arange(3).tolist()}, 1e400]


def gather_objects() -> list[Any]:
    rank_group = RankGroup(timeout=60)
    found = [rank_group.all_gather((rank(), own) * (1 + 9 * rank()), "objects") for own in OBJECTS]
    rank_group.close()
    return found


def test_objects_of_any_size_are_gathered_by_rank() -> None:
    for found in on_ranks(3, gather_objects):
        assert found == [[(i, own) * (1 + 9 * i) for i in range(3)] for own in OBJECTS]


def fail_to_pickle() -> str:
    dist.barrier()
    rank_group = RankGroup(timeout=TIMEOUT)
    if rank() == 1:
        with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
            rank_group.all_gather(lambda: None, "objects")
        rank_group.close()
        return "not sent"
    return lost(lambda: rank_group.all_gather(rank(), "objects"))


def test_an_object_that_cannot_be_sent_fails_where_it_is_and_the_others_name_its_rank() -> None:
    first, second = on_ranks(2, fail_to_pickle)
    assert second == "not sent"
    assert "rank 1" in first


def meet_in_two_companies() -> list[float]:
    """Two at once over one group, of which one is left early: their pulses do not mix."""
    rank_group = RankGroup(timeout=60)
    first, step = consensus(timeout=60)
    rank_group.all_gather(None, "objects")
    first.detach()
    second, step = consensus(timeout=60)
    for _ in range(3):
        step()
    total = torch.ones(1)
    rank_group.wait(rank_group.all_reduce(total), "a sum")
    return [total.item(), second.w.item()]


def test_two_companies_of_one_group_do_not_disturb_each_other() -> None:
    for total, w in on_ranks(2, meet_in_two_companies):
        assert total == 2
        assert w == pytest.approx(1 - 3 * 0.1 * 0.5)
