"""Internal: state dicts of earlier versions, whose groups were fewer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from badm.groups.roles import recall


def split_groups(state_dict: dict[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Split the groups of a state dict that was saved before some parameters had groups apart.

    Each parameter keeps the options that it had. A state dict that fits is returned as it is.
    """
    saved = state_dict["param_groups"]
    known = [[recall(p) for p in group["params"]] for group in groups]
    places = [[routing.place for routing in of_group if routing] for of_group in known]
    if [len(of_group) for of_group in places] != [len(group["params"]) for group in groups]:
        return state_dict  # groups made by hand
    if [len(group["params"]) for group in saved] == [len(of_group) for of_group in places]:
        return state_dict
    every = sorted(place for of_group in places for place in of_group)
    if every != [(g, i) for g, group in enumerate(saved) for i in range(len(group["params"]))]:
        return state_dict  # torch raises a clear error for that
    split = [_part(saved, of_group) for of_group in places]
    return {**state_dict, "param_groups": split}


def _part(saved: Sequence[Mapping[str, Any]], places: Sequence[tuple[int, int]]) -> dict[str, Any]:
    group = saved[places[0][0]]
    of_each = [key for key in ("params", "param_names") if key in group]
    return {**group, **{key: [group[key][i] for _, i in places] for key in of_each}}
