"""What docs/choosing.md says in numbers, and what each of them rests on."""

from claims.page_claims import PageClaims

CHOOSING = PageClaims(
    claims=(
        "{untouched('value')} in the geometric mean (95 % interval "
        "{untouched('low')}–{untouched('high')}).",
        "is ahead on {word(ahead_of_adam())} of the "
        "{word(len(results('speed/defaults')['tasks']))} tasks",
        "No warm-up at all was worth {idea('no-warmup', of='ablation-ingredients')} times the "
        "steps (one seed, {idea_by_task('no-warmup', 'text-imdb', of='ablation-ingredients')} on",
        "instead {idea('memory-warmup', of='ablation-ingredients')} "
        "({idea('memory-warmup', 'low', of='ablation-ingredients')}–"
        "{idea('memory-warmup', 'high', of='ablation-ingredients')})",
        "is worth {idea('output', of='ablation-grouping')} times the steps "
        "({idea('output', 'low', of='ablation-grouping')}–"
        "{idea('output', 'high', of='ablation-grouping')};",
        "and {idea_by_task('output', 'image-cifar10', of='ablation-grouping')} at the least",
        "worth {idea_by_task('both', 'char-imdb')} to {idea_by_task('both', 'image-svhn')} times "
        "the steps on CIFAR-10, SVHN and a character transformer",
        "the default, {default(badm.BADM, 'lr')}. Half and twice of it were worth "
        "{idea('lr-5e-3')} and {idea('lr-2e-2')} times the steps over "
        "{word(len(results('ablation')['tasks']))} tasks.",
        "root mean square of {results('ablation')['rows'][0]['variant']['scale']} times the",
        "Muon's {results('ablation')['rows'][3]['variant']['beta']} was worth {idea('muon')} times "
        "the steps (95 % interval {idea('muon', 'low')}–{idea('muon', 'high')})",
        "Nesterov's was worth {idea('nesterov')} times the steps "
        "({idea('nesterov', 'low')}–{idea('nesterov', 'high')}) in the spectral metric",
        "steps twice as long (half as long: {idea('scale-0.2')}).",
    ),
    tables=(("| task | part of AdamW's steps |", "| {row} | {untouched_part(row)} |"),),
    constants=(
        ("over the first 5 % of the steps and falls to 0 over the rest", "the schedule"),
        ("Adam's is near 1 in its first steps and near 0.2 once noise prevails", "algebra"),
        ("from 2.5e-3 to 4e-2", "a factor of four around the default"),
        ("1e-3 to 3e-3. That is a guess", "a guess, as it says"),
        ("0 is the default.", "the signature"),
        ("keeps it away from vectors. 0.1, cautious", "the value that is spoken of"),
        ("5 % of the steps, then linearly to 0", "the schedule"),
        ("in runs of these lengths, 0.85 as much as 0.9 or slightly more", "the values spoken of"),
    ),
)
