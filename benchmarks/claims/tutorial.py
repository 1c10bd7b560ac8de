"""What docs/tutorial/README.md says in numbers, and what each of them rests on."""

from claims.page_claims import PageClaims

TUTORIAL = PageClaims(
    claims=(
        "scikit-learn, {lines('docs/tutorial/breast_cancer.py')} lines.",
        "─ muon {printed('muon')} badm {printed('badm')} sgd-momentum {printed('sgd-momentum')} "
        "lr at the edge of its range adam {printed('adam')} On breast-cancer",
        "share the highest test accuracy, {percent(*OWN, 'badm')} %, against "
        "{with_interval(*OWN, 'sgd-momentum')} for sgd-momentum",
        "need the fewest steps to {100 * target('tutorial')} % on the validation split, "
        "{steps(*OWN, 'adam')} (median of {seeds('tutorial')} seeds); badm, the fastest BADM "
        "method, needs {steps(*OWN, 'badm')} ({steps(*OWN, 'badm') / steps(*OWN, 'adam')} times "
        "as many); missed by sgd-momentum ({missed(*OWN, 'sgd-momentum')} of {seeds('tutorial')} "
        "seeds).",
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
