"""What docs/theory.md says in numbers, and what each of them rests on."""

from claims.page_claims import PageClaims

THEORY = PageClaims(
    claims=(
        "| `σ = 4ρ` | {1 / (1 + 4)} | {1 - 4} |",
        "| `ρ = σ` | {1 / 2} | {1 - 1} | plain",
        "| `ρ = 9σ` | {9 / 10} | {1 - 1 / 9} |",
        "at (ρ, σ) = (200, 800), hence step {setting(*CORA, 'badm-printed')} and ν = "
        "{1 - 800 / 200}:",
        "| SGD, learning rate 1e-3, as printed in the paper | {paper(*CORA, 'sgd')} |",
        "| BADM, as printed in the paper | {paper(*CORA, 'badm-printed')} |",
        "| largest class, 818 of 2,708 papers | {818 / 2708} |",
        "| SGD, learning rate 1e-3, here | {cora('SGD, lr 1e-3')} |",
        "| SGD, learning rate 1.25e-3, here | {cora('SGD, lr 1.25e-3')} |",
        "| BADM as printed, here | {cora('BADM as printed, (200, 800)')} |",
        "same ρ and σ, here | {with_interval(*CORA, 'badm-diagonal', 3, 1, '')} |",
        "of {word(len(results('cora')['settings']['seeds']))} seeds with their range; in the last "
        "row of {word(seeds(NODES))} seeds",
        "it would have to be worth "
        "{100 * (paper(*CORA, 'badm-printed') - float(cora('BADM as printed, (200, 800)')[:5]))} "
        "points.",
        "in the default problem of the command below {smoothness()[0]} for samples against "
        "{smoothness()[1]} for the `F_s`.",
        "down to `σ = √(3+√10)·ρ ≈ {(3 + 10**0.5) ** 0.5}ρ`.",
        "Below `{(3 + 10**0.5) ** 0.5}ρ` there are states",
        "`L` falls at every one of {len([c for c in certificate()['change'] if c < 0])} steps, by "
        "{word(round(median(falls())))} times what the theorem asks.",
        "stays {about(room()[0])} to {about(room()[-1])} times below its bound.",
        "It would let `L` rise by {certificate(LOGISTIC)['allowed'][0]} at every step while all "
        "of `L − F*` is "
        "{certificate(LOGISTIC)['lagrangian'][0] - certificate(LOGISTIC)['minimum']}, and its "
        "floor `12δ` = {12 * certificate(LOGISTIC)['delta']} is "
        "{about(12 * certificate(LOGISTIC)['delta'] / certificate(LOGISTIC)['gradient'][0])} "
        "times the squared gradient at the start. With `δ` at the visited points alone, "
        "{certificate(LOGISTIC)['delta_visited']} instead of {certificate(LOGISTIC)['delta']}, it "
        "is still {12 * certificate(LOGISTIC)['delta_visited']}. What is measured: the first rise "
        "comes at `k = {1 + [c > 0 for c in certificate(LOGISTIC)['change']].index(True)}`, the "
        "largest is {max(certificate(LOGISTIC)['change'])}.",
        "more than {1200**0.5} times as long",
        "`L¹ − L⁰ = {certificate('badm certify --start zero')['change'][0]}` where the inequality "
        "would ask for {certificate('badm certify --start zero')['allowed'][0]}; from",
        "Every one of the {covered_by(5)} (ρ, σ) that the paper lists has `σ < 5ρ` (the largest "
        "ratio is {max(sigma / rho for _, rho, sigma in PAPER_RATIOS)}, for Cora and",
        "whatever `η` is. {covered_by((3 + 10**0.5) ** 0.5).capitalize()} of them are also below "
        "{(3 + 10**0.5) ** 0.5}ρ, where",
        "what it measured and exits with {constant('badm.commands.certify', 'NOT_COVERED')}.",
        "count the steps of {certificate(PAPERS)[0]['steps']} (five seeds, 300 steps each",
        "for least squares with seed 0 it is {smoothness()[0] / smoothness()[2]} times that of "
        "the mean loss, so even `σ = η/10` is {smoothness()[0] / smoothness()[2] / 10} times the "
        "curvature.",
    ),
    tables=(
        (
            "| settings of | ρ : σ | σ/ρ | σ = 5η | σ = η | σ = η/2 | σ = η/10 |",
            "| {row} | {ratio(row)[0]} : {ratio(row)[1]} | {ratio(row)[1] / ratio(row)[0]} | "
            "{failed(row, 5.0)} | {failed(row, 1.0)} | {failed(row, 0.5)} | {failed(row, 0.1)} |",
        ),
    ),
    constants=(
        ("instead of 2S models", "algebra"),
        ("(Ma and Yarats, 2018)", "a reference"),
        ("the classical 3.4445, −4.7750, 2.0315 and", "the coefficients of Muon"),
        ("by a number in (0, 1], the part", "algebra"),
        ("at most 1: it is 1 while gradients come", "algebra"),
        ("at (ρ, σ) = (200, 800), hence", "the paper's penalties"),
        ("| SGD, learning rate 1e-3, as printed in the paper |", "the paper's learning rate"),
        ("| largest class, 818 of 2,708 papers |", "counted in Cora"),
        ("| SGD, learning rate 1e-3, here |", "the paper's learning rate"),
        ("| SGD, learning rate 1.25e-3, here |", "1/σ at the paper's σ of 800"),
        ("(five seeds, 300 steps each, `B = 1`)", "the command below"),
        ("least squares with seed 0 it", "the first of the five"),
        ("| settings of | ρ : σ | σ/ρ | σ = 5η | σ = η | σ = η/2 | σ = η/10 |", "multiples of η"),
        ("probabilities being in (0, 1) (logistic)", "algebra"),
    ),
    sections=(
        ("### Statement", "the paper's theorem"),
        ("### Proof", "algebra, checked by tests/paper/test_theory.py"),
        ("### The start", "algebra"),
    ),
)
