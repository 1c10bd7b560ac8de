"""What README.md says in numbers: of its own, and as two pages of docs say it too."""

from claims.page_claims import PageClaims
from claims.reproduction import REPRODUCTION
from claims.results import RESULTS

_OWN = PageClaims(
    claims=(
        "took fewer steps to the target than Adam in all "
        "{word(tuned_against_adam('badm-kronecker')[0])} comparisons, the default in "
        "{word(tuned_against_adam('badm')[0])} and as many in "
        "{word(tuned_against_adam('badm')[1])};",
        "compares {len(results('digits')['rows'])} optimizers on scikit-learn's digits",
        "badm.Consensus(model.parameters(), optimizer, every={default(badm.Consensus, 'every')})",
        "Over a link of 10 Mbit/s a small network with BADM inside is at its target in "
        "{seconds_to_target('Consensus, BADM, K = 50', 10)} seconds with a meeting every 50 steps "
        "and in {seconds_to_target('DDP, BADM', 10)} under DDP; with AdamW inside in "
        "{seconds_to_target('Consensus, AdamW, K = 50', 10)} and "
        "{seconds_to_target('DDP, AdamW', 10)}.",
        "with BADM inside up to a meeting every {close_to_ddp('Consensus, BADM')} steps, with "
        "AdamW up to one every {close_to_ddp('Consensus, AdamW')}.",
        "duals bring {mean(different_data('adam+dual'))} %, plain averaging "
        "{mean(different_data('adam+average'))}, DiLoCo {mean(different_data('adam+diloco'))}, "
        "and step by step, with {labels('every')} times the meetings, "
        "{mean(different_data('adam+step'))} (figures)",
        "its step is 1/σ, at most {printed_steps()[-1]} and elsewhere from {printed_steps()[0]} "
        "to {printed_steps()[-2]}, without",
    ),
    constants=(
        ("Python 3.10 or newer", "pyproject.toml"),
        ("| u | 1 buffer |", "what the metric is"),
        ("as Adam | 2 buffers |", "what the metric is"),
        ("values made 1, as Muon | 1 buffer |", "what the metric is"),
        ("as SOAP | 6 buffers |", "what the metric is"),
        ("with all singular values made 1 | 6 buffers |", "what the metric is"),
        ("a unit of SGD's `lr` with momentum 0.9 moves", "1/(1 − 0.9) is ten"),
        ("Over a link of 10 Mbit/s a small network", "the link that is spoken of"),
        ("seconds with a meeting every 50 steps", "the setting that is spoken of"),
        ("is at most 1 % above DDP's", "what counts as close in benchmarks/communication.py"),
        ("The dual starts at 0, as", "the method"),
    ),
)

README = RESULTS + REPRODUCTION + _OWN
