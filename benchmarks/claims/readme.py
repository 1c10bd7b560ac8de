"""What README.md says in numbers, and what each of them rests on."""

from claims.page_claims import PageClaims

README = PageClaims(
    claims=(
        "compares {len(results('digits')['rows'])} optimizers on scikit-learn's digits",
        "gets to AdamW's score in {untouched('value')} of AdamW's steps (geometric mean over "
        "{word(len(results('speed/defaults')['tasks']))} tasks, 95 % interval "
        "{untouched('low')}–{untouched('high')}); it wins "
        "{word(results('speed/defaults')['over_tasks']['won'])} and loses "
        "{word(results('speed/defaults')['over_tasks']['lost'])}",
        "({word(len(results('rivals')['tasks']))} tasks, by task and with intervals)",
        "tuned alike, {word(results('rivals')['trials'])} learning rates a task and then "
        "{word(results('rivals')['seeds'])} fresh seeds",
        "badm.Consensus(model.parameters(), optimizer, every={default(badm.Consensus, 'every')})",
    ),
    tables=(
        (
            "| method | in BADM's steps | 95 % interval | in BADM's seconds | state |",
            "| {row} | {rival(row)} | {rival_interval(row)} | {rival(row, 'seconds')} | "
            "{rival(row, 'state')} |",
        ),
    ),
    constants=(
        ("rise over the first 5 % of the steps and then fall to 0", "the schedule"),
        ("| u with all singular values made 1, as Muon | 1 buffer |", "what the metric is"),
        ("with all singular values made 1 | 6 buffers |", "what the metric is"),
        ("as Adam | 2 buffers |", "what the metric is"),
        ("as SOAP | 6 buffers |", "what the metric is"),
        ("| u | 1 buffer |", "what the metric is"),
        ("layers of 32 to a few hundred units", "the models of the suite"),
        ("0.80 means that BADM gets to a method's score in 0.80 of its steps", "an example"),
    ),
)
