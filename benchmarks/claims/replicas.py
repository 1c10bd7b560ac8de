"""What docs/replicas.md says in numbers, and what each of them rests on."""

from claims.page_claims import PageClaims

REPLICAS = PageClaims(
    claims=(
        "Over a link of 10 Mbit/s that is {meeting('DDP, AdamW')['seconds per step']['10']} "
        "seconds for a network of {about(links('weights'))} weights",
        "badm.Consensus(model.parameters(), optimizer, every={default(badm.Consensus, 'every')})",
        "The default, `lr={default(badm.Consensus, 'lr')}, "
        "beta={default(badm.Consensus, 'beta')}`,",
        "is a {0.7 / (1 - 0.9)} in these units.",
        "a perceptron of {links('weights')} weights on Fashion-MNIST, batches of "
        "{links('batch of a rank')} on each host, {links('steps')} steps. Every way is at the "
        "best of {word(len(meeting('DDP, BADM')['tried']))} learning rates, which fall to 0, with "
        "{word(links('seeds'))} fresh seeds",
        "seconds to {links('target')} at 1,000 Mbit/s | at 100 | at 10 |",
        "Over 10 Mbit/s the target is reached at K = 50 in "
        "{seconds_to_target('Consensus, BADM, K = 50', 10)} seconds with BADM inside, under DDP "
        "in {seconds_to_target('DDP, BADM', 10)}; with AdamW inside in "
        "{seconds_to_target('Consensus, AdamW, K = 50', 10)}, under DDP in "
        "{seconds_to_target('DDP, AdamW', 10)}. Over 1,000 Mbit/s there is little to gain: "
        "{seconds_to_target('Consensus, BADM, K = 50', 1000)} seconds instead of "
        "{seconds_to_target('DDP, BADM', 1000)} with BADM at K = 50, and "
        "{seconds_to_target('Consensus, BADM, K = 200', 1000)} at K = 200.",
        "{-against_ddp('Consensus, BADM, K = 200')} % below it still at K = 200 "
        "({against_ddp_range('Consensus, BADM, K = 200')}), with five meetings",
        "up to K = 10, {against_ddp('Consensus, AdamW, K = 10')} % "
        "({against_ddp_range('Consensus, AdamW, K = 10')}), no more at K = 50, "
        "{against_ddp('Consensus, AdamW, K = 50')} % "
        "({against_ddp_range('Consensus, AdamW, K = 50')}), and K = 200, "
        "{against_ddp('Consensus, AdamW, K = 200')} % "
        "({against_ddp_range('Consensus, AdamW, K = 200')}).",
        "with BADM inside {meeting('DDP, BADM')['steps to target']} steps under DDP, "
        "{meeting('Consensus, BADM, K = 10')['steps to target']} at K = 10, "
        "{meeting('Consensus, BADM, K = 200')['steps to target']} at K = 200.",
        "with a loss of {meeting('Consensus, BADM, K = 50, bfloat16 on the wire')['loss']} where "
        "float32 has {meeting('Consensus, BADM, K = 50')['loss']}.",
        "a meeting every {labels('every')} of {labels('steps')} steps, Adam inside, "
        "{word(labels('trials'))} trials for every way and {word(labels('seeds'))} fresh seeds",
        "| step by step, {labels('every')} times the meetings | {by_label('step')} |",
        "| `mode=\"dual\"`, its memory 0.8 | {by_label('dual')} |",
        "then averaging | {by_label('post-local')} |",
        "| DiLoCo | {by_label('diloco')} |",
        "| `mode=\"outer\"`, its memory 0.8 | {by_label('outer')} |",
        "| averaging | {by_label('average')} |",
        "is waited for until `timeout`, {default(badm.Consensus, 'timeout')} seconds unless given,",
        "{len(results('replica_kills')['kills'])} kills of a random rank of "
        "{word(results('replica_kills')['settings']['ranks'])}, "
        "{results('replica_kills')['settings']['steps']} steps in dual mode",
    ),
    tables=(
        (
            "| how the ranks meet | kB a step | loss at the end | against DDP | seconds to 0.42 "
            "at 1,000 Mbit/s | at 100 | at 10 |",
            "| {row} | {meeting(row)['bytes per step'] / 1000} | {meeting(row)['loss']} | "
            "{against_ddp_cell(row)} | {seconds_cell(row, 1000)} | {seconds_cell(row, 100)} | "
            "{seconds_cell(row, 10)} |",
        ),
    ),
    constants=(
        ("Over a link of 10 Mbit/s that is", "the link that is spoken of"),
        ("With K = 1 and SGD inside", "the setting that is spoken of"),
        ("each rank, to 1e-12 in float64 (tests/distributed/test_consensus.py)", "that test"),
        ("in every round, to 1e-12 in float64 (tests/distributed/test_consensus.py)", "that test"),
        ("With η = 1, averaging and SGD inside", "the setting that is spoken of"),
        ("have a memory, 1 − η, and", "algebra"),
        ("and at K = 1 that of", "the setting that is spoken of"),
        ("DiLoCo's learning rate of 0.7 with momentum 0.9 is", "the paper of DiLoCo"),
        ("which fall to 0, with", "the schedule"),
        ("at 1,000 Mbit/s | at 100 | at 10 |", "the links"),
        ("Over 10 Mbit/s the target is reached at K = 50 in", "the setting that is spoken of"),
        ("Over 1,000 Mbit/s there", "the link that is spoken of"),
        ("with BADM at K = 50, and", "the setting that is spoken of"),
        ("at K = 200. At K = 1 both", "the setting that is spoken of"),
        ("still at K = 200 (", "the setting that is spoken of"),
        ("it is up to K = 10,", "the setting that is spoken of"),
        ("no more at K = 50,", "the setting that is spoken of"),
        ("and K = 200, +", "the setting that is spoken of"),
        ("at K = 10, 400", "the setting that is spoken of"),
        ("at K = 200. - bfloat16", "the setting that is spoken of"),
        ("pays for AdamW at K = 10 and 50, a little", "the setting that is spoken of"),
        ('`mode="dual"`, its memory 0.8', "the setting of benchmarks/heterogeneous.py"),
        ('`mode="outer"`, its memory 0.8', "the setting of benchmarks/heterogeneous.py"),
        ("(torch 2.13)", "constraints.txt"),
    ),
)
