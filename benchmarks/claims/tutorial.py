"""What docs/tutorial/README.md says in numbers, and what each of them rests on."""

from claims.page_claims import PageClaims

TUTORIAL = PageClaims(
    claims=(
        "scikit-learn, {lines('docs/tutorial/breast_cancer.py')} lines.",
        "─ muon {printed('muon')} sgd-momentum {printed('sgd-momentum')} lr at the edge of its "
        "range adam {printed('adam')} badm {printed('badm')} lr at the edge of its range On "
        "breast-cancer",
        "muon has the highest test accuracy, {with_interval(*OWN, 'muon')}, against "
        "{with_interval(*OWN, 'badm')} for badm; the difference is not significant (p = "
        "{row(*OWN, 'muon')['compared']['p_value']}, {seeds('tutorial')} seeds).",
        "badm needs the fewest steps to {100 * target('tutorial')} % on the validation split, "
        "{steps(*OWN, 'badm')} (median of {seeds('tutorial')} seeds, 10–45); adam, "
        "the fastest without BADM, needs {steps(*OWN, 'adam')} "
        "({steps(*OWN, 'adam') / steps(*OWN, 'badm')} times as many), and their intervals overlap; "
        "missed by sgd-momentum ({missed(*OWN, 'sgd-momentum')} of {seeds('tutorial')} seeds).",
        "That is {len(results('tutorial')['rows'])} methods × ({results('tutorial')['trials']} "
        "trials + {seeds('tutorial')} seeds) = {runs('tutorial')} runs",
        "there are fourteen of them (`badm list methods` shows all there are) and "
        "{runs('digits')} runs",
        "no heartbeat for {constant('badm.bench.compare.search', 'STALE_SECONDS')} seconds",
    ),
    constants=(
        ("takes 20 minutes, most of them for reading", "an estimate"),
        ("Every 5 steps the validation split", "the code above"),
        ("three seeds of 150 tumours", "the code above"),
    ),
)
