"""What docs/trust.md says in numbers, and what each of them rests on."""

from claims.page_claims import PageClaims

TRUST = PageClaims(
    claims=(
        "three seeds hold in {held_beyond('beyond: gamma', 3)} % of cases",
        "{results('calibration')['count']} comparisons for each of "
        "{word(len(results('calibration')['pools']))} tasks",
        "see 20 % fewer steps in {seen_on('digits', '20 %', 5)} % and ten in "
        "{seen_on('digits', '20 %', 10)} %",
        "ten see it in {seen_on('node-cora-gnn', '20 %', 10)} %",
        "on digits the test accuracy is {other_processors('digits', 'lowest')} to "
        "{other_processors('digits', 'highest')} %, where it is "
        "{other_processors('digits', 'as it is')} % on the processor as it is",
        "on CMATERdb, with convolutions, "
        "{other_processors('image-cmaterdb', 'lowest')} to "
        "{other_processors('image-cmaterdb', 'highest')} %, and "
        "{other_processors('image-cmaterdb', 'as it is')} %",
        "a standard deviation of {100 * pool('digits', 'deviation_of_score')} points on digits",
        "the interval of five seeds holds the mean of the pool in "
        "{100 * pool('node-cora-mlp', 'interval_holds')['5']} %",
    ),
    constants=(
        ("An interval should hold in 95 %", "the level"),
        ("skewed (skewness 1)", "benchmarks/coverage.py"),
        ("see 20 % fewer steps", "benchmarks/calibration.py"),
        ("| 10 % |", "benchmarks/calibration.py"),
        ("| 20 % |", "benchmarks/calibration.py"),
        ("| 50 % |", "benchmarks/calibration.py"),
        ("| interval | 3 seeds | 5 seeds | 10 seeds |", "the design"),
        ("| called different in | 3 seeds | 5 seeds | 10 seeds |", "the design"),
        ("| fewer steps in truth | 3 seeds | 5 seeds | 10 seeds |", "the design"),
    ),
    tables=(
        (
            "| interval | 3 seeds | 5 seeds | 10 seeds |",
            "| {row} | {holding(row, 3)} | {holding(row, 5)} | {holding(row, 10)} |",
        ),
        (
            "| called different in | 3 seeds | 5 seeds | 10 seeds |",
            "| {row} | {called(row, 3)} | {called(row, 5)} | {called(row, 10)} |",
        ),
        (
            "| fewer steps in truth | 3 seeds | 5 seeds | 10 seeds |",
            "| {row} | {seen(row, 3)} | {seen(row, 5)} | {seen(row, 10)} |",
        ),
    ),
)
