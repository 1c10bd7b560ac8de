"""What the first pages of docs say in numbers, and what each of them rests on."""

from claims.page_claims import PageClaims

INSTALL = PageClaims(constants=(("Python 3.10 or newer and torch 2.7 or newer", "pyproject.toml"),))

INDEX = PageClaims(
    claims=(
        "gets to the score of tuned AdamW in {untouched('value')} of AdamW's steps: the geometric "
        "mean over {word(len(results('speed/defaults')['tasks']))} tasks, 95 % interval "
        "{untouched('low')}–{untouched('high')}, all on CPUs",
    ),
)

WHY = PageClaims(
    claims=(
        "in {untouched('value')} of AdamW's steps: the geometric mean over "
        "{word(len(results('speed/defaults')['tasks']))} tasks, 95 % interval "
        "{untouched('low')}–{untouched('high')}",
    ),
)
